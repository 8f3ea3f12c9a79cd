package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/configs"
	"lockstep/data"
	"lockstep/kernels"
	"lockstep/model"
	"lockstep/parallel"
	"lockstep/serve"
)

// Options are what the command line adds to a shape.
type Options struct {
	Out    string // folder of the run; "": the shape's
	Resume bool
	Log    *os.File // progress and notes
}

// ErrInterrupted is returned when a run was asked to stop and has saved its state.
var ErrInterrupted = errors.New("interrupted and saved")

// Run trains by a shape. When ctx ends, the step in flight is finished and saved, and the result is ErrInterrupted.
func Run(ctx context.Context, s *configs.Shape, o Options) error {
	out, err := runFolder(s, o.Out, o.Resume)
	if err != nil {
		return err
	}
	dev, err := OpenDevice(s, kernels.BreakNone)
	if err != nil {
		return err
	}
	defer dev.Close()
	return parallel.Run([]kernels.Device{dev}, func(r *parallel.Rank) error {
		j := &job{ctx: ctx, s: s, o: o, out: out}
		if err := j.prepare(r); err != nil {
			return err
		}
		return j.run()
	})
}

// job is one run in progress.
type job struct {
	ctx      context.Context
	s        *configs.Shape
	o        Options
	out      string
	t        *trainer
	lang     *data.Language
	corpus   *corpus
	stream   *data.Stream
	steps    int
	state    state // of the last finished step
	engine   *serve.Engine
	metrics  *Metrics
	progress *Progress
	gauge    kernels.Gauge // nil: the device has none
	samples  []Generation  // of the last evaluation
}

// prepare opens everything before anything is written.
func (j *job) prepare(r *parallel.Rank) error {
	m, l, err := openModel(r.Dev, j.s)
	if err != nil {
		return err
	}
	if j.corpus, err = openCorpus(j.s, m, l); err != nil {
		return err
	}
	j.lang = l
	j.stream = data.NewStream(j.corpus.train, uint64(j.s.Run.Seed), j.s.Data.PackRows, j.s.Run.Epochs)
	if j.steps = j.s.Run.Steps; j.steps == 0 {
		j.steps = j.stream.Steps(j.s.Run.Packs)
	}
	if j.t, err = newTrainer(j.s, j.steps); err != nil {
		return err
	}
	j.t.r, j.t.m = r, m
	if j.engine, err = serve.NewEngine(r, m, kernels.NewArena(r.Dev), engineOptions(j.s)); err != nil {
		return err
	}
	j.state.Digest = r.Dev.Definition().Digest()
	j.state.Parameters, _ = m.Parameters()
	if j.state.Shape, err = shapeDigest(j.s); err != nil {
		return err
	}
	j.t.rehearse(j.s.Run.Packs, j.s.Data.PackRows)
	return j.resume()
}

// resume loads the newest checkpoint where that is asked for.
func (j *job) resume() error {
	if !j.o.Resume {
		return nil
	}
	st, err := loadCheckpoint(j.t.r.Dev, j.t.m, j.out, j.state, j.note)
	if err != nil || st == nil {
		return err
	}
	j.state = *st
	return j.stream.Resume(st.Data)
}

func (j *job) note(format string, args ...any) {
	if j.progress != nil {
		j.progress.Note(format, args...)
		return
	}
	fmt.Fprintf(j.o.Log, format+"\n", args...)
}

func (j *job) run() (err error) {
	if err := os.MkdirAll(filepath.Join(j.out, checkpointsDir), 0o755); err != nil {
		return err
	}
	if err := writeFile(filepath.Join(j.out, shapeFile), j.s.TOML()); err != nil {
		return err
	}
	total, active := j.t.m.Parameters()
	j.note("%s: %s, %s parameters (%s active), %s, definition %.12s", j.out, j.t.m.Family, compact(float64(total)), compact(float64(active)), j.t.r.Dev.Name(), j.state.Digest)
	j.openGauge()
	if j.metrics, err = OpenMetrics(j.out, j.state.Step); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, j.metrics.Close()) }()
	j.progress = NewProgress(j.o.Log, j.steps, j.state.Step)
	defer j.progress.Close()
	for j.state.Step < j.steps {
		if err := j.step(); err != nil {
			return err
		}
		if j.ctx.Err() != nil {
			return errors.Join(ErrInterrupted, j.save())
		}
	}
	return j.finish()
}

// step takes one optimizer step and what is due after it.
func (j *job) step() error {
	began := time.Now()
	var packs [][]data.Sample
	for _, p := range j.stream.Next(j.s.Run.Packs) {
		packs = append(packs, j.stream.Samples(p))
	}
	step := j.state.Step + 1
	var res stepResult
	asked := counted(j.t.r.Dev, func() { res = j.t.step(step, lessons(packs)) })
	if math.IsNaN(res.Norm) || math.IsInf(res.Norm, 0) || math.IsNaN(res.Loss) {
		return fmt.Errorf("step %d: loss %g, gradient norm %g, not finite first in %s; nothing was updated: start anew with a lower optim.lr, from %s",
			step, res.Loss, res.Norm, j.t.notFinite(), j.newestWeights())
	}
	elapsed := time.Since(began).Seconds()
	j.state.Step, j.state.Data = step, j.stream.State()
	j.state.Tokens += res.Tokens
	j.state.Seconds += elapsed
	speed := float64(res.Tokens) / elapsed
	rec := Record{
		Step: step, Loss: Num(res.Loss), LR: Num(res.LR), GradNorm: Num(res.Norm), Tokens: j.state.Tokens, TokensPerSecond: Num(speed), Memory: peakMemory(),
		Launches: asked.Launches, Waits: asked.Waits, Allocations: asked.Allocations,
	}
	j.progress.Step(step, append([]string{fmt.Sprintf("loss %.4f", res.Loss), fmt.Sprintf("%.0f tokens/s", speed)}, j.usage(&rec)...)...)
	due := j.s.Run.EvalEvery > 0 && step%j.s.Run.EvalEvery == 0 || step == j.steps
	if due {
		if err := j.evaluate(&rec); err != nil && j.ctx.Err() == nil {
			return err
		}
	}
	if due || step%j.s.Run.LogEvery == 0 || step == 1 {
		if err := j.metrics.Write(rec); err != nil {
			return err
		}
	}
	if j.s.Run.SaveEvery > 0 && step%j.s.Run.SaveEvery == 0 && step < j.steps {
		return j.save()
	}
	return nil
}

// newestWeights names where a run that broke can start again.
func (j *job) newestWeights() string {
	parent := filepath.Join(j.out, checkpointsDir)
	names, err := listCheckpoints(parent)
	if err != nil || len(names) == 0 {
		return "the beginning"
	}
	return filepath.Join(parent, names[0], weightsDir)
}

func (j *job) save() error {
	return saveCheckpoint(j.t.r.Dev, j.t.m, j.lang, j.out, j.s.Model.Path, j.state, j.s.Run.Keep)
}

// finish saves the result, proves it and writes the report.
func (j *job) finish() error {
	if err := j.save(); err != nil {
		return err
	}
	final := filepath.Join(j.out, finalName(j.t.m))
	if err := j.saveFinal(final); err != nil {
		return err
	}
	proof, failed, err := j.prove()
	if err != nil {
		return err
	}
	records, err := ReadMetrics(j.out)
	if err != nil {
		return err
	}
	if len(j.samples) == 0 && j.corpus.task != nil { // resumed after the last step: the evaluation is in the log, its texts are not
		if err := j.evaluate(new(Record)); err != nil {
			return err
		}
	}
	err = WriteReport(j.out, Report{
		Name: j.s.Run.Name, Date: time.Now(), Duration: time.Duration(j.state.Seconds * float64(time.Second)), Records: records,
		Shape: j.s.TOML(), Environment: environment(j), Proof: proof, Generations: j.samples[:min(len(j.samples), 8)],
	})
	if err != nil {
		return err
	}
	if err := WriteCurveSVG(filepath.Join(j.out, curveFile), records); err != nil {
		return err
	}
	j.progress.Close()
	j.progress = nil
	j.note("%d tokens in %.0f s; peak memory %d MiB", j.state.Tokens, j.state.Seconds, peakMemory()>>20)
	j.note("model: %s", final)
	j.note("report: %s", filepath.Join(j.out, reportFile))
	return failed
}

func finalName(m *model.Model) string {
	if m.LoRA != nil {
		return "adapter"
	}
	return "model"
}

func (j *job) saveFinal(final string) error {
	tmp := filepath.Join(j.out, "."+filepath.Base(final))
	if err := errors.Join(os.RemoveAll(tmp), os.MkdirAll(tmp, 0o755)); err != nil {
		return err
	}
	if err := saveWeights(j.t.r.Dev, j.t.m, j.lang, tmp, j.s.Model.Path); err != nil {
		return err
	}
	return replaceDir(tmp, final)
}

// prove holds the rollout engine against the training forward on the trained weights; failed says that bits differ.
func (j *job) prove() (p *Proof, failed, err error) {
	if j.s.Run.VerifyTokens == 0 {
		return nil, nil, nil
	}
	var texts [][]int32
	for i := range min(j.corpus.train.Len(), 64) {
		texts = append(texts, j.corpus.train.Sample(i).IDs)
	}
	rep, err := serve.Verify(j.ctx, j.t.r, j.t.m, serve.VerifyOptions{Tokens: j.s.Run.VerifyTokens, Seed: uint64(j.s.Run.Seed), Corpus: texts})
	if err != nil {
		return nil, nil, err
	}
	j.note("%s", rep)
	t := rep.Totals()
	p = &Proof{Tokens: t.Tokens, Logits: t.Logits, LogProbs: t.LogProbs, Mismatches: t.Mismatches, KL: t.KL, Digest: rep.Digest}
	for _, c := range rep.Comparisons {
		p.Ways = append(p.Ways, ProofWay{Name: c.Name, Logits: c.Logits, Mismatches: c.Mismatches, KL: c.KL})
	}
	return p, rep.Err(), nil
}

// peakMemory is the largest resident size of the process so far, bytes.
func peakMemory() int64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return u.Maxrss << 10
}

package train

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/configs"
	"lockstep/data"
	"lockstep/kernels"
	"lockstep/model"
	"lockstep/optim"
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
		err := j.prepare(r)
		if err == nil {
			err = j.run()
		}
		if j.beside != nil {
			err = errors.Join(err, j.beside.Close())
		}
		return err
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
	warm     int         // supervised steps before those of reinforcement learning
	steps    int         // all of them
	rl       *learner    // nil: the run is supervised
	pref     *preference // nil: the run has no pairs
	state    state       // of the last finished step
	engine   *serve.Engine
	beside   kernels.Device // of rollouts with numerics of their own; nil: none
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
	if lessons := j.corpus.lessons(); lessons != nil {
		j.stream = data.NewStream(lessons, uint64(j.s.Run.Seed), j.s.Data.PackRows, j.s.Run.Epochs)
	}
	if j.steps = j.s.Run.Steps; j.steps == 0 {
		j.steps = j.stream.Steps(j.s.Run.Packs)
	}
	if j.t, err = newTrainer(j.s, j.steps); err != nil {
		return err
	}
	packs := j.s.Run.Packs
	if j.s.RL.Objective != "" {
		w := j.s.WarmStart
		j.warm, packs = w.Steps, max(w.Packs, j.s.Run.MicroBatch)
		j.steps += j.warm
		j.t.schedule = optim.Schedule{Kind: "cosine", Peak: w.LR, Final: 0.1, Warmup: w.WarmupSteps, Steps: max(w.Steps, 1)}
	}
	j.t.r, j.t.m = r, m
	if j.corpus.pairs != nil {
		if j.pref, err = openPreference(j.s, j.t, j.corpus); err != nil {
			return err
		}
	}
	if j.engine, err = serve.NewEngine(r, m, kernels.NewArena(r.Dev), engineOptions(j.s)); err != nil {
		return err
	}
	j.state.Digest = r.Dev.Definition().Digest()
	j.state.Parameters, _ = m.Parameters()
	if j.state.Shape, err = shapeDigest(j.s); err != nil {
		return err
	}
	if j.s.RL.Objective != "" {
		if err := j.openLearner(r, m); err != nil {
			return err
		}
	}
	j.t.rehearse(packs, j.s.Data.PackRows)
	if j.pref != nil { // before a checkpoint replaces the weights
		if err := j.pref.refer(j.ctx, filepath.Join(j.out, referenceFile), j.o.Resume, j.note); err != nil {
			return err
		}
	}
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
	if j.stream != nil {
		if err := j.stream.Resume(st.Data); err != nil {
			return err
		}
	}
	if st.RL == nil {
		return nil
	}
	if err := j.rl.resume(st.RL); err != nil {
		return err
	}
	return j.rl.begin(j, false)
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
	if j.pref != nil && j.pref.computed {
		if err := j.pref.write(filepath.Join(j.out, referenceFile)); err != nil {
			return err
		}
	}
	total, active := j.t.m.Parameters()
	j.note("%s: %s, %s parameters (%s active), %s, definition %.12s", j.out, j.t.m.Family, compact(float64(total)), compact(float64(active)), j.t.r.Dev.Name(), j.state.Digest)
	j.openGauge()
	if j.metrics, err = OpenMetrics(j.out, j.state.Step); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, j.metrics.Close()) }()
	if err := cutEpisodes(j.out, j.state.Step); err != nil {
		return err
	}
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

// step takes one step and what is due after it.
func (j *job) step() error {
	began := time.Now()
	rec := Record{Step: j.state.Step + 1}
	var fields []string
	var tokens int
	var err error
	asked := counted(j.t.r.Dev, func() {
		if j.rl != nil && rec.Step > j.warm {
			tokens, fields, err = j.reinforced(&rec)
		} else {
			tokens, fields, err = j.supervised(&rec)
		}
	})
	if err != nil {
		return err
	}
	elapsed := time.Since(began).Seconds()
	step := rec.Step
	j.state.Step = step
	if j.stream != nil {
		j.state.Data = j.stream.State()
	}
	j.state.Tokens += tokens
	j.state.Seconds += elapsed
	rec.Tokens, rec.TokensPerSecond, rec.Memory = j.state.Tokens, Num(float64(tokens)/elapsed), peakMemory()
	rec.Launches, rec.Waits, rec.Allocations = asked.Launches, asked.Waits, asked.Allocations
	j.progress.Step(step, append(fields, j.usage(&rec)...)...)
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

// supervised takes one optimizer step on the next packs of the data.
func (j *job) supervised(rec *Record) (tokens int, fields []string, err error) {
	n := j.s.Run.Packs
	if j.rl != nil {
		n = j.s.WarmStart.Packs
	}
	packs := j.packs(j.stream.Next(n))
	began := time.Now()
	res := j.t.step(rec.Step, packs)
	if err := res.finite(); err != nil {
		key := "optim.lr"
		if j.rl != nil {
			key = "warm_start.lr"
		}
		return 0, nil, j.broken(rec.Step, j.t, err, key)
	}
	rec.Loss, rec.LR, rec.GradNorm = Num(res.Loss), Num(res.LR), Num(res.Norm)
	j.indexers(rec, res)
	fields = append(fields, fmt.Sprintf("loss %.4f", res.Loss))
	if j.pref != nil {
		fields = append(fields, j.pref.record(rec, res.Measures)...)
	}
	return res.Tokens, append(fields, fmt.Sprintf("%.0f tokens/s", float64(res.Tokens)/time.Since(began).Seconds())), nil
}

// packs is what to learn from packs of the stream.
func (j *job) packs(list []data.Pack) [][]lesson {
	if j.pref != nil {
		return lay(j.pref.train, list)
	}
	var packs [][]data.Sample
	for _, p := range list {
		packs = append(packs, j.stream.Samples(p))
	}
	return lessons(packs)
}

// reinforced takes one step of reinforcement learning.
func (j *job) reinforced(rec *Record) (tokens int, fields []string, err error) {
	if rec.Step == j.warm+1 {
		if err := j.rl.begin(j, true); err != nil {
			return 0, nil, err
		}
	}
	res, err := j.rl.step(j.ctx, rec.Step)
	switch {
	case errors.Is(err, errNotFinite):
		return 0, nil, j.broken(rec.Step, j.rl.t, err, "optim.lr")
	case err != nil:
		return 0, nil, err
	}
	rec.Loss, rec.LR, rec.GradNorm = Num(res.Loss), Num(res.LR), Num(res.Norm)
	j.indexers(rec, res.stepResult)
	return res.newTokens + res.learnTokens, j.rl.record(rec, res), nil
}

// broken says what to do about numbers that are not finite.
func (j *job) broken(step int, t *trainer, err error, key string) error {
	return fmt.Errorf("step %d: %w first in %s; the update was left out: start anew with a lower %s, from %s", step, err, t.notFinite(), key, j.newestWeights())
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
	j.state.RL = nil
	if j.rl != nil && j.state.Step > j.warm {
		j.state.RL = j.rl.state()
	}
	parent := filepath.Join(j.out, checkpointsDir)
	if err := saveCheckpoint(j.t.r.Dev, j.t.m, j.lang, filepath.Join(parent, checkpointName(j.state.Step)), j.s.Model.Path, j.state); err != nil {
		return err
	}
	return prune(parent, j.s.Run.Keep)
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
	if err := j.report(proof); err != nil {
		return err
	}
	j.progress.Close()
	j.progress = nil
	j.note("%d tokens in %.0f s; peak memory %d MiB", j.state.Tokens, j.state.Seconds, peakMemory()>>20)
	j.note("model: %s", final)
	j.note("report: %s", filepath.Join(j.out, reportFile))
	return failed
}

// report writes what the run says of itself, and draws it.
func (j *job) report(proof *Proof) error {
	if len(j.samples) == 0 && j.corpus.held != nil { // resumed after the last step: the evaluation is in the log, its texts are not
		if err := j.evaluate(new(Record)); err != nil {
			return err
		}
	}
	err := writeJSON(filepath.Join(j.out, resultFile), result{
		Finished: time.Now().UTC().Truncate(time.Second), Seconds: j.state.Seconds, Environment: environment(j), Proof: proof, Samples: j.samples[:min(len(j.samples), 8)],
	})
	if err != nil {
		return err
	}
	r, err := ReadReport([]string{j.out})
	if err != nil {
		return err
	}
	return errors.Join(r.WriteHTML(filepath.Join(j.out, reportFile)), r.WriteSVG(filepath.Join(j.out, curveFile)))
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
	rep, err := serve.Verify(j.ctx, j.t.r, j.t.m, serve.VerifyOptions{Tokens: j.s.Run.VerifyTokens, Seed: uint64(j.s.Run.Seed), Corpus: j.corpus.texts(64)})
	if err != nil {
		return nil, nil, err
	}
	j.note("%s", rep)
	t := rep.Totals()
	p = &Proof{Tokens: t.Tokens, Logits: t.Logits, LogProbs: t.LogProbs, Mismatches: t.Mismatches, KL: Number(t.KL), Digest: rep.Digest}
	for _, c := range rep.Comparisons {
		p.Ways = append(p.Ways, ProofWay{Name: c.Name, Logits: c.Logits, Mismatches: c.Mismatches, KL: Number(c.KL)})
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

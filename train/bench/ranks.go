package bench

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"lockstep/configs"
	"lockstep/kernels"
	"lockstep/kernels/devices"
	"lockstep/model"
	"lockstep/parallel"
	"lockstep/serve"
	"lockstep/train/plan"
	"lockstep/train/profile"
	"lockstep/train/runlog"
	"lockstep/train/setup"
	"lockstep/train/trainer"
)

// RanksOptions say what [Ranks] measures.
type RanksOptions struct {
	Steps    int    // optimizer steps to time
	Requests int    // answers of each rank; 0: it trains alone
	Prompt   Span   // tokens
	New      Span   // tokens; nothing else ends an answer
	Seed     uint64 // of the requests
	Alone    bool   // what one rank does is not measured: the model need not fit on one
	Kernels  bool   // one more step is taken, of which every kernel is timed
	Peer     string // Python interpreter with torch and transformers, which train on as many ranks; "": no peer
	Out      io.Writer
}

// onMesh is what was measured on some ranks.
type onMesh struct {
	ranks         configs.Parallel
	device        string
	placement     string  // what each rank has of the weights
	micros        int     // of a step of a pipeline
	bubble        float64 // by its schedule
	train, sample float64 // tokens a second of training steps and of answers
	step          float64 // seconds of a training step
	times         stepTimes
	pipeline      pipelineTimes
	share         float64 // largest of a mixture's rows that one rank's experts had in training; 0: experts are not cut
	bytes         int     // of the device that holds most
	planned       int     // likewise, by plan of training
	pinned        int     // of the host, by all ranks
	keep          model.Policy
	answers       []plan.Answer
	kernels       profile.Step // of RanksOptions.Kernels
	config        []byte       // config.json of the model
	digest        string       // of trained weights and answers
}

// peerOnRanks is what the peer reached on some ranks.
type peerOnRanks struct {
	Ranks   int     `json:"ranks"`
	Tokens  float64 `json:"tokens_per_second"` // of training steps; 0: it failed
	Way     string  `json:"way"`               // micro-batches, what is recomputed or gathered again
	Problem string  `json:"problem"`
}

// ranksLR is the learning rate of [Ranks]. Packs are random and the same in every step: by a usual rate the routers of
// a mixture that is trained in full soon send nearly all tokens to a few experts.
const ranksLR = 1e-6

// evenRouters is over how many ranks routers are to give even shares of rows, 0: they stay. Random routers send most
// rows to a few experts, which those of a trained mixture do not; a folder's routers are measured as they are.
func evenRouters(s *configs.Shape) int {
	if s.Model.Path != "" || s.Parallel.Experts < 2 {
		return 0
	}
	return s.Parallel.Experts
}

// Ranks prints the speed of training steps and of rollouts by a shape's ranks, relative to one rank that computes the
// same steps of run.packs packs for each rank, and the same requests; and the memory that a rank takes. The peer trains
// on one rank and on as many, there with FSDP2. It returns an error where trained weights or answers differ in a bit.
func Ranks(ctx context.Context, s *configs.Shape, o RanksOptions) error {
	if err := setup.CountRanks(setup.Device(s), &s.Parallel); err != nil {
		return err
	}
	if s.Parallel.Ranks < 2 && !o.Alone {
		return fmt.Errorf("parallel.ranks: is %d: give --ranks 2 or more to compare with one", s.Parallel.Ranks)
	}
	if o.Alone && o.Peer != "" {
		return fmt.Errorf("--alone --peer %s: the peer trains on one rank too, remove one of the two", o.Peer)
	}
	if o.Alone && o.Kernels {
		return errors.New("--alone --kernels: kernels are compared with those of one rank, remove one of the two")
	}
	if o.Steps < 1 || o.Requests < 0 {
		return fmt.Errorf("--steps %d --requests %d: want at least 1 and 0", o.Steps, o.Requests)
	}
	many := *s // the plan is that of training: no engine for held-out questions, no proof
	many.Data.EvalSamples, many.Run.VerifyTokens, many.Optim.LR = 0, 0, ranksLR
	many.Run.Packs *= s.Parallel.Ranks
	o.Requests *= s.Parallel.Ranks
	even := evenRouters(&many)
	if o.Alone {
		row, err := measureRanks(ctx, &many, even, o)
		if err != nil {
			return err
		}
		o.head(&many, row)
		return printAlone(o.Out, &many, row)
	}
	one := many
	one.Parallel = configs.Default().Parallel
	var rows []onMesh
	for _, s := range []*configs.Shape{&one, &many} {
		row, err := measureRanks(ctx, s, even, o)
		if err != nil {
			return err
		}
		rows = append(rows, row)
	}
	var peers []peerOnRanks
	var failed error
	if o.Peer != "" {
		peers, failed = o.peerRanks(ctx, &many, rows[1].config)
	}
	o.head(&many, rows[1])
	if err := errors.Join(printRanks(o.Out, rows[0], rows[1], peers), failed); err != nil {
		return err
	}
	if o.Kernels {
		if err := profile.Print(o.Out, "a step of training", rows[0].kernels, rows[1].kernels,
			s.Parallel.Ranks); err != nil {
			return err
		}
	}
	if rows[0].digest != rows[1].digest {
		return fmt.Errorf("the ranks trained other weights or gave other answers: SHA-256 %.16s, of one rank %.16s",
			rows[1].digest, rows[0].digest)
	}
	fmt.Fprintf(o.Out, "\ntrained weights and answers are the same on every bit: SHA-256 %.16s\n", rows[0].digest)
	return nil
}

// head says what was measured.
func (o RanksOptions) head(s *configs.Shape, row onMesh) {
	fmt.Fprintf(o.Out, "%s, %s: %d packs of %d tokens a step, %d requests; each rank %s\n", s.Run.Name, s.Model.DType,
		s.Run.Packs, s.Data.PackRows, o.Requests, row.device)
	if n := evenRouters(s); n > 0 {
		fmt.Fprintf(o.Out, "random routers whose rows are the same on each of %d ranks: even shares of rows\n", n)
	}
	fmt.Fprintln(o.Out)
}

// printAlone prints what some ranks do, next to the plan where the machine is known.
func printAlone(w io.Writer, s *configs.Shape, row onMesh) error {
	p := row.ranks
	tab := tabwriter.NewWriter(w, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(tab, "%d ranks\tby plan\t  %s\n", p.Ranks, row.placement)
	train, sample := "-", "-"
	if m, ok := configs.MachineOf(row.device, p.Ranks); ok && s.Device.Kind == devices.CUDA {
		step, err := plan.StepOn(m, s, 0, row.keep)
		if err != nil {
			return err
		}
		train = fmt.Sprintf("%.0f", step.Rate())
		if row.sample > 0 {
			seconds, err := plan.AnswersOn(m, s, row.answers)
			if err != nil {
				return err
			}
			sample = fmt.Sprintf("%.0f", row.tokens()/seconds)
		}
	}
	fmt.Fprintf(tab, "%.0f\t%s\t  tokens/s of training steps\n", row.train, train)
	if row.sample > 0 {
		fmt.Fprintf(tab, "%.0f\t%s\t  tokens/s of answers\n", row.sample, sample)
	}
	fmt.Fprintf(tab, "%d\t%d\t  MiB of the fullest device; by plan of training alone\n", row.bytes>>20, row.planned>>20)
	if row.pinned > 0 {
		fmt.Fprintf(tab, "%d\t-\t  MiB of pinned memory, of all ranks\n", row.pinned>>20)
	}
	row.printShare(tab, "\t")
	if err := tab.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\ntrained weights and answers: SHA-256 %.16s\n", row.digest)
	return err
}

// tokens is that of all answers.
func (m onMesh) tokens() (n float64) {
	for _, a := range m.answers {
		n += float64(a.New)
	}
	return n
}

// peerRanks trains with the peer, which gets config.json, not the weights.
func (o RanksOptions) peerRanks(ctx context.Context, s *configs.Shape, config []byte) ([]peerOnRanks, error) {
	dir, err := os.MkdirTemp("", "lockstep-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := runlog.WriteFile(filepath.Join(dir, "config.json"), config); err != nil {
		return nil, err
	}
	rows, err := peer[peerOnRanks](ctx, o.Peer, configs.TorchRanks, "train", s.Device.Kind, s.Parallel.Ranks, dir,
		s.Model.DType, s.Run.Packs, s.Data.PackRows, o.Steps, s.LoRA.Rank, strings.Join(s.LoRA.Targets, ","),
		s.Run.Recompute)
	for _, r := range rows {
		if r.Problem != "" && err == nil {
			err = fmt.Errorf("the peer %s with ranks = %d: %s", o.Peer, r.Ranks, r.Problem)
		}
	}
	return rows, err
}

// printRanks prints ours, and of the peer what it reached on one rank and on many, and our ratio to that.
func printRanks(w io.Writer, one, many onMesh, peers []peerOnRanks) error {
	p := many.ranks
	tab := tabwriter.NewWriter(w, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(tab, "one rank\t%d ranks\tratio\t  %s\n", p.Ranks, many.placement)
	line := func(what string, one, many float64) {
		fmt.Fprintf(tab, "%.0f\t%.0f\t%.2f\t  %s\n", one, many, many/one, what)
	}
	line("tokens/s of training steps", one.train, many.train)
	if many.sample > 0 {
		line("tokens/s of answers", one.sample, many.sample)
	}
	line("MiB of the fullest device", float64(one.bytes)/(1<<20), float64(many.bytes)/(1<<20))
	if one.pinned > 0 && many.pinned > 0 {
		line("MiB of pinned memory, of all ranks", float64(one.pinned)/(1<<20), float64(many.pinned)/(1<<20))
	}
	many.printShare(tab, "\t\t")
	many.printBubble(tab, one)
	one.printStep(tab, "one rank")
	many.printStep(tab, fmt.Sprintf("%d ranks", p.Ranks))
	var speed [2]float64 // on one rank, on many
	for _, p := range peers {
		i, how := 0, ""
		if p.Ranks > 1 {
			i, how = 1, " with FSDP2"
		}
		if speed[i] = p.Tokens; p.Tokens > 0 {
			cells := [2]string{}
			cells[i] = fmt.Sprintf("%.0f", p.Tokens)
			fmt.Fprintf(tab, "%s\t%s\t\t  tokens/s of the peer's training steps%s: %s\n",
				cells[0], cells[1], how, p.Way)
		}
	}
	if speed[0] > 0 && speed[1] > 0 {
		a, b := one.train/speed[0], many.train/speed[1]
		fmt.Fprintf(tab, "%.2f\t%.2f\t%.2f\t  of the peer; the peer's own ratio %.2f\n", a, b, b/a, speed[1]/speed[0])
	}
	return tab.Flush()
}

// printShare adds a row to a table, behind some columns.
func (m onMesh) printShare(tab io.Writer, before string) {
	if m.share > 0 {
		fmt.Fprintf(tab, "%s%.2f\t  largest share of a mixture's rows at one rank; %.2f is even\n", before, m.share,
			1/float64(m.ranks.Experts))
	}
}

// measureRanks trains the model of a shape on its ranks, and then answers requests by what was trained. Even is as
// evenRouters says.
func measureRanks(ctx context.Context, s *configs.Shape, even int, o RanksOptions) (row onMesh, err error) {
	row.ranks = s.Parallel
	if s.Parallel.Stages > 1 {
		row.micros, row.bubble = plan.Bubble(s)
	}
	err = setup.OnRanks(setup.Device(s), &s.Parallel, func(w *parallel.World, r *parallel.Rank) error {
		if err := plan.ChooseAuto(r.Dev, s, plan.MemoryFor(r.Dev, s)); err != nil {
			return err
		}
		p, err := plan.New(r.Dev, s)
		if err != nil {
			return err
		}
		if away, _ := p.Model.OnHost(); away > 0 && o.Requests > 0 {
			return fmt.Errorf("each token of answers would wait for the weights of %d blocks from the host: set "+
				"--requests 0, or offload.weights = \"all\"", away)
		}
		memory, _, err := plan.Admit(r.Dev, p)
		if err != nil {
			return err
		}
		row.planned, row.keep = memory.Device(), p.Keep
		m, err := setup.LoadModel(w.Devices(), s, p.Model.Config)
		if err != nil {
			return err
		}
		if even > 0 {
			m.EvenRouters(uint64(s.Model.InitSeed), even)
		}
		row.config = m.Config
		ranks, err := serve.Distribute(w, r, m)
		if err != nil {
			return err
		}
		row.placement = m.Placement()
		if err := ranks.Replicas.TrainShards(w); err != nil {
			return err
		}
		if err := p.ReserveRanks(w); err != nil {
			return err
		}
		by, err := setup.TrainerOptions(s, benchWarmup+o.Steps, p.Keep)
		if err != nil {
			return err
		}
		by.Defer = true
		sum := sha256.New()
		t := trainer.NewReplicated(w, r, ranks.Replicas, by)
		if err := row.timeSteps(ctx, w, t, s, o.Steps); err != nil {
			return err
		}
		tensors := m.Tensors
		if m.LoRA != nil {
			tensors = m.AdapterTensors
		}
		for _, t := range tensors() {
			if err := t.Write(sum); err != nil {
				return err
			}
		}
		if o.Kernels {
			if err := row.timeKernels(w, t, s, 2+o.Steps); err != nil {
				return err
			}
		}
		if o.Requests > 0 {
			if err := row.timeAnswers(ctx, ranks, s, o, sum); err != nil {
				return err
			}
		}
		for _, d := range w.Devices() {
			row.bytes = max(row.bytes, kernels.Allocated(d))
			row.pinned += kernels.Pinned(d)
		}
		row.device, row.digest = r.Dev.Name(), fmt.Sprintf("%x", sum.Sum(nil))
		return nil
	})
	return row, err
}

// timeSteps times some optimizer steps, behind one that warms up.
func (m *onMesh) timeSteps(ctx context.Context, w *parallel.World, t *trainer.Trainer, s *configs.Shape,
	steps int) error {
	batch := trainer.Supervised(randomPacks(s, t.Model))
	wait := func() error { return w.Run(func(r *parallel.Rank) error { return r.Dev.Sync() }) }
	t.Step(1, batch)
	if err := wait(); err != nil {
		return err
	}
	w.Tallies()
	times := t.TimeSteps()
	began, tokens := time.Now(), 0
	for n := range steps {
		if err := ctx.Err(); err != nil {
			return err
		}
		tokens += t.Step(2+n, batch).Tokens
	}
	err := wait()
	m.step = time.Since(began).Seconds() / float64(steps)
	m.train = float64(tokens) / m.step / float64(steps)
	ranks := times()
	m.times = stepTimesOf(ranks, steps)
	if m.ranks.Stages > 1 {
		m.pipeline = timesOf(s.Pipeline.Schedule, setup.Chunks(s), steps, ranks)
	}
	for _, of := range w.Tallies() {
		m.share = max(m.share, of.Share)
	}
	t.Finish()
	return err
}

// timeKernels takes step n, and times its kernels.
func (m *onMesh) timeKernels(w *parallel.World, t *trainer.Trainer, s *configs.Shape, n int) (err error) {
	ranks, err := profile.Of(w)
	if err != nil {
		return err
	}
	batch := trainer.Supervised(randomPacks(s, t.Model))
	ranks.Start()
	t.Step(n, batch)
	t.Finish()
	m.kernels.Seconds = m.step
	m.kernels.Times, err = ranks.Stop(w)
	return err
}

// timeAnswers times answers to random requests, and adds their ids and log-probabilities to a digest.
func (m *onMesh) timeAnswers(ctx context.Context, ranks serve.Ranks, s *configs.Shape, o RanksOptions,
	sum io.Writer) error {
	engines, err := ranks.NewEngines(setup.EngineOptions(s))
	if err != nil {
		return err
	}
	traffic := RolloutOptions{Requests: o.Requests, Samples: 1, Prompt: o.Prompt, New: o.New, Seed: o.Seed}
	reqs := traffic.traffic(ranks.Model)
	for _, q := range reqs {
		m.answers = append(m.answers, plan.Answer{Prompt: len(q.Prompt), New: q.MaxTokens})
	}
	began := time.Now()
	results, err := engines.Run(ctx, reqs)
	if err != nil {
		return err
	}
	took, tokens := time.Since(began).Seconds(), 0
	for _, res := range results {
		tokens += len(res.IDs)
		if err := binary.Write(sum, binary.LittleEndian, res.IDs); err != nil {
			return err
		}
		if err := binary.Write(sum, binary.LittleEndian, res.LogProbs); err != nil {
			return err
		}
	}
	m.sample = float64(tokens) / took
	return nil
}

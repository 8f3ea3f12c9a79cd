package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"lockstep/configs"
	"lockstep/data"
	"lockstep/kernels"
	"lockstep/kernels/devices"
	"lockstep/model"
	"lockstep/parallel"
	"lockstep/quant"
	"lockstep/serve"
	"lockstep/train/plan"
	"lockstep/train/runlog"
	"lockstep/train/setup"
	"lockstep/train/trainer"
)

// workload is one line of the table of [CUDA], ours or the peer's.
type workload struct {
	Name   string  `json:"name"`
	Tokens float64 `json:"tokens_per_second"`
	// of the peer's: the most memory that it took, and why it could not run
	Memory  int    `json:"memory"`
	Problem string `json:"problem"`
}

// CUDA prints the speed of a shape's model on the GPU with sequences of pack_rows random tokens: training steps,
// forward only, and greedy decoding; what the kernels of a step take; and the same workloads of the peer, which gets
// config.json, not the weights. What was measured before something failed is printed before the error.
func CUDA(ctx context.Context, s *configs.Shape, o Options) error {
	if err := errors.Join(o.validate(), oneRank(s)); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "lockstep-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	ours, err := benchOurs(ctx, s, o, dir)
	if len(ours) == 0 {
		return err
	}
	var peers []workload
	if o.Peer != "" && err == nil {
		peers, err = cudaPeer(ctx, s, o, dir)
	}
	return errors.Join(printWorkloads(o.Out, ours, peers), err)
}

// benchOurs runs the workloads and frees the card's memory.
func benchOurs(ctx context.Context, s *configs.Shape, o Options, dir string) (rows []workload, err error) {
	dev, err := devices.Open(setup.Device(s))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	profiler, _ := dev.(kernels.Profiler)
	err = parallel.Run([]kernels.Device{dev}, func(r *parallel.Rank) error {
		return benchWorkloads(ctx, r, profiler, s, o, dir, func(name string, speed float64) {
			rows = append(rows, workload{Name: name, Tokens: speed})
		})
	})
	fmt.Fprintf(o.Out, "\n%s on %s, %s, %d sequences of %d tokens a step, LoRA rank %d\n", s.Run.Name, dev.Name(),
		s.Model.DType, s.Run.Packs, s.Data.PackRows,
		s.LoRA.Rank)
	return rows, err
}

const (
	decodeRows   = 32  // sequences of the decoding workload
	decodePrompt = 128 // their prompts
	decodeTokens = 128 // new tokens of each
)

// benchWorkloads tells the tokens a second of each workload as soon as it is known: the device may fail in the next.
func benchWorkloads(ctx context.Context, r *parallel.Rank, p kernels.Profiler, s *configs.Shape, o Options, dir string,
	tell func(name string, speed float64)) error {
	chosen, err := plan.Reserved(r, s)
	if err != nil {
		return err
	}
	inputs, begun := kernels.Pinned(r.Dev), time.Now()
	m, _, err := setup.OpenTrained(r.Dev, s)
	if err == nil {
		err = r.Dev.Sync()
	}
	if err != nil {
		return err
	}
	away, host := m.OnHost()
	states := kernels.Pinned(r.Dev) - inputs - host
	fmt.Fprintf(o.Out, "%s\nweights: %s, there in %.1f s; %d of %d blocks on the host, %s\n", chosen.Chosen(),
		plan.Size(m.Memory().Weights), time.Since(begun).Seconds(), away, len(m.Blocks), plan.Size(host))
	if err := runlog.WriteFile(filepath.Join(dir, "config.json"), m.Config); err != nil {
		return err
	}
	by, err := setup.TrainerOptions(s, benchWarmup+o.Steps, chosen.Keep)
	if err != nil {
		return err
	}
	by.Defer = true
	t := trainer.New(r, m, by)
	batch := randomPacks(s, m)
	for _, w := range []struct {
		name string
		run  func() (float64, error)
	}{
		{"train", func() (float64, error) {
			speed, err := benchTraining(t, p, batch, o)
			t.Finish()
			fmt.Fprintf(o.Out, "\nmemory: %s of the device, %s pinned\n", plan.Size(kernels.Allocated(r.Dev)),
				plan.Size(kernels.Pinned(r.Dev)))
			if err == nil && s.Offload.Optimizer {
				err = benchUpdate(r, t, o.Out, o.Steps, states)
			}
			return speed, err
		}},
		{"forward", func() (float64, error) {
			return rate(r, o.Steps, func() int {
				t.EvalLoss(batch)
				return len(batch) * s.Data.PackRows
			})
		}},
		{"decode", func() (float64, error) { return benchDecoding(ctx, r, p, m, s, o) }},
	} {
		if away > 0 && w.name == "decode" {
			fmt.Fprintln(o.Out, "decode: left out, as each token would wait for weights from the host")
			continue
		}
		speed, err := w.run()
		if err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
		tell(w.name, speed)
	}
	return nil
}

// randomPacks returns packs of one sequence of random tokens each, whose targets are all next tokens.
func randomPacks(s *configs.Shape, m *model.Model) (packs [][]data.Sample) {
	rng := rand.New(rand.NewPCG(uint64(s.Run.Seed), 1))
	for range s.Run.Packs {
		ids := make([]int32, s.Data.PackRows+1)
		for i := range ids {
			ids[i] = int32(rng.IntN(m.Vocab))
		}
		packs = append(packs, []data.Sample{{IDs: ids[:s.Data.PackRows], Targets: ids[1:]}})
	}
	return packs
}

// rate returns the tokens a second of some rounds, after one that warms up.
func rate(r *parallel.Rank, rounds int, round func() int) (float64, error) {
	round()
	if err := r.Dev.Sync(); err != nil {
		return 0, err
	}
	start, tokens := time.Now(), 0
	for range rounds {
		tokens += round()
	}
	if err := r.Dev.Sync(); err != nil {
		return 0, err
	}
	return float64(tokens) / time.Since(start).Seconds(), nil
}

// benchTraining times steps and then, where p is not nil, one more kernel by kernel.
func benchTraining(t *trainer.Trainer, p kernels.Profiler, batch [][]data.Sample, o Options) (float64, error) {
	n := 0
	step := func() int {
		n++
		return t.Step(n, trainer.Supervised(batch)).Tokens
	}
	speed, err := rate(t.Rank, o.Steps, step)
	if p != nil && err == nil {
		p.StartProfile()
		step()
		printKernels(o.Out, "a step of training", 1, p.StopProfile())
	}
	return speed, err
}

// printKernels writes the time of each kernel in one step, the mean over some steps, slowest first. It returns the
// seconds of all kernels in all steps.
func printKernels(w io.Writer, what string, steps int, times []kernels.KernelTime) (total float64) {
	times = slices.SortedStableFunc(slices.Values(times), func(a, b kernels.KernelTime) int {
		return cmp.Compare(b.Seconds, a.Seconds)
	})
	calls := 0
	for _, k := range times {
		total, calls = total+k.Seconds, calls+k.Calls
	}
	tab := tabwriter.NewWriter(w, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tab, "calls a step\tus a call\tus a step\tshare\t  kernel of "+what)
	line := func(k kernels.KernelTime) {
		fmt.Fprintf(tab, "%.1f\t%.2f\t%.1f\t%.1f%%\t  %s\n", float64(k.Calls)/float64(steps),
			1e6*k.Seconds/float64(k.Calls), 1e6*k.Seconds/float64(steps), 100*k.Seconds/total, k.Kernel)
	}
	for _, k := range times {
		line(k)
	}
	line(kernels.KernelTime{Kernel: "all", Calls: calls, Seconds: total})
	tab.Flush()
	return total
}

// benchDecoding times all of some requests, prompts included, and then once more kernel by kernel.
func benchDecoding(ctx context.Context, r *parallel.Rank, p kernels.Profiler, m *model.Model, s *configs.Shape,
	o Options) (speed float64, err error) {
	options := setup.EngineOptions(s)
	options.Slots, options.Pages = decodeRows, 0
	options.PrefillRows = decodeRows * decodePrompt
	e, err := serve.NewEngine(r, m, kernels.NewArena(r.Dev), options)
	if err != nil {
		return 0, err
	}
	reqs := decodeRequests(s, m)
	steps := 0 // of the last run
	run := func() int {
		before := e.Steps
		defer func() { steps = e.Steps - before }()
		if _, failed := e.Run(ctx, reqs); failed != nil {
			err = failed
		}
		return decodeRows * decodeTokens
	}
	asked := trainer.Counted(r.Dev, func() { speed, err = rate(r, 1, run) })
	if p != nil && err == nil {
		fmt.Fprintf(o.Out, "\ndecoding: %d steps, %d launches, %d waits\n", e.Steps, asked.Launches, asked.Waits)
		p.StartProfile()
		run()
		printKernels(o.Out, fmt.Sprintf("decoding %d sequences by %d tokens, prompts included", decodeRows,
			decodeTokens), steps, p.StopProfile())
	}
	return speed, err
}

func decodeRequests(s *configs.Shape, m *model.Model) (reqs []serve.Request) {
	rng := rand.New(rand.NewPCG(uint64(s.Run.Seed), 2))
	for i := range decodeRows {
		q := serve.Request{ID: uint64(i), MaxTokens: decodeTokens, TopP: 1}
		for range decodePrompt {
			q.Prompt = append(q.Prompt, int32(rng.IntN(m.Vocab)))
		}
		reqs = append(reqs, q)
	}
	return reqs
}

// cudaPeer runs the peer's workloads. Next to frozen weights in 4 bits it has QLoRA.
func cudaPeer(ctx context.Context, s *configs.Shape, o Options, dir string) ([]workload, error) {
	weights := "bf16"
	if s.LoRA.On() && (s.Model.Weights == string(quant.INT4) || s.Model.Weights == string(quant.MXFP4)) {
		weights = "nf4"
	}
	return peer[workload](ctx, o.Peer, configs.TransformersCUDA, dir, s.Run.Packs, s.Data.PackRows, o.Steps, decodeRows,
		decodePrompt, decodeTokens, s.LoRA.Rank,
		strings.Join(s.LoRA.Targets, ","), s.Run.Recompute, weights)
}

func printWorkloads(w io.Writer, ours, peers []workload) error {
	tab := tabwriter.NewWriter(w, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tab, "tokens/s\tpeer\tratio\t  workload")
	for _, r := range ours {
		peer, ratio, note := "-", "-", ""
		for _, p := range peers {
			switch {
			case p.Name != r.Name:
			case p.Problem != "":
				note += ": not run by the peer: " + p.Problem
			default:
				peer, ratio = fmt.Sprintf("%.0f", p.Tokens), fmt.Sprintf("%.2f", r.Tokens/p.Tokens)
				if p.Memory > 0 {
					note += ", the peer's memory " + plan.Size(p.Memory)
				}
			}
		}
		fmt.Fprintf(tab, "%.0f\t%s\t%s\t  %s%s\n", r.Tokens, peer, ratio, r.Name, note)
	}
	return tab.Flush()
}

package bench

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"text/tabwriter"
	"time"

	"lockstep/configs"
	"lockstep/data"
	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/kernels/devices"
	"lockstep/optim"
	"lockstep/parallel"
	"lockstep/train/plan"
	"lockstep/train/runlog"
	"lockstep/train/setup"
	"lockstep/train/trainer"
)

// oneRank refuses a shape that is trained by several ranks: a benchmark times one.
func oneRank(s *configs.Shape) error {
	if n := s.Parallel.Ranks; n != 1 {
		return fmt.Errorf("parallel.ranks: is %d, and a benchmark times one rank, set 1", n)
	}
	return nil
}

// Options say how long [CPU], [CUDA], [Kernels] and [Recompute] measure.
type Options struct {
	Steps int           // optimizer steps that are timed
	Each  time.Duration // for each matrix product
	Peer  string        // Python interpreter with torch and transformers, which trains the same batches; "": no peer
	Out   io.Writer     // the tables
}

func (o *Options) validate() error {
	if o.Steps < 1 || o.Each <= 0 {
		return fmt.Errorf("--steps %d --each %v: want at least 1, and a time above 0", o.Steps, o.Each)
	}
	return nil
}

const benchWarmup = 5 // steps before the timed ones, for ours and the peer

// CPU prints the speed of a shape on the CPU: training steps, the peer's on the same batches, and every matrix
// product of a step against the FMA peak measured around it. Ratios are of one run; the absolute figures are this
// machine's at this moment.
func CPU(ctx context.Context, s *configs.Shape, o Options) error {
	if err := errors.Join(o.validate(), oneRank(s)); err != nil {
		return err
	}
	dev, err := devices.Open(setup.Device(s))
	if err != nil {
		return err
	}
	defer dev.Close()
	reference, ok := dev.(*cpu.Device)
	if !ok {
		return fmt.Errorf("bench cpu needs device.kind = \"cpu\", the shape has %s", dev.Name())
	}
	dir, err := os.MkdirTemp("", "lockstep-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	rec := &recorder{Device: reference, products: map[cpu.GEMMCase]int{}}
	var ours benchRow
	err = parallel.Run([]kernels.Device{rec}, func(r *parallel.Rank) error {
		ours, err = benchSteps(ctx, r, s, o.Steps, dir)
		return err
	})
	if err != nil {
		return err
	}
	rows := []benchRow{ours}
	if o.Peer != "" {
		peers, err := cpuPeer(ctx, o, s, dir)
		if err != nil {
			return err
		}
		rows = append(rows, peers...)
	}
	fmt.Fprintf(o.Out, "%s on %s, %s, %d steps of %d rows\n\n", s.Run.Name, dev.Name(), s.Model.DType, o.Steps,
		ours.Rows)
	printSteps(o.Out, rows)
	fmt.Fprintln(o.Out)
	return benchProducts(reference, s, rec.products, o)
}

// benchRow is one line of the training table. Tokens are those of the samples, padding not counted.
type benchRow struct {
	Name      string  `json:"name"`
	Tokens    float64 `json:"tokens_per_second"`
	Loss      float64 `json:"loss"` // of the last step
	PeakBytes int64   `json:"peak_bytes"`
	Rows      int     `json:"-"` // of one step
}

// benchSteps trains, and leaves the initial model and the batches in dir for a peer.
func benchSteps(ctx context.Context, r *parallel.Rank, s *configs.Shape, steps int, dir string) (benchRow, error) {
	planned, err := plan.Reserved(r, s)
	if err != nil {
		return benchRow{}, err
	}
	m, l, err := setup.OpenTrained(r.Dev, s)
	if err != nil {
		return benchRow{}, err
	}
	if err := setup.SaveModel(m, l, dir, s.Model.Path); err != nil {
		return benchRow{}, err
	}
	c, err := setup.OpenCorpus(s, m, l)
	if err != nil {
		return benchRow{}, err
	}
	if c.Train == nil {
		return benchRow{}, fmt.Errorf("data.preferences: the benchmark trains on samples, set data.path or data.task")
	}
	o, err := setup.TrainerOptions(s, max(s.Run.Steps, benchWarmup+steps), planned.Keep)
	if err != nil {
		return benchRow{}, err
	}
	t := trainer.New(r, m, o)
	stream := data.NewStream(c.Train, uint64(s.Run.Seed), s.Data.PackRows, s.Run.Epochs)
	var batches [][][]data.Sample
	for range benchWarmup + steps {
		var packs [][]data.Sample
		for _, p := range stream.Next(s.Run.Packs) {
			packs = append(packs, stream.Samples(p))
		}
		batches = append(batches, packs)
	}
	if err := writeBatches(filepath.Join(dir, "batches.jsonl"), batches, t); err != nil {
		return benchRow{}, err
	}
	row := benchRow{Name: "lockstep"}
	tokens := 0
	var began time.Time
	for i, packs := range batches {
		if i == benchWarmup {
			began = time.Now()
		}
		if err := ctx.Err(); err != nil {
			return benchRow{}, err
		}
		res := t.Step(i+1, trainer.Supervised(packs))
		if i >= benchWarmup {
			tokens += res.Tokens
		}
		row.Loss, row.Rows = res.Loss, res.Tokens
	}
	if err := r.Dev.Sync(); err != nil {
		return benchRow{}, err
	}
	row.Tokens, row.PeakBytes = float64(tokens)/time.Since(began).Seconds(), plan.PeakMemory()
	return row, nil
}

// peerStep is a line of the peer's input: one optimizer step. Targets are next tokens, -1 where nothing is learned.
type peerStep struct {
	LR      float64        `json:"lr"`
	Samples [][2][]int32   `json:"samples"` // ids and targets
	Adam    map[string]any `json:"adam"`    // settings of the optimizer
}

func writeBatches(path string, batches [][][]data.Sample, t *trainer.Trainer) error {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	for i, packs := range batches {
		step := peerStep{LR: t.Schedule.At(i + 1), Adam: adamSettings(t.Optimizer)}
		for _, pack := range packs {
			for _, s := range pack {
				if s.Weights != nil {
					return fmt.Errorf("data.path: the peer does not support token weights, remove them")
				}
				step.Samples = append(step.Samples, [2][]int32{s.IDs, s.Targets})
			}
		}
		if err := enc.Encode(step); err != nil {
			return err
		}
	}
	return runlog.WriteFile(path, text.Bytes())
}

func adamSettings(a optim.AdamW) map[string]any {
	return map[string]any{"betas": []float64{a.Beta1, a.Beta2}, "eps": a.Eps, "weight_decay": a.WeightDecay,
		"clip": a.Clip}
}

// cpuPeer trains the batches in dir with the peer and returns its rows, fastest first.
func cpuPeer(ctx context.Context, o Options, s *configs.Shape, dir string) ([]benchRow, error) {
	threads := s.Device.Threads
	if threads == 0 {
		threads = runtime.NumCPU()
	}
	rows, err := peer[benchRow](ctx, o.Peer, configs.TransformersSFT, dir, s.Model.DType, threads, benchWarmup)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(rows, func(a, b benchRow) int { return cmp.Compare(b.Tokens, a.Tokens) })
	return rows, nil
}

// printSteps shows each row and how many times faster the first is.
func printSteps(w io.Writer, rows []benchRow) {
	tab := tabwriter.NewWriter(w, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tab, "tokens/s\tpeak memory\tlast loss\tlockstep is faster by\t  training")
	for i, r := range rows {
		ratio := "-"
		if i > 0 {
			ratio = fmt.Sprintf("%.2f", rows[0].Tokens/r.Tokens)
		}
		fmt.Fprintf(tab, "%.0f\t%d MiB\t%.5f\t%s\t  %s\n", r.Tokens, r.PeakBytes>>20, r.Loss, ratio, r.Name)
	}
	tab.Flush()
}

// recorder is the CPU, and counts the matrix products of a run by their shapes.
type recorder struct {
	*cpu.Device
	products map[cpu.GEMMCase]int // times called
}

func (d *recorder) MatMul(out kernels.Tensor, g *kernels.Groups, terms ...kernels.Term) {
	d.Device.MatMul(out, g, terms...)
	d.note("MatMul", g, out.Rows, out.Cols, terms[0].X.Cols)
}

func (d *recorder) MatMulLoRA(out, u, x, a kernels.Tensor, scale float32, g *kernels.Groups, terms ...kernels.Term) {
	d.Device.MatMulLoRA(out, u, x, a, scale, g, terms...)
	d.note("MatMul", g, u.Rows, u.Cols, x.Cols)
	d.note("MatMul", g, out.Rows, out.Cols, terms[0].X.Cols)
}

func (d *recorder) MatMulT(out kernels.Tensor, g *kernels.Groups, terms ...kernels.Term) {
	d.Device.MatMulT(out, g, terms...)
	d.note("MatMulT", g, out.Rows, out.Cols, terms[0].X.Cols)
}

func (d *recorder) WeightGrad(dw, dy, x kernels.Tensor, g *kernels.Groups, then ...kernels.GradRows) {
	d.Device.WeightGrad(dw, dy, x, g, then...)
	d.note("WeightGrad", g, dw.Rows, dw.Cols, dy.Rows)
}

// note counts a product. Groups count as equally large. Rows (of a weight gradient: depth) are rounded up to a multiple
// of 256, in groups of 64, so that steps of nearly the same length are one case.
func (d *recorder) note(op string, g *kernels.Groups, rows, cols, depth int) {
	c := cpu.GEMMCase{Op: op, Rows: rows, Cols: cols, Depth: depth}
	long := &c.Rows
	if op == "WeightGrad" {
		long = &c.Depth
	}
	grid := 256
	if g != nil && g.Count > 1 {
		c.Groups, grid = g.Count, 64
		*long /= g.Count
	}
	*long = (*long + grid - 1) / grid * grid
	d.products[c]++
}

// benchProducts times the cube of 1024 and the products that make up a step of the shape, most arithmetic first.
func benchProducts(d *cpu.Device, s *configs.Shape, counts map[cpu.GEMMCase]int, o Options) error {
	cases, total := stepProducts(counts)
	cube := cpu.GEMMCase{Op: "MatMul", Rows: 1024, Cols: 1024, Depth: 1024}
	tab := tabwriter.NewWriter(o.Out, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tab, "GFLOP/s\tpeak\tof peak\tof a step\t  matrix product, rows x columns x depth")
	seconds, ideal := 0.0, 0.0
	for i, r := range d.BenchGEMM(setup.DType(s), append([]cpu.GEMMCase{cube}, cases...), o.Each) {
		share := "-"
		if i > 0 {
			flops := cases[i-1].Flops() * float64(counts[cases[i-1]])
			seconds, ideal = seconds+flops/r.Ratio, ideal+flops
			share = fmt.Sprintf("%.1f%%", 100*flops/total)
		}
		fmt.Fprintf(tab, "%.0f\t%.0f\t%.0f%%\t%s\t  %s\n", r.GFLOPS, r.Peak, 100*r.Ratio, share, r.Case)
	}
	fmt.Fprintf(tab, "\t\t%.0f%%\t100%%\t  all of a step, by time\n", 100*ideal/seconds)
	return tab.Flush()
}

// stepProducts orders the products by arithmetic and leaves out what is less than half a percent of a step.
func stepProducts(counts map[cpu.GEMMCase]int) (cases []cpu.GEMMCase, total float64) {
	work := func(c cpu.GEMMCase) float64 { return c.Flops() * float64(counts[c]) }
	for c := range counts {
		total += work(c)
	}
	for c := range counts {
		if work(c) >= 0.005*total {
			cases = append(cases, c)
		}
	}
	slices.SortFunc(cases, func(a, b cpu.GEMMCase) int {
		return cmp.Or(cmp.Compare(work(b), work(a)), cmp.Compare(a.String(), b.String()))
	})
	return cases, total
}

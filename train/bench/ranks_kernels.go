package bench

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"

	"lockstep/kernels"
	"lockstep/parallel"
	"lockstep/train/trainer"
)

// smallShare of a step is what a kernel has to lose or to win for a line of its own.
const smallShare = 0.001

// stepKernels is the kernels of a step of training, the mean over the ranks.
type stepKernels struct {
	seconds float64 // of a step while nothing is profiled
	times   []kernels.KernelTime
}

// profileRanks takes one more step, of which every kernel of every rank is timed.
func profileRanks(w *parallel.World, step func() trainer.StepResult) ([]kernels.KernelTime, error) {
	var profilers []kernels.Profiler
	for _, d := range w.Devices() {
		p, ok := d.(kernels.Profiler)
		if !ok {
			return nil, fmt.Errorf("--kernels: %s does not time its kernels: use a GPU", d.Name())
		}
		profilers = append(profilers, p)
		p.StartProfile()
	}
	step()
	of := make([][]kernels.KernelTime, w.Size())
	err := w.Run(func(r *parallel.Rank) error {
		of[r.ID] = profilers[r.ID].StopProfile()
		return nil
	})
	if err != nil {
		return nil, err
	}
	var mean []kernels.KernelTime
	for _, times := range of {
		mean = addTimes(mean, times)
	}
	for i := range mean {
		mean[i].Seconds /= float64(len(of))
	}
	return mean, nil
}

// printStepKernels prints where the time of several ranks goes: what each kernel takes of a rank's step, and of one
// rank's for as many packs, those that lose most first. What is left of a step is a card that waits: for its host, or
// for rows of another.
func printStepKernels(w io.Writer, one, many stepKernels, ranks int) error {
	share := 1 / float64(ranks)
	lines := map[string][2]float64{} // of one rank's step as many packs as a rank has, and of a rank's
	for _, k := range one.times {
		lines[k.Kernel] = [2]float64{k.Seconds * share, 0}
	}
	for _, k := range many.times {
		lines[k.Kernel] = [2]float64{lines[k.Kernel][0], k.Seconds}
	}
	var names []string
	var all, small [2]float64
	for name, of := range lines {
		for i, s := range of {
			all[i] += s
		}
		if math.Abs(of[1]-of[0]) >= smallShare*many.seconds {
			names = append(names, name)
			continue
		}
		for i, s := range of {
			small[i] += s
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		x, y := lines[a], lines[b]
		return cmp.Or(cmp.Compare(y[1]-y[0], x[1]-x[0]), cmp.Compare(a, b))
	})
	tab := tabwriter.NewWriter(w, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(tab, "\none rank / %d, ms\t%d ranks, ms\tlost\t  kernels of a step of training\n", ranks, ranks)
	line := func(name string, one, many float64) {
		fmt.Fprintf(tab, "%.3f\t%.3f\t%.3f\t  %s\n", 1e3*one, 1e3*many, 1e3*(many-one), name)
	}
	for _, name := range names {
		line(name, lines[name][0], lines[name][1])
	}
	line("others", small[0], small[1])
	line("all", all[0], all[1])
	line("the rest: a card waits", one.seconds*share-all[0], many.seconds-all[1])
	line("a step, while nothing is profiled", one.seconds*share, many.seconds)
	return tab.Flush()
}

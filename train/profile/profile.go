// Package profile tells where the time of ranks goes, kernel by kernel.
package profile

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"

	"lockstep/kernels"
	"lockstep/parallel"
)

// smallShare of a step is what a kernel has to lose or to win for a line of its own.
const smallShare = 0.001

// Step is the kernels of a step, the mean over the ranks.
type Step struct {
	Seconds float64 // of a step while nothing is profiled
	Times   []kernels.KernelTime
}

// Ranks are the devices of a world, by rank.
type Ranks []kernels.Profiler

// Of is the ranks of a world, whose devices have to time their kernels.
func Of(w *parallel.World) (p Ranks, err error) {
	for _, d := range w.Devices() {
		of, ok := d.(kernels.Profiler)
		if !ok {
			return nil, fmt.Errorf("--kernels: %s does not time its kernels: use a GPU", d.Name())
		}
		p = append(p, of)
	}
	return p, nil
}

// Start times every kernel of every rank until [Ranks.Stop].
func (p Ranks) Start() {
	for _, d := range p {
		d.StartProfile()
	}
}

// Stop returns the mean of the ranks.
func (p Ranks) Stop(w *parallel.World) (mean []kernels.KernelTime, err error) {
	of := make([][]kernels.KernelTime, len(p))
	err = w.Run(func(r *parallel.Rank) error {
		of[r.ID] = p[r.ID].StopProfile()
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, times := range of {
		mean = Add(mean, times)
	}
	for i := range mean {
		mean[i].Seconds /= float64(len(of))
	}
	return mean, nil
}

// Add adds times to a sum, kernel by kernel. The order of the sum stays.
func Add(sum, more []kernels.KernelTime) []kernels.KernelTime {
next:
	for _, k := range more {
		for i := range sum {
			if sum[i].Kernel == k.Kernel {
				sum[i].Calls, sum[i].Seconds = sum[i].Calls+k.Calls, sum[i].Seconds+k.Seconds
				continue next
			}
		}
		sum = append(sum, k)
	}
	return sum
}

// Print prints where the time of several ranks goes: what each kernel takes of a rank's step, and of one rank's for as
// many packs or answers, those that lose most first. What is left of a step is a card that waits: for its host, or for
// rows of another.
func Print(w io.Writer, step string, one, many Step, ranks int) error {
	share := 1 / float64(ranks)
	lines := map[string][2]float64{} // of one rank's step as many packs as a rank has, and of a rank's
	for _, k := range one.Times {
		lines[k.Kernel] = [2]float64{k.Seconds * share, 0}
	}
	for _, k := range many.Times {
		lines[k.Kernel] = [2]float64{lines[k.Kernel][0], k.Seconds}
	}
	var names []string
	var all, small [2]float64
	for name, of := range lines {
		for i, s := range of {
			all[i] += s
		}
		if math.Abs(of[1]-of[0]) >= smallShare*many.Seconds {
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
	fmt.Fprintf(tab, "\none rank / %d, ms\t%d ranks, ms\tlost\t  kernels of %s\n", ranks, ranks, step)
	line := func(name string, one, many float64) {
		fmt.Fprintf(tab, "%.3f\t%.3f\t%.3f\t  %s\n", 1e3*one, 1e3*many, 1e3*(many-one), name)
	}
	for _, name := range names {
		line(name, lines[name][0], lines[name][1])
	}
	line("others", small[0], small[1])
	line("all", all[0], all[1])
	line("the rest: a card waits", one.Seconds*share-all[0], many.Seconds-all[1])
	line(step+", while nothing is profiled", one.Seconds*share, many.Seconds)
	return tab.Flush()
}

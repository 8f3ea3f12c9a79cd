package bench

import (
	"context"
	"fmt"
	"io"

	"lockstep/kernels"
	"lockstep/serve"
	"lockstep/train/profile"
)

// profiledSteps is how many steps of a kind are profiled, at most.
const profiledSteps = 8

// stepKind is what a step of the engine does.
type stepKind struct {
	name string
	in   func(l serve.StepLoad) bool
}

var stepKinds = []stepKind{{"decode alone", decodes}, {"read prompts too", func(l serve.StepLoad) bool {
	return !decodes(l)
}}}

// stepProfile is what the kernels of some steps of a kind take.
type stepProfile struct {
	kind  stepKind
	steps []int   // their numbers
	timed float64 // seconds of all of them in the run before, which profiled nothing
	times []kernels.KernelTime
}

// profileSteps repeats the requests of a run up to the last step that is profiled. The same traffic takes the same
// steps, so each is profiled with the sequences and pages that it was timed with.
func profileSteps(ctx context.Context, e *serve.Engine, p kernels.Profiler, reqs []serve.Request,
	loads []serve.StepLoad) ([]stepProfile, error) {
	all, of, last := make([]stepProfile, len(stepKinds)), map[int]*stepProfile{}, -1
	for i, k := range stepKinds {
		all[i] = stepProfile{kind: k, steps: chosenSteps(loads, k)}
		for _, n := range all[i].steps {
			of[n], last = &all[i], max(last, n)
			all[i].timed += loads[n].Seconds
		}
	}
	for i, q := range reqs {
		if err := e.Submit(i, q); err != nil {
			return nil, fmt.Errorf("request %d: %w", i, err)
		}
	}
	for n := range last + 1 {
		to, before := of[n], e.Counters
		if to != nil {
			p.StartProfile()
		}
		_, err := e.Step(ctx)
		if to != nil {
			to.times = profile.Add(to.times, p.StopProfile())
		}
		if err != nil {
			return nil, err
		}
		if rows := e.Prefilled + e.Decoded - before.Prefilled - before.Decoded; rows != loads[n].Rows {
			panic(fmt.Sprintf("train: step %d of the same traffic had %d rows, then %d", n, loads[n].Rows, rows))
		}
	}
	return all, nil
}

// chosenSteps returns steps of a kind from all parts of a run. The host must have waited for the step and for the one
// before, so that its time has no part of another's.
func chosenSteps(loads []serve.StepLoad, k stepKind) (chosen []int) {
	var own []int
	for n, l := range loads {
		if k.in(l) && l.Generated > 0 && (n == 0 || loads[n-1].Generated > 0) {
			own = append(own, n)
		}
	}
	count := min(profiledSteps, len(own))
	for i := range count {
		chosen = append(chosen, own[(2*i+1)*len(own)/(2*count)])
	}
	return chosen
}

// print writes the kernels of a step next to the time that it took while nothing was profiled.
func (p *stepProfile) print(w io.Writer) {
	n := float64(len(p.steps))
	if n == 0 {
		fmt.Fprintf(w, "\nno steps that %s could be timed one by one: none were profiled\n", p.kind.name)
		return
	}
	fmt.Fprintln(w)
	busy := printKernels(w, fmt.Sprintf("%d steps that %s", len(p.steps), p.kind.name), len(p.steps), p.times)
	fmt.Fprintf(w, "Such a step takes %.3f ms while nothing is profiled and its kernels %.3f: for the rest, %.3f, "+
		"the card waits, or for more, since kernels that are launched one by one, as here, seem longer.\n",
		1e3*p.timed/n, 1e3*busy/n, 1e3*(p.timed-busy)/n)
}

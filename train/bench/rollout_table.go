package bench

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"

	"lockstep/configs"
	"lockstep/serve"
	"lockstep/train/plan"
)

// print writes the tables.
func (b *rollout) print(w io.Writer) error {
	fmt.Fprintf(w, "%s\n", b.title)
	if b.shortage != "" {
		fmt.Fprintln(w, b.shortage)
	}
	fmt.Fprintln(w)
	tab := tabwriter.NewWriter(w, 0, 8, 2, ' ', tabwriter.AlignRight)
	for _, l := range b.lines() {
		fmt.Fprintf(tab, "%s\t  %s\n", l[0], l[1])
	}
	fmt.Fprintf(tab, "\np50\tp95\tp99\t  latency\n")
	fmt.Fprintf(tab, "%.3f\t%.3f\t%.3f\t  s to the first token, from submission\n",
		percentile(b.TimeToFirstToken, 50),
		percentile(b.TimeToFirstToken, 95), percentile(b.TimeToFirstToken, 99))
	fmt.Fprintf(tab, "%.2f\t%.2f\t%.2f\t  ms between tokens\n", 1e3*percentile(b.InterTokenLatency, 50),
		1e3*percentile(b.InterTokenLatency, 95), 1e3*percentile(b.InterTokenLatency, 99))
	fmt.Fprintf(tab, "\nsteps\tms a step\tMB to read\tGB/s\tof a copy\t  steps that\n")
	for _, k := range append(slices.Clip(stepKinds), stepKind{fmt.Sprintf("are all; a copy reads and writes %.1f GB/s",
		b.copied/1e9), func(serve.StepLoad) bool {
		return true
	}}) {
		t := b.total(k.in)
		if t.steps > 0 {
			n := float64(t.steps)
			fmt.Fprintf(tab, "%d\t%.3f\t%.2f\t%.2f\t%.1f%%\t  %s\n", t.steps, 1e3*t.seconds/n, t.bytes/n/1e6,
				t.bytes/t.seconds/1e9, 100*t.bytes/b.copied/t.seconds, k.name)
		}
	}
	err := tab.Flush()
	for _, p := range b.profiles {
		p.print(w)
	}
	return err
}

// decodes tells whether every row of a step draws a token.
func decodes(l serve.StepLoad) bool { return l.Rows == l.Generated }

// stepTotal is what steps of a kind took.
type stepTotal struct {
	steps          int
	rows, drawn    int
	seconds, bytes float64
}

func (b *rollout) total(in func(l serve.StepLoad) bool) (t stepTotal) {
	for i, l := range b.StepLoads {
		if in(l) {
			t = stepTotal{t.steps + 1, t.rows + l.Rows, t.drawn + l.Generated, t.seconds + l.Seconds,
				t.bytes + float64(b.reads[i])}
		}
	}
	return t
}

// lines are values with what they are.
func (b *rollout) lines() (lines [][2]string) {
	all := b.total(func(serve.StepLoad) bool { return true })
	prompts := b.total(func(l serve.StepLoad) bool { return !decodes(l) })
	sequences, pages, most := 0, 0, 0
	for _, l := range b.StepLoads {
		sequences += len(l.Lengths)
		pages, most = pages+l.Pages, max(most, l.Pages)
	}
	n := float64(len(b.StepLoads))
	add := func(format string, value float64, what string, args ...any) {
		lines = append(lines, [2]string{fmt.Sprintf(format, value), fmt.Sprintf(what, args...)})
	}
	add("%.0f", float64(all.drawn)/b.Seconds, "output tokens/s: %d in %.2f s", all.drawn, b.Seconds)
	add("%.0f", float64(b.Prefilled)/math.Max(prompts.seconds, 1e-9), "prefill tokens/s in the steps that read "+
		"prompts, which decode too: %d computed, %d found in the cache", b.Prefilled, b.Reused)
	add("%.1f", float64(sequences)/n, "sequences in a step")
	add("%.1f%%", 100*float64(pages)/n/float64(b.Pages), "of the cache held, %.1f%% at most",
		100*float64(most)/float64(b.Pages))
	add("%.0f", float64(b.Preempted), "preemptions")
	add("%.1f", float64(b.taken)/(1<<20), "MiB of the device, %.1f by plan (weights %s, cache %s, activations %s)",
		float64(b.planned.Device())/(1<<20), plan.Size(b.planned.Weights), plan.Size(b.planned.Cache),
		plan.Size(b.planned.Activations))
	return lines
}

// percentile of ascending values, by nearest rank.
func percentile(v []float64, p int) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	return v[max((len(v)*p+99)/100, 1)-1]
}

// rolloutPeer prints the rate of the peer's generate on the same prompts.
func rolloutPeer(ctx context.Context, s *configs.Shape, o RolloutOptions, dir string, ours *rollout) error {
	rows, err := peer[workload](ctx, o.Peer, configs.TransformersRollout, dir, s.Model.DType, s.Device.Kind,
		s.Device.Threads, s.Rollout.Slots)
	if err != nil {
		return err
	}
	speed := float64(ours.total(func(serve.StepLoad) bool { return true }).drawn) / ours.Seconds
	fmt.Fprintln(o.Out)
	tab := tabwriter.NewWriter(o.Out, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(tab, "tokens/s\tlockstep is faster by\t  output\n%.0f\t-\t  lockstep\n", speed)
	for _, r := range rows {
		fmt.Fprintf(tab, "%.0f\t%.2f\t  %s\n", r.Tokens, speed/r.Tokens, r.Name)
	}
	return tab.Flush()
}

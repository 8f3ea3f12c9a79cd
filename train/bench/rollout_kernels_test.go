package bench

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/kernels/devices"
	"lockstep/parallel"
	"lockstep/serve"
	"lockstep/train/setup"
	"lockstep/train/testshape"
)

// profiled is a CPU that says each norm took it a millisecond, and each draw two.
type profiled struct {
	*cpu.Device
	on           bool
	starts       int
	norms, draws int
}

func (d *profiled) RMSNorm(out, rstd, x, w kernels.Tensor, norm kernels.Norm) {
	d.Device.RMSNorm(out, rstd, x, w, norm)
	d.norms++
}

func (d *profiled) AddRMSNorm(out, sum, rstd, x, y, w kernels.Tensor, norm kernels.Norm) {
	d.Device.AddRMSNorm(out, sum, rstd, x, y, w, norm)
	d.norms++
}

func (d *profiled) Sample(ids, logits kernels.Tensor, rows []kernels.Sampling) {
	d.Device.Sample(ids, logits, rows)
	d.draws++
}

func (d *profiled) StartProfile() {
	if d.on {
		panic("started twice")
	}
	d.on, d.starts, d.norms, d.draws = true, d.starts+1, 0, 0
}

func (d *profiled) StopProfile() []kernels.KernelTime {
	d.on = false
	return []kernels.KernelTime{{Kernel: "draw", Calls: d.draws, Seconds: 2e-3 * float64(d.draws)},
		{Kernel: "norm", Calls: d.norms, Seconds: 1e-3 * float64(d.norms)}}
}

// Some steps of each kind are profiled, one by one and after everything was timed, and are printed next to the times of
// the same steps.
func TestProfileSteps(t *testing.T) {
	s, err := testshape.Parse([]string{"rollout.slots=4", "rollout.page_rows=4", "rollout.prefill_rows=9"})
	if err != nil {
		t.Fatal(err)
	}
	host, err := devices.Open(setup.Device(s))
	if err != nil {
		t.Fatal(err)
	}
	d := &profiled{Device: host.(*cpu.Device)}
	o := RolloutOptions{Requests: 24, Samples: 2, Prompt: Span{5, 20}, New: Span{3, 9}, Seed: 2, Kernels: true}
	b := &rollout{}
	err = parallel.Run([]kernels.Device{d}, func(r *parallel.Rank) error {
		m, _, err := setup.OpenModel([]kernels.Device{d}, s)
		if err != nil {
			return err
		}
		engine := func() *serve.Engine {
			e, err := serve.NewEngine(r, m, kernels.NewArena(d), setup.EngineOptions(s))
			if err != nil {
				t.Fatal(err)
			}
			return e
		}
		reqs := o.traffic(m)
		if b.Measurement, err = engine().Measure(context.Background(), reqs); err != nil || d.starts != 0 {
			t.Errorf("%d profiles of what is timed (%v)", d.starts, err)
		}
		if b.profiles, err = profileSteps(context.Background(), engine(), d, reqs, b.StepLoads); err != nil {
			return err
		}
		defer func() {
			if recover() == nil {
				t.Error("other traffic went for the same")
			}
		}()
		_, err = profileSteps(context.Background(), engine(), d, reqs[1:], b.StepLoads)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	checkProfiles(t, d, b)
}

func checkProfiles(t *testing.T, d *profiled, b *rollout) {
	t.Helper()
	const norms = 5 // two of each of two layers, and the last
	for i, p := range b.profiles {
		timed := 0.0
		for _, n := range p.steps {
			timed += b.StepLoads[n].Seconds
			if decodes(b.StepLoads[n]) != (i == 0) {
				t.Errorf("step %d, %+v, is among those that %s", n, b.StepLoads[n], p.kind.name)
			}
		}
		want := []kernels.KernelTime{{Kernel: "draw", Calls: profiledSteps},
			{Kernel: "norm", Calls: norms * profiledSteps}}
		if len(p.steps) != profiledSteps || len(p.times) != 2 || p.times[0].Calls != want[0].Calls ||
			p.times[1].Calls != want[1].Calls || p.timed != timed || d.on {
			t.Errorf("steps %v of %d that %s took %v: %+v, want %+v", p.steps, len(b.StepLoads), p.kind.name, p.timed,
				p.times, want)
		}
		var out bytes.Buffer
		p.print(&out)
		for _, line := range []string{"8 steps that " + p.kind.name, "5.0 1000.00 5000.0 71.4% norm",
			"1.0 2000.00 2000.0 28.6% draw", "6.0 1166.67 7000.0 100.0% all", "and its kernels 7.000:"} {
			if !strings.Contains(strings.Join(strings.Fields(out.String()), " "), line) {
				t.Errorf("want %q in\n%s", line, &out)
			}
		}
	}
}

// Steps are of all parts of a run, and none whose time holds another's or ends in another's.
func TestChosenSteps(t *testing.T) {
	var loads []serve.StepLoad
	for i := range 100 {
		l := serve.StepLoad{Rows: 3, Generated: 3}
		if i%10 == 0 {
			l = serve.StepLoad{Rows: 7} // read prompts and draw nothing
		}
		loads = append(loads, l)
	}
	if got, want := chosenSteps(loads, stepKinds[0]), []int{7, 19, 33, 45, 57, 69, 83, 95}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := chosenSteps(loads[:13], stepKinds[0]); len(got) != 8 || slices.Contains(got, 1) ||
		slices.Contains(got, 11) {
		t.Errorf("%v", got)
	}
	if got := chosenSteps(loads, stepKinds[1]); got != nil {
		t.Errorf("%v draw nothing", got)
	}
	var out bytes.Buffer
	if (&stepProfile{kind: stepKinds[1]}).print(&out); !strings.Contains(out.String(), "none were profiled") {
		t.Errorf("%q", &out)
	}
}

func TestBenchRolloutKernelsOnCPU(t *testing.T) {
	s, err := testshape.Parse(nil)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err = Rollout(context.Background(), s, RolloutOptions{Requests: 1, Samples: 1, Prompt: Span{1, 1},
		New: Span{1, 1}, Kernels: true, Out: &out})
	if err == nil || !strings.Contains(err.Error(), "--kernels") || strings.Contains(err.Error(), "\n") ||
		out.Len() > 0 {
		t.Errorf("%q %v", &out, err)
	}
}

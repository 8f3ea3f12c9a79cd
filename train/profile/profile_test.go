package profile

import (
	"strings"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/parallel"
)

// profiled is a CPU that says each zeroing took it a millisecond.
type profiled struct {
	*cpu.Device
	on            bool
	starts, zeros int
}

func (d *profiled) Zero(t kernels.Tensor) {
	d.Device.Zero(t)
	d.zeros++
}

func (d *profiled) StartProfile() { d.on, d.starts, d.zeros = true, d.starts+1, 0 }

func (d *profiled) StopProfile() []kernels.KernelTime {
	d.on = false
	return []kernels.KernelTime{{Kernel: "zero", Calls: d.zeros, Seconds: 1e-3 * float64(d.zeros)}}
}

// Every rank's kernels are timed, and their mean is that of the ranks. A device that does not time its own is named.
func TestRanks(t *testing.T) {
	open := func(list ...kernels.Device) *parallel.World {
		w, err := parallel.Open(list, parallel.Mesh{Experts: 1})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { w.Close() })
		return w
	}
	plain := func() *cpu.Device {
		d, err := cpu.New(kernels.Default(), cpu.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	of := []*profiled{{Device: plain()}, {Device: plain()}}
	w := open(of[0], of[1])
	p, err := Of(w)
	if err != nil {
		t.Fatal(err)
	}
	p.Start()
	for i, n := range []int{3, 5} {
		mem := kernels.NewArena(of[i])
		for range n {
			of[i].Zero(mem.New(kernels.F32, 1, 1))
		}
	}
	times, err := p.Stop(w)
	if err != nil || len(times) != 1 || times[0].Kernel != "zero" || times[0].Seconds != 4e-3 {
		t.Errorf("%v, %v", times, err)
	}
	if of[0].starts != 1 || of[1].starts != 1 || of[0].on || of[1].on {
		t.Errorf("%d and %d profiles", of[0].starts, of[1].starts)
	}
	if _, err := Of(open(of[0], plain())); err == nil || !strings.HasPrefix(err.Error(), "--kernels: ") {
		t.Errorf("error %v", err)
	}
}

// The table compares a rank's step with one rank's for as many packs. What loses most comes first, what changes by less
// than a thousandth of a step is one line, and what kernels do not take is a line too.
func TestPrint(t *testing.T) {
	of := func(seconds float64, of ...kernels.KernelTime) Step { return Step{seconds, of} }
	one := of(0.200, kernels.KernelTime{Kernel: "adamw", Seconds: 0.020}, kernels.KernelTime{Kernel: "gemm",
		Seconds: 0.160}, kernels.KernelTime{Kernel: "norm", Seconds: 0.010})
	two := of(0.110, kernels.KernelTime{Kernel: "adamw", Seconds: 0.005}, kernels.KernelTime{Kernel: "gemm",
		Seconds: 0.083}, kernels.KernelTime{Kernel: "norm", Seconds: 0.00505}, kernels.KernelTime{Kernel: "peers",
		Seconds: 0.009})
	var out strings.Builder
	if err := Print(&out, "a step of training", one, two, 2); err != nil {
		t.Fatal(err)
	}
	want := `
  one rank / 2, ms  2 ranks, ms    lost  kernels of a step of training
             0.000        9.000   9.000  peers
            80.000       83.000   3.000  gemm
            10.000        5.000  -5.000  adamw
             5.000        5.050   0.050  others
            95.000      102.050   7.050  all
             5.000        7.950   2.950  the rest: a card waits
           100.000      110.000  10.000  a step of training, while nothing is profiled
`
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}

package bench

import (
	"context"
	"io"
	"strings"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/kernels/devices"
	"lockstep/parallel"
	"lockstep/train/setup"
	"lockstep/train/testshape"
	"lockstep/train/trainer"
)

// Every rank's kernels of one step are timed, and their mean is that of the ranks.
func TestProfileRanks(t *testing.T) {
	s, err := testshape.Parse(nil)
	if err != nil {
		t.Fatal(err)
	}
	var list []kernels.Device
	var of []*profiled
	for range 2 {
		host, err := devices.Open(setup.Device(s))
		if err != nil {
			t.Fatal(err)
		}
		of = append(of, &profiled{Device: host.(*cpu.Device)})
		list = append(list, of[len(of)-1])
	}
	w, err := parallel.Open(list, parallel.Mesh{Experts: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	steps := 0
	times, err := profileRanks(w, func() trainer.StepResult {
		steps++
		of[0].norms, of[1].norms, of[1].draws = 3, 5, 2
		return trainer.StepResult{}
	})
	if err != nil || steps != 1 {
		t.Fatalf("%d steps: %v", steps, err)
	}
	for _, k := range times {
		if want := map[string]float64{"norm": 4e-3, "draw": 2e-3}[k.Kernel]; k.Seconds != want {
			t.Errorf("%s: %v s, want %v", k.Kernel, k.Seconds, want)
		}
	}
	if len(times) != 2 || of[0].starts != 1 || of[1].starts != 1 {
		t.Errorf("%v of %d and %d profiles", times, of[0].starts, of[1].starts)
	}
}

// The table compares a rank's step with one rank's for as many packs. What loses most comes first, what changes by less
// than a thousandth of a step is one line, and what kernels do not take is a line too.
func TestPrintStepKernels(t *testing.T) {
	of := func(seconds float64, of ...kernels.KernelTime) stepKernels { return stepKernels{seconds, of} }
	one := of(0.200, kernels.KernelTime{Kernel: "adamw", Seconds: 0.020}, kernels.KernelTime{Kernel: "gemm",
		Seconds: 0.160}, kernels.KernelTime{Kernel: "norm", Seconds: 0.010})
	two := of(0.110, kernels.KernelTime{Kernel: "adamw", Seconds: 0.005}, kernels.KernelTime{Kernel: "gemm",
		Seconds: 0.083}, kernels.KernelTime{Kernel: "norm", Seconds: 0.00505}, kernels.KernelTime{Kernel: "peers",
		Seconds: 0.009})
	var out strings.Builder
	if err := printStepKernels(&out, one, two, 2); err != nil {
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
           100.000      110.000  10.000  a step, while nothing is profiled
`
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}

// A device that does not time its kernels is named.
func TestKernelsOfRanksOnCPU(t *testing.T) {
	s, err := testshape.Parse([]string{"parallel.ranks=2", "run.packs=2"})
	if err != nil {
		t.Fatal(err)
	}
	err = Ranks(context.Background(), s, RanksOptions{Steps: 1, Kernels: true, Out: io.Discard})
	if err == nil || !strings.Contains(err.Error(), "--kernels: ") || strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v", err)
	}
}

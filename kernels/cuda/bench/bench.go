//go:build cuda

package bench

import (
	"slices"
	"time"

	"gorgonia.org/cu"

	"lockstep/kernels"
	"lockstep/kernels/cuda"
	"lockstep/kernels/cuda/driver"
)

// Result is one line of a benchmark of the device.
type Result struct {
	Case    string
	Seconds float64 // of one run, median
	Flops   float64 // floating-point operations of the tensor cores; 0: bound by memory
	Bytes   float64 // that have to be read and written
	Note    string  // behind the case, for people
	Peer    string  // what the case is called by a peer; "": as here
}

const samples = 7

// Time is the median seconds of run, enqueued so often that a sample takes about each/samples.
func Time(d *cuda.Device, each time.Duration, run func()) float64 {
	sample := func(reps int) float64 {
		d.Wait()
		start := time.Now()
		for range reps {
			run()
		}
		d.Wait()
		return time.Since(start).Seconds() / float64(reps)
	}
	sample(1) // first use
	reps := max(1, int(each.Seconds()/samples/sample(1)))
	var seconds []float64
	for range samples {
		seconds = append(seconds, sample(reps))
	}
	slices.Sort(seconds)
	return seconds[len(seconds)/2]
}

// Copy is the rate of a copy in the card's memory, the ceiling of operations that memory bounds.
func Copy(d *cuda.Device, each time.Duration) Result {
	const bytes = 1 << 30
	defer d.Release(d.Held())
	mem := kernels.NewArena(d)
	from, to := mem.New(kernels.F32, 1, bytes/4), mem.New(kernels.F32, 1, bytes/4)
	return Result{Case: "copy of 1 GiB", Bytes: 2 * bytes, Seconds: Time(d, each, func() {
		d.Do(func() error { return cu.MemcpyDtoD(driver.Address(to), driver.Address(from), bytes) })
	})}
}

//go:build cuda

package cuda

import (
	"slices"
	"time"

	"gorgonia.org/cu"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

// BenchResult is one line of a benchmark of the device.
type BenchResult struct {
	Case    string
	Seconds float64 // of one run, median
	Flops   float64 // floating-point operations of the tensor cores; 0: bound by memory
	Bytes   float64 // that have to be read and written
}

const benchSamples = 7

// time is the median seconds of run, enqueued so often that a sample takes about each/benchSamples.
func (d *Device) time(each time.Duration, run func()) float64 {
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
	reps := max(1, int(each.Seconds()/benchSamples/sample(1)))
	var seconds []float64
	for range benchSamples {
		seconds = append(seconds, sample(reps))
	}
	slices.Sort(seconds)
	return seconds[len(seconds)/2]
}

// wait is Sync for benchmarks.
func (d *Device) wait() { d.Do(cu.Synchronize) }

// BenchCopy is the rate of a copy in the card's memory, the ceiling of operations that memory bounds.
func (d *Device) BenchCopy(each time.Duration) BenchResult {
	const bytes = 1 << 30
	defer d.Release(d.Held())
	mem := kernels.NewArena(d)
	from, to := mem.New(kernels.F32, 1, bytes/4), mem.New(kernels.F32, 1, bytes/4)
	return BenchResult{Case: "copy of 1 GiB", Bytes: 2 * bytes, Seconds: d.time(each, func() {
		d.Do(func() error { return cu.MemcpyDtoD(driver.Address(to), driver.Address(from), bytes) })
	})}
}

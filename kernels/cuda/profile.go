//go:build cuda

package cuda

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"lockstep/kernels"
)

// StartProfile makes every kernel wait for its end and be timed, so the device is slower until StopProfile.
func (d *Device) StartProfile() { d.profile = map[string]*kernels.KernelTime{} }

// StopProfile ends it and returns the kernels, most time first.
func (d *Device) StopProfile() []kernels.KernelTime {
	var times []kernels.KernelTime
	for _, name := range slices.Sorted(maps.Keys(d.profile)) {
		times = append(times, *d.profile[name])
	}
	slices.SortStableFunc(times, func(a, b kernels.KernelTime) int { return cmp.Compare(b.Seconds, a.Seconds) })
	d.profile = nil
	return times
}

// timed runs a launch between two waits.
func (d *Device) timed(kernel string, launch func() error) error {
	d.wait()
	start := time.Now()
	if err := launch(); err != nil {
		return err
	}
	d.wait()
	t := d.profile[kernel]
	if t == nil {
		t = &kernels.KernelTime{Kernel: kernel}
		d.profile[kernel] = t
	}
	t.Calls++
	t.Seconds += time.Since(start).Seconds()
	return nil
}

//go:build cuda

package driver

import (
	"cmp"
	"errors"
	"maps"
	"slices"

	"gorgonia.org/cu"

	"lockstep/kernels"
)

// profile is the launches since StartProfile, each between two events of the card's clock.
type profile []struct {
	kernel     string
	start, end cu.Event
}

// StartProfile times every kernel until StopProfile; repeated sequences are launched one by one meanwhile.
func (c *Context) StartProfile() { c.profile = &profile{} }

// StopProfile returns the kernels, most time first.
func (c *Context) StopProfile() []kernels.KernelTime {
	byName := map[string]*kernels.KernelTime{}
	c.Wait()
	c.Do(func() error {
		for _, l := range *c.profile {
			ms, err := l.start.Elapsed(l.end)
			if err := errors.Join(err, cu.DestroyEvent(&l.start), cu.DestroyEvent(&l.end)); err != nil {
				return err
			}
			t := byName[l.kernel]
			if t == nil {
				t = &kernels.KernelTime{Kernel: l.kernel}
				byName[l.kernel] = t
			}
			t.Calls++
			t.Seconds += ms / 1e3
		}
		return nil
	})
	c.profile = nil
	var times []kernels.KernelTime
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		times = append(times, *byName[name])
	}
	slices.SortStableFunc(times, func(a, b kernels.KernelTime) int { return cmp.Compare(b.Seconds, a.Seconds) })
	return times
}

// tick is a moment of the card's clock.
type tick struct{ *event }

// Tick is the moment when everything enqueued so far is done.
func (c *Context) Tick() kernels.Tick {
	c.cutSegment()
	e := c.transfers.ticks.take(c)
	c.Do(func() error { return e.event.Record(cu.NoStream) })
	return tick{e}
}

// Since is the seconds since an earlier tick.
func (t tick) Since(earlier kernels.Tick) (seconds float64) {
	t.context.Do(func() error {
		ms, err := earlier.(tick).event.event.Elapsed(t.event.event)
		seconds = ms / 1e3
		return err
	})
	return seconds
}

// time runs a launch between two events.
func (p *profile) time(kernel string, launch func() error) error {
	start, err := mark()
	if err != nil {
		return err
	}
	if err := launch(); err != nil {
		return err
	}
	end, err := mark()
	*p = append(*p, struct {
		kernel     string
		start, end cu.Event
	}{kernel, start, end})
	return err
}

// mark is an event after everything enqueued.
func mark() (cu.Event, error) {
	e, err := cu.MakeEvent(cu.DefaultEvent)
	if err != nil {
		return e, err
	}
	return e, e.Record(cu.NoStream)
}

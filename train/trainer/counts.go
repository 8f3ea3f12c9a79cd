package trainer

import "lockstep/kernels"

// Counted calls body and returns what that asked of the device: launches, allocations and waits. A device without
// counters gives zeros.
func Counted(d kernels.Device, body func()) kernels.Counts {
	c, ok := d.(kernels.Counter)
	if !ok {
		body()
		return kernels.Counts{}
	}
	before := c.Counts()
	body()
	after := c.Counts()
	return kernels.Counts{Launches: after.Launches - before.Launches, Allocations: after.Allocations -
		before.Allocations, Waits: after.Waits - before.Waits}
}

package train

import (
	"fmt"

	"lockstep/kernels"
	"lockstep/kernels/devices"
)

// openGauge finds the gauge of a GPU. A machine without one trains all the same.
func (j *job) openGauge() {
	gauge, err := devices.OpenGauge(j.s.Device.Kind)
	if err != nil {
		j.note("the metrics lack the GPU's usage: %v", err)
		return
	}
	j.gauge = gauge
}

// usage adds the GPU's figures to a record and returns them for the progress line.
func (j *job) usage(rec *Record) []string {
	if j.gauge == nil {
		return nil
	}
	u, err := j.gauge.Usage()
	if err != nil {
		j.note("from here the metrics lack the GPU's usage: %v", err)
		j.gauge = nil
		return nil
	}
	rec.GPUBusy, rec.GPUMemory, rec.GPUWatts = Num(u.Busy), u.Memory, Num(u.Watts)
	return []string{fmt.Sprintf("GPU %.0f%%, %.1f GiB, %.0f W", 100*u.Busy, float64(u.Memory)/(1<<30), u.Watts)}
}

// counted is what body asks of a device that counts.
func counted(d kernels.Device, body func()) kernels.Counts {
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

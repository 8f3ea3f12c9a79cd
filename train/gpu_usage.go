package train

import (
	"fmt"

	"lockstep/kernels/devices"
	"lockstep/train/runlog"
)

// openGauge opens the usage counters of a GPU. Where that fails, the run goes on without them.
func (j *job) openGauge() {
	gauge, err := devices.OpenGauge(j.shape.Device.Kind)
	if err != nil {
		j.note("GPU usage is not logged: %v", err)
		return
	}
	j.gauge = gauge
}

// usage adds the GPU's figures to a record and returns them for the progress line.
func (j *job) usage(rec *runlog.Record) []string {
	if j.gauge == nil {
		return nil
	}
	u, err := j.gauge.Usage()
	if err != nil {
		j.note("GPU usage is not logged from here on: %v", err)
		j.gauge = nil
		return nil
	}
	rec.GPUBusy, rec.GPUMemory, rec.GPUWatts = runlog.Num(u.Busy), u.Memory, runlog.Num(u.Watts)
	return []string{fmt.Sprintf("GPU %.0f%%, %.1f GiB, %.0f W", 100*u.Busy, float64(u.Memory)/(1<<30), u.Watts)}
}

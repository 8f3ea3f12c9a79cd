package train

import (
	"fmt"

	"lockstep/kernels"
	"lockstep/kernels/devices"
	"lockstep/parallel"
	"lockstep/train/runlog"
)

// openGauges opens the usage counters of the ranks' GPUs. Where that fails, the run goes on without them.
func (j *job) openGauges() {
	gauges, err := devices.OpenGauges(j.shape.Device.Kind, j.shape.Parallel.Ranks)
	if err != nil {
		j.note("GPU usage is not logged: %v", err)
	}
	j.gauges = gauges
}

// usage adds the GPUs' figures to a record, and what each of several ranks has done in so many seconds. It returns the
// fields of the progress line.
func (j *job) usage(rec *runlog.Record, seconds float64) (fields []string) {
	all := j.readGauges()
	if len(all) > 0 {
		u := all[0]
		rec.GPUBusy, rec.GPUMemory, rec.GPUWatts = runlog.Num(u.Busy), u.Memory, runlog.Num(u.Watts)
		fields = append(fields, fmt.Sprintf("GPU %.0f%%, %.1f GiB, %.0f W", 100*u.Busy, float64(u.Memory)/(1<<30),
			u.Watts))
	}
	if j.world == nil {
		return fields
	}
	for _, dev := range j.world.Devices() {
		rec.Pinned += int64(kernels.Pinned(dev))
	}
	tallies := j.world.Tallies()
	for _, t := range tallies {
		rec.FromHost += int64(t.FromHost)
	}
	if len(tallies) == 1 {
		return fields
	}
	rec.Ranks = j.rankRecords(all, tallies, seconds)
	return append(fields, rankFields(rec.Ranks))
}

// readGauges reads all gauges; none where one fails, which is told once.
func (j *job) readGauges() (all []kernels.Usage) {
	for _, g := range j.gauges {
		u, err := g.Usage()
		if err != nil {
			j.note("GPU usage is not logged from here on: %v", err)
			j.gauges = nil
			return nil
		}
		all = append(all, u)
	}
	return all
}

// rankRecords is what the ranks have done in so many seconds.
func (j *job) rankRecords(all []kernels.Usage, tallies []parallel.Tally, seconds float64) (list []runlog.RankRecord) {
	for i, t := range tallies {
		waited := t.Waited.Seconds()
		r := runlog.RankRecord{Rows: t.Rows, Busy: runlog.Number(max(1-waited/seconds, 0)),
			Waited: runlog.Number(waited), Memory: int64(kernels.Allocated(j.world.Devices()[i])),
			Pinned: int64(kernels.Pinned(j.world.Devices()[i]))}
		if i < len(all) {
			r.Busy, r.Watts = runlog.Number(all[i].Busy), runlog.Num(all[i].Watts)
		}
		if t.Share > 0 {
			r.ExpertShare = runlog.Num(t.Share)
		}
		list = append(list, r)
	}
	return list
}

// rankFields is the progress line's field of several ranks: "4 ranks 91% to 97% busy, 0.12 s waited, experts 31%".
func rankFields(list []runlog.RankRecord) string {
	least, most, waited, share := list[0].Busy, list[0].Busy, list[0].Waited, 0.0
	for _, r := range list {
		least, most, waited = min(least, r.Busy), max(most, r.Busy), max(waited, r.Waited)
		if r.ExpertShare != nil {
			share = max(share, float64(*r.ExpertShare))
		}
	}
	text := fmt.Sprintf("%d ranks %.0f%% to %.0f%% busy, %.2f s waited", len(list), 100*float64(least),
		100*float64(most), float64(waited))
	if share > 0 {
		text += fmt.Sprintf(", experts %.0f%%", 100*share)
	}
	return text
}

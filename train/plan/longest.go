package plan

import "lockstep/train/trainer"

// longestSequence is the longest pack of one sequence that fits on every rank, one in each lane at a time, with full
// recompute, and whether it is the longest that the model has positions for. have and hostRoom are the bytes of a
// device and of the host.
func (p *Plan) longestSequence(have, hostRoom int) (rows int, bounded bool) {
	s := *p.s
	s.Run.MicroBatch, s.Run.Packs = s.Parallel.Interleave, s.Parallel.Ranks*s.Parallel.Interleave
	o := trainer.Options{MicroBatch: s.Run.MicroBatch, Interleave: s.Parallel.Interleave, Context: s.Parallel.Context,
		PipelineSchedule: s.Pipeline.Schedule, PipelineAhead: s.Pipeline.Ahead, Keep: p.Model.Everywhere(0)}
	var by []*trainer.Trainer
	for i, r := range p.ranks() {
		if last := len(p.static) - 1; p.Model.Stages() > 0 || i == last { // which has as much as any
			by = append(by, trainer.New(r, p.models()[i], o))
		}
	}
	takes := func(rows int) int {
		p.clearStacks()
		if segment := s.Definition.Segment; s.Parallel.Context > 1 { // the last rank then has as much as any
			rows = (rows + segment - 1) / segment * segment
		}
		for _, t := range by {
			t.Peak(s.Run.Packs, rows)
		}
		device, host := 0, 0
		for i, of := range p.static {
			r := by[min(i, len(by)-1)].Rank
			n := of.Total() + activations(r)
			if host += of.Host + pinnedPeak(r); s.Device.Kind == "cpu" {
				device += n
			} else {
				device = max(device, n)
			}
		}
		if s.Device.Kind == "cpu" {
			return device + host
		}
		return max(device, have+host-hostRoom) // within what a device has where both are
	}
	return longestRows(p.Model.MaxLength, have, takes)
}

// rowGrid is what longest sequences are multiples of.
const rowGrid = 64

// longestRows is the largest multiple of the grid up to most whose bytes fit into room; 0: none. Bytes grow about
// linearly with rows, so it searches along a line through what it knows.
func longestRows(most, room int, takes func(rows int) int) (rows int, bounded bool) {
	if most <= rowGrid || takes(most) <= room {
		if most <= rowGrid && takes(most) > room {
			return 0, false
		}
		return most, true
	}
	low, high := 0, (most+rowGrid-1)/rowGrid // in units of the grid: fits, does not fit
	lowBytes, highBytes := 0, takes(most)
	for tries := 0; high-low > 1; tries++ {
		at := low + (high-low)/2
		if tries%3 < 2 && highBytes > lowBytes {
			at = low + int(float64(high-low)*float64(room-lowBytes)/float64(highBytes-lowBytes))
			at = min(max(at, low+1), high-1)
		}
		if n := takes(at * rowGrid); n <= room {
			low, lowBytes = at, n
		} else {
			high, highBytes = at, n
		}
	}
	return low * rowGrid, false
}

package plan

import "lockstep/train/trainer"

// longestSequence is the longest pack of one sequence that fits on every rank, one in each lane at a time, with full
// recompute, and whether it is the longest that the model has positions for. have and hostRoom are the bytes of a
// device and of the host.
func (p *Plan) longestSequence(have, hostRoom int) (rows int, bounded bool) {
	s := *p.s
	s.Run.MicroBatch, s.Run.Packs = s.Parallel.Interleave, s.Parallel.Ranks*s.Parallel.Interleave
	ranks, room := p.ranks(), have
	taken := 0
	for _, of := range p.static {
		hostRoom -= of.Host
		if s.Device.Kind == "cpu" {
			taken += of.Total() + of.Host
		} else {
			taken = max(taken, of.Total())
		}
	}
	room -= taken
	last := trainer.New(ranks[len(ranks)-1], p.models()[len(ranks)-1], trainer.Options{MicroBatch: s.Run.MicroBatch,
		Interleave: s.Parallel.Interleave, Context: s.Parallel.Context, Keep: p.Model.Everywhere(0)})
	takes := func(rows int) int {
		p.clearStacks()
		if segment := s.Definition.Segment; s.Parallel.Context > 1 { // the last rank then has as much as any
			rows = (rows + segment - 1) / segment * segment
		}
		last.Peak(s.Run.Packs, rows)
		n, pinned := activations(last.Rank), len(ranks)*pinnedPeak(last.Rank)
		if s.Device.Kind == "cpu" {
			return n*len(ranks) + pinned
		}
		return max(n, room+pinned-hostRoom) // within room where both are
	}
	return longestRows(p.Model.MaxLength, room, takes)
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

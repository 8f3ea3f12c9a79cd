package trainer

import (
	"math"

	"lockstep/kernels"
	"lockstep/model"
	"lockstep/parallel"
)

// place is what one rank computes of a step in a round: place p is that of rank p modulo their number. Sums of
// gradients pass from place to place, so places have the segments of a step in order.
type place struct {
	micro int // a micro-batch; below 0: nothing
	part  int // of it, among
	parts int // so many, which the consecutive ranks of a context compute; 1: the rank computes all of it
}

// alone is the place of a rank that computes all of a micro-batch.
var alone = place{parts: 1}

// hole is the place of a rank that waits for the next context to begin.
var hole = place{micro: -1, parts: 1}

// dealt is the places of micro-batches. One with a segment for each of context ranks is divided over so many. A shorter
// one is divided over fewer, which divide context: no rank gets more than one segment in two of its own.
func dealt(micros [][][]Sample, context, segment int) (places []place) {
	for i, packs := range micros {
		parts := contextOf(segments(packs, segment), context)
		for len(places)%parts != 0 {
			places = append(places, hole)
		}
		for part := range parts {
			places = append(places, place{i, part, parts})
		}
	}
	return places
}

// contextOf is the most ranks, a divisor of context, that get a segment each.
func contextOf(segments, context int) int {
	for n := min(segments, context); n > 1; n-- {
		if context%n == 0 {
			return n
		}
	}
	return 1
}

// segments is how many packs have, of so many rows.
func segments(packs [][]Sample, rows int) (n int) {
	for i := range packs {
		n += (CountRows(packs[i:i+1]) + rows - 1) / rows
	}
	return n
}

// batchPart is consecutive segments of a batch: rows [from, to).
type batchPart struct {
	*Batch
	from, to int
	layout   *kernels.Layout // of these rows
	context  *model.Context  // nil: they are all
}

// part is that of a place. Segments are dealt evenly; the last part has the most.
func (b *Batch) part(p place) batchPart {
	of := batchPart{Batch: b, to: len(b.IDs), layout: b.Layout}
	if p.parts == 1 {
		return of
	}
	bounds := b.Layout.Segments
	n := len(bounds) - 1
	own := bounds[p.part*n/p.parts : (p.part+1)*n/p.parts+1]
	of.from, of.to = int(own[0]), int(own[len(own)-1])
	of.context = &model.Context{Ranks: p.parts, From: of.from, Layout: b.Layout}
	of.layout = &kernels.Layout{}
	for _, at := range own {
		of.layout.Segments = append(of.layout.Segments, at-own[0])
	}
	for _, s := range b.Layout.Spans {
		if first, end := max(s.Row, of.from), min(s.Row+s.Rows, of.to); first < end {
			of.layout.Spans = append(of.layout.Spans, kernels.Span{Row: first - of.from, Rows: end - first,
				Pos: first - s.Row, Shift: of.from + s.Row - first})
		}
	}
	return of
}

func (p batchPart) rows() int { return p.to - p.from }

// ranks is how many the batch is divided over.
func (p batchPart) ranks() int {
	if p.context == nil {
		return 1
	}
	return p.context.Ranks
}

// upload is the part as a batch of the model.
func (p batchPart) upload(r *parallel.Rank) *model.Batch {
	on := model.NewBatch(r, p.IDs[p.from:p.to], p.layout, nil)
	on.Context = p.context
	return on
}

// targets uploads what the rows are to predict, and at which temperature.
func (p batchPart) targets(r *parallel.Rank) model.Targets {
	t := model.Targets{IDs: parallel.Upload(r, p.Rows.Targets[p.from:p.to])}
	if p.Inverse != nil {
		t.Inverse = parallel.Upload(r, p.Inverse[p.from:p.to])
	}
	return t
}

// gathered is the log-probabilities of all parts' rows, from those of this one's, on every rank that has a part.
func (p batchPart) gathered(r *parallel.Rank, own []float32) (all []float32) {
	if p.context == nil {
		return own
	}
	bits := make([]int32, len(own))
	for i, v := range own {
		bits[i] = int32(math.Float32bits(v))
	}
	for _, part := range r.Context(p.context.Ranks).ShareNumbers(bits) {
		for _, v := range part {
			all = append(all, math.Float32frombits(uint32(v)))
		}
	}
	return all
}

// joined gives the batch of place i the log-probabilities of all its parts, where that is the last of them.
func joined(done []MicroBatch, places []place, i int) bool {
	p := places[i]
	if p.part < p.parts-1 {
		return false
	}
	rows := &done[i].Rows
	rows.LogProb = nil
	for _, m := range done[i-p.part : i+1] {
		rows.LogProb = append(rows.LogProb, m.known...)
	}
	return true
}

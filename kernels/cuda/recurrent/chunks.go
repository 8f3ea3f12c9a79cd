//go:build cuda

package recurrent

import (
	"fmt"
	"math"

	"gorgonia.org/cu"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

// pairsBytes is the size of Pairs in chunks_backward.cu.
const pairsBytes = 4 * (4*chunksChunk*(chunksChunk+1) + 6*chunksChunk + 256 + 2*32*(chunksTile+4))

// MaxKeyDim is how many keys' columns a block has shared memory for, in addition to what chunks.cu declares.
const MaxKeyDim = 512

// chunked is one call of a recurrence by rule 4 of the definition (kernels.Recurrent): the delta rule, or a state
// space.
type chunked struct {
	d         *Ops
	r         kernels.Recurrence
	delta     bool
	rows      int
	heads     chunksHeads
	q, k, v   kernels.Tensor
	g, b, dt  kernels.Tensor
	skip      kernels.Tensor
	state     kernels.ChunkState // zero: spans start at position 0
	cuts      []chunksCut
	sequences []chunksSequence

	// On the card.
	cutsAt                              driver.Array[chunksCut]
	parts                               []chunkedPart
	queries, keys, c, factor, pairs, ms cu.DevicePtr
}

// chunkedPart is consecutive sequences of a call that are computed at once, and their cuts. Backward has memory for the
// states of so many cuts.
type chunkedPart struct {
	cuts, sequences int
	cutsAt          driver.Array[chunksCut]
	sequencesAt     driver.Array[chunksSequence]
}

// prepare cuts the spans into parts of at most so many cuts, and takes the workspace and so many more floats of it.
func (op *chunked) prepare(s *kernels.ChunkState, l *kernels.Layout, most int, more ...int) []cu.DevicePtr {
	r := op.r
	op.rows = op.v.Rows
	if r.KeyHeads <= 0 || r.Heads%r.KeyHeads != 0 || op.q.Cols != r.KeyHeads*r.KeyDim || op.k.Cols != op.q.Cols ||
		op.v.Cols != r.Heads*r.ValueDim {
		panic(fmt.Sprintf("cuda: recurrence %+v of queries %s, keys %s, values %s", r, op.q, op.k, op.v))
	}
	if r.KeyDim > MaxKeyDim {
		panic(kernels.Fault{Err: fmt.Errorf("recurrences on the GPU support keys of up to %d columns, not %d",
			MaxKeyDim, r.KeyDim)})
	}
	if s != nil {
		op.state = *s
	}
	op.heads = chunksHeads{keyHeads: driver.Int32(r.KeyHeads), heads: driver.Int32(r.Heads),
		dim:    driver.Int32(r.KeyDim),
		values: driver.Int32(r.ValueDim), delta: int32(driver.Flag(op.delta))}
	op.cut(l, most)
	keys, pairs := op.rows*r.KeyHeads*r.KeyDim, op.rows*r.Heads*chunksChunk
	if !op.delta {
		pairs = 0
	}
	parts := op.d.Floats(append([]int{keys, keys, op.rows * r.Heads, op.rows * r.Heads, op.rows * r.Heads * chunksChunk,
		pairs}, more...)...)
	op.queries, op.keys, op.c, op.factor, op.pairs, op.ms = parts[0], parts[1], parts[2], parts[3], parts[4], parts[5]
	op.cutsAt = driver.Stage(op.d.Context, op.cuts)
	at, sequences := op.cutsAt, driver.Stage(op.d.Context, op.sequences)
	for i := range op.parts {
		p := &op.parts[i]
		p.cutsAt, p.sequencesAt = at, sequences
		at, sequences = at.From(p.cuts), sequences.From(p.sequences)
	}
	return parts[6:]
}

// cut cuts spans at multiples of chunksChunk positions, and puts sequences into parts of at most so many cuts. A
// sequence's first cut is counted from that of its part.
func (op *chunked) cut(l *kernels.Layout, most int) {
	for _, s := range l.Spans {
		if op.state.S.IsNil() && s.Pos != 0 || s.Row+s.Rows > op.rows {
			panic(fmt.Sprintf("cuda: recurrence of %d rows with span %+v", op.rows, s))
		}
		first := len(op.cuts)
		for r := 0; r < s.Rows; {
			from := (s.Pos + r) % chunksChunk
			n := min(chunksChunk-from, s.Rows-r)
			op.cuts = append(op.cuts, chunksCut{row: int32(s.Row + r), from: int32(from), rows: int32(n),
				slot: int32(s.Slot)})
			r += n
		}
		n := len(op.cuts) - first
		if len(op.parts) == 0 || op.parts[len(op.parts)-1].cuts+n > most {
			op.parts = append(op.parts, chunkedPart{})
		}
		p := &op.parts[len(op.parts)-1]
		op.sequences = append(op.sequences, chunksSequence{first: int32(p.cuts), count: int32(n), slot: int32(s.Slot),
			fresh: int32(driver.Flag(s.Pos == 0))})
		p.cuts, p.sequences = p.cuts+n, p.sequences+1
	}
}

// chunks is the part of a call that has no order: queries and keys, c, P and M of all rows.
func (op *chunked) chunks() {
	d, r, state := op.d, op.r, op.state
	for _, x := range []struct {
		to    cu.DevicePtr
		from  kernels.Tensor
		scale float32
	}{{op.queries, op.q, queryScale(r.KeyDim)}, {op.keys, op.k, 1}} {
		launchChunkRows(d.Context, driver.Suffix(x.from), driver.WarpGrid(op.rows*r.KeyHeads), driver.WarpThreads, 0,
			x.to, x.from, op.rows, r.KeyHeads, r.KeyDim, x.from.Stride, driver.Flag(op.delta), x.scale)
	}
	stride := op.b.Stride
	if !op.delta {
		stride = op.dt.Stride
	}
	launchChunkPairs(d.Context, driver.Suffix(op.v), [3]int{len(op.cuts), r.Heads, 1}, chunksThreads, 0, &op.heads,
		op.c, op.factor, op.pairs, op.ms, op.queries, op.keys, op.g, op.b, op.dt, op.cutsAt, state.S, state.K, state.N,
		state.C, op.g.Stride, stride)
}

// queryScale is KeyDim^-0.5.
func queryScale(dim int) float32 { return float32(1 / math.Sqrt(float64(dim))) }

// scan is how a part's sequences are scanned: a block for so many values of each head of each sequence, with so many
// threads and bytes of shared memory, by teams where it has a multiprocessor alone for more than a cut or two.
type scan struct {
	teams          bool
	values         int
	grid           [3]int
	variant        string
	threads, bytes int
}

// leastValues is the fewest values of a block, teamCuts how many cuts sequences have on average where teams scan them.
const (
	leastValues = 16
	teamCuts    = 2
)

// mostOf32 is the most columns of keys for which a team's block of 32 values has shared memory for two states.
const mostOf32 = 128

// scan takes the most values a block, of 64, 32 and 16, unless half as many would still be one block on each
// multiprocessor. rows is how many rows of values a block without teams has in addition to the state. The choice
// changes no bit.
func (op *chunked) scan(p chunkedPart, rows int) scan {
	s, blocks := scan{values: chunksTile}, func(values int) int {
		return p.sequences * op.r.Heads * driver.Blocks(op.r.ValueDim, values)
	}
	long := p.cuts >= teamCuts*p.sequences
	tooWide := func() bool { return long && s.values == 2*leastValues && op.r.KeyDim > mostOf32 }
	for s.values > leastValues && (blocks(s.values/2) <= op.d.Processors || tooWide()) {
		s.values /= 2
	}
	s.grid = [3]int{p.sequences, op.r.Heads, driver.Blocks(op.r.ValueDim, s.values)}
	s.variant = fmt.Sprintf("_%d%s", s.values, driver.Suffix(op.v))
	if s.teams = long && s.values < chunksTile; s.teams {
		stride := s.values + s.values/teamsTeamAcross
		s.threads, s.bytes = teamsTeamThreads, 4*(teamsTeamFloats+2*(op.r.KeyDim+chunksChunk)*stride)
	} else {
		stride := s.values + s.values/chunkScansAcross
		s.threads, s.bytes = chunksThreads, 4*(chunkScansFloats+(op.r.KeyDim+rows)*stride)
	}
	return s
}

// walk takes the chunks of each sequence of a part in order: to out, or for the backward to the three others.
func (op *chunked) walk(p chunkedPart, out kernels.Tensor, states, added, reads cu.DevicePtr) {
	s, scan := op.state, op.scan(p, chunksChunk)
	if scan.teams {
		launchTeamScan(op.d.Context, scan.variant, scan.grid, scan.threads, scan.bytes, &op.heads, out, states, added,
			reads, op.queries, op.keys, op.v, op.c, op.factor, op.pairs, op.ms, op.skip, p.sequencesAt, p.cutsAt, s.S,
			s.K, s.N, s.C, out.Stride, op.v.Stride)
		return
	}
	launchChunkScan(op.d.Context, scan.variant, scan.grid, scan.threads, scan.bytes, &op.heads, out, states, added,
		reads, op.queries, op.keys, op.v, op.c, op.factor, op.pairs, op.ms, op.skip, p.sequencesAt, p.cutsAt, s.S, s.K,
		s.N, s.C, out.Stride, op.v.Stride)
}

// forward writes the rows of all spans to out and moves the states.
func (op *chunked) forward(out kernels.Tensor, s *kernels.ChunkState, l *kernels.Layout) {
	op.prepare(s, l, math.MaxInt)
	op.chunks()
	for _, p := range op.parts {
		op.walk(p, out, 0, 0, 0)
		if s != nil {
			launchChunkKeep(op.d.Context, [3]int{p.sequences, 1, 1}, chunksThreads, 0, &op.heads, op.keys, op.c,
				p.sequencesAt, p.cutsAt, s.K, s.C)
		}
	}
}

// DeltaRule is kernels.DeltaNet's: q, k [T, KeyHeads*KeyDim], v, out [T, Heads*ValueDim], g F32 [T, Heads], b [T,
// Heads].
func (d *Ops) DeltaRule(out kernels.Tensor, x kernels.DeltaRuleOperands, s *kernels.ChunkState, l *kernels.Layout,
	r kernels.Recurrence) {
	op := chunked{d: d, r: r, delta: true, q: x.Q, k: x.K, v: x.V, g: x.G, b: x.B}
	op.forward(out, s, l)
}

// StateSpace is kernels.Mamba's: c, b [T, KeyHeads*KeyDim], x, out [T, Heads*ValueDim], g, dt F32 [T, Heads], skip F32
// [1, Heads].
func (d *Ops) StateSpace(out kernels.Tensor, x kernels.StateSpaceOperands, s *kernels.ChunkState, l *kernels.Layout,
	r kernels.Recurrence) {
	op := chunked{d: d, r: r, q: x.C, k: x.B, v: x.X, g: x.G, dt: x.DT, skip: x.Skip}
	op.forward(out, s, l)
}

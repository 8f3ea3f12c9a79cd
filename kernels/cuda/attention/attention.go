//go:build cuda

package attention

import (
	"fmt"
	"math"
	"slices"

	"gorgonia.org/cu"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

const (
	gradientTeams    = attentionBackwardWideTeams  // warpgroups of a block of the backward with wgmma that compute
	gradientStages   = attentionBackwardWideStages // blocks that it holds
	gradientRowsWide = gradientTeams * 64
	attentionRowsFew = 32                        // the most of a block that decodes
	attentionThreads = 128                       // of a block of attentionRows
	gradientThreads  = (gradientTeams + 1) * 128 // and a warpgroup that copies
	keyRows          = attentionRows             // keys of a block of the online softmax
)

// headDims are the widths of heads, of keys and values alike, that attention is compiled for with small tiles for
// decoding; headDimsLatent those of keys and of values of latent attention, which has none of these; headDimsWide those
// of keys and of values for wgmma.
var (
	headDims       = []int{16, 32, 64, 96, 128}
	headDimsLatent = [][2]int{{24, 16}, {192, 128}, {256, 256}, {24, 24}}
	headDimsWide   = [][2]int{{64, 64}, {128, 128}, {192, 128}, {256, 256}}
)

// Latent tells whether a shape is one of headDimsLatent.
func Latent(a kernels.Attn) bool {
	return slices.Contains(headDimsLatent, [2]int{a.HeadDim, a.Values()})
}

// widths names the kernels of a shape.
func widths(a kernels.Attn) string {
	if a.Values() == a.HeadDim {
		return fmt.Sprint(a.HeadDim)
	}
	return fmt.Sprintf("%d_%d", a.HeadDim, a.Values())
}

// steps rounds a width up to whole steps of the dot.
func steps(width int) int { return driver.Blocks(width, 16) * 16 }

// stageBytes is rows of keys and of values in shared memory.
func stageBytes(a kernels.Attn, keyRows, valueRows int) int {
	return 2 * (keyRows*(steps(a.HeadDim)+8) + valueRows*(steps(a.Values())+8))
}

// Attention: rule 2 of the definition, stated whole in kernels/cpu/attention.go.
func (d *Ops) Attention(out, lse, q kernels.Tensor, kv kernels.KV, l *kernels.Layout, a kernels.Attn) {
	mustAttendTo(kv, a, q, out)
	if Absorbed(a) {
		d.attendAbsorbed(out, lse, q, kv, kernels.Tensor{}, l, a)
		return
	}
	p := d.plans.of(d.Def, kv, l, a, d.teams(a), d.room())
	at := driver.Stage(d.Context, p.words)
	if d.wide(a) {
		d.attendWide(&p.many, at, out, lse, q, kv, a)
	} else {
		d.attendPortable(&p.many, at, out, lse, q, kv, a)
	}
	if fewPortable(kv, a) {
		d.attendPortable(&p.few, at, out, lse, q, kv, a)
	} else {
		d.attendFew(&p.few, at, out, lse, q, kv, a)
	}
}

// wide tells whether heads are of a width for which the card has kernels with wgmma.
func (d *Ops) wide(a kernels.Attn) bool {
	compiled := d.Has(kernelAttentionWide128)
	return compiled && d.Path != "portable" && slices.Contains(headDimsWide, [2]int{a.HeadDim, a.Values()})
}

// teams is Crew of attention_wide.cuh: the warpgroups of a block that compute its forward; 0 where it is not by wgmma.
func (d *Ops) teams(a kernels.Attn) int {
	switch {
	case !d.wide(a):
		return 0
	case a.HeadDim == 64:
		return 3
	}
	return 2
}

// attendWide runs tiles of many queries by wgmma. Totals of heads of 256 come before numbers that were in codes.
func (d *Ops) attendWide(w *attentionWork, at driver.Array[int32], out, lse, q kernels.Tensor, kv kernels.KV,
	a kernels.Attn) {
	threads, totals := d.teams(a)*128, 0
	shared := attentionWideWideSlots*a.HeadDim/64*warpgroupPanel + (a.Values()/2+4)*threads*4
	if a.HeadDim == 256 {
		totals = 4 * d.Processors * attentionWide256Total * threads
		shared = attentionWide256Slots*a.HeadDim/64*warpgroupPanel + d.teams(a)*attentionWide256Queries
	}
	group, room := a.Heads/a.KVHeads, d.room()
	for i := range w.calls {
		c, count := &w.calls[i], a.KVHeads
		if kv.Codes != nil {
			count = min(max(room/(c.expanded*expandedBytes(a)), 1), count)
		}
		for head := 0; head < a.KVHeads; head += count {
			n, read := min(count, a.KVHeads-head), kv
			if kv.Codes != nil {
				read = d.expand(c, at, kv, a, head, n, totals)
			}
			of := func(t kernels.Tensor, width int) kernels.Tensor {
				return t.ColRange(head*group*width, (head+n)*group*width)
			}
			maps, box := d.keyMaps(read, a)
			if totals > 0 {
				launchAttentionRounds(d.Context, "_"+widths(a), [3]int{min(d.Processors, len(c.tiles)*n), 1, 1},
					threads+128, shared, &maps, of(out, a.Values()), of(lse, 1), of(q, a.HeadDim), d.Scratch(totals),
					driver.Array[attentionTile](at.From(c.tilesAt)), at, len(c.tiles), n, box, group, out.Stride,
					lse.Stride, q.Stride, read.PageRows, a.Window, d.Def.KeySplit, scoreScale(a))
				continue
			}
			launchAttentionWide(d.Context, "_"+widths(a), [3]int{len(c.tiles), n, 1}, threads+128, shared, &maps,
				of(out, a.Values()), of(lse, 1), of(q, a.HeadDim), driver.Array[attentionTile](at.From(c.tilesAt)), at,
				box, group, out.Stride, lse.Stride, q.Stride, read.PageRows, a.Window, d.Def.KeySplit, scoreScale(a))
		}
	}
}

// room is how much of the workspace results of splits, or keys and values that were in codes, may take.
func (d *Ops) room() int { return 4 * d.ChunkBytes }

// attendPortable runs tiles of attentionRows rows.
func (d *Ops) attendPortable(w *attentionWork, at driver.Array[int32], out, lse, q kernels.Tensor, kv kernels.KV,
	a kernels.Attn) {
	for _, c := range w.calls {
		if kv.Codes != nil {
			launchAttentionCodes(d.Context, "_"+widths(a), [3]int{len(c.tiles), a.KVHeads, 1}, attentionThreads,
				stageBytes(a, attentionRows+2*keyRows, 2*keyRows), out, lse, q, inCodes(kv.K, kv.Codes.KScales),
				inCodes(kv.V, kv.Codes.VScales), driver.Array[attentionTile](at.From(c.tilesAt)), at, d.partials(w, a),
				at.From(w.doneAt), a.Heads/a.KVHeads, out.Stride, lse.Stride, q.Stride, kv.PageRows, a.Window,
				scoreScale(a))
			continue
		}
		launchAttention(d.Context, "_"+widths(a), [3]int{len(c.tiles), a.KVHeads, 1}, attentionThreads,
			stageBytes(a, attentionRows+2*keyRows, 2*keyRows), out, lse, q, kv.K, kv.V,
			driver.Array[attentionTile](at.From(c.tilesAt)), at, d.partials(w, a), at.From(w.doneAt), a.Heads/a.KVHeads,
			out.Stride, lse.Stride, q.Stride, kv.K.Stride, kv.V.Stride, kv.PageRows, a.Window, scoreScale(a))
	}
}

const decodeThreads = (attentionDecodeTeam + 1) * 32 // of a block: warps that compute and one that copies

// attendFew runs tiles of up to attentionRowsFew rows. A block holds so many key blocks of K and V in flight; it holds
// fewer where several share a multiprocessor: of heads of 128 three blocks that hold four are faster than two of six.
func (d *Ops) attendFew(w *attentionWork, at driver.Array[int32], out, lse, q kernels.Tensor, kv kernels.KV,
	a kernels.Attn) {
	for _, c := range w.calls {
		grid, slots := len(c.tiles)*a.KVHeads, attentionDecodeMostSlots
		switch {
		case grid > 2*d.Processors && a.HeadDim > 64:
			slots = 4
		case grid > d.Processors:
			slots = 6
		}
		maps, box := d.keyMaps(kv, a)
		if kv.Codes != nil {
			if grid > d.Processors && a.HeadDim > 64 {
				slots = 5
			}
			launchAttentionDecodeCodes(d.Context, fmt.Sprintf("_%d_%d", a.HeadDim, w.rows/8), [3]int{grid, 1, 1},
				decodeThreads, slots*codeSlot(a.HeadDim), &maps, inCodes(kv.K, kv.Codes.KScales),
				inCodes(kv.V, kv.Codes.VScales), out, lse, q, driver.Array[attentionTile](at.From(c.tilesAt)), at,
				d.partials(w, a), at.From(w.doneAt), slots, box, a.KVHeads, a.Heads/a.KVHeads, out.Stride, lse.Stride,
				q.Stride, kv.PageRows, a.Window, scoreScale(a))
			continue
		}
		launchAttentionDecode(d.Context, fmt.Sprintf("_%d_%d", a.HeadDim, w.rows/8), [3]int{grid, 1, 1}, decodeThreads,
			slots*driver.Blocks(a.HeadDim, 64)*warpgroupPanel, &maps, out, lse, q,
			driver.Array[attentionTile](at.From(c.tilesAt)), at, d.partials(w, a), at.From(w.doneAt), slots, box,
			a.KVHeads, a.Heads/a.KVHeads, out.Stride, lse.Stride, q.Stride, kv.PageRows, a.Window, scoreScale(a))
	}
}

// keyMaps describes K and V for copies of 64 columns, or of a head in codes, and as many rows of a key block as lie
// together in any page.
func (d *Ops) keyMaps(kv kernels.KV, a kernels.Attn) (maps keysMaps, box int) {
	box = boxRows(kv)
	if kv.Codes != nil {
		wide := codeRow(a.HeadDim)
		return keysMaps{d.BoxesOf(kv.K, wide, box, wide), d.BoxesOf(kv.V, wide, box, wide)}, box
	}
	return keysMaps{d.Boxes(kv.K, box), d.Boxes(kv.V, box)}, box
}

// boxRows is as many rows of a key block as lie together in any page.
func boxRows(kv kernels.KV) int {
	if kv.PageRows > 0 {
		return min(keyRows, kv.PageRows&-kv.PageRows)
	}
	return keyRows
}

// partials is memory for the results of splits.
func (d *Ops) partials(w *attentionWork, a kernels.Attn) cu.DevicePtr {
	if w.slots == 0 {
		return 0
	}
	return d.Scratch(int(w.slots) * w.slotBytes(a))
}

func scoreScale(a kernels.Attn) float32 { return float32(a.Scale * math.Log2E) }

// keyThreads are those of a block that takes dk and dv: key_teams of gradients.cuh.
func keyThreads(a kernels.Attn) int {
	if steps(a.HeadDim)+steps(a.Values()) > 384 {
		return 2 * attentionThreads
	}
	return attentionThreads
}

// AttentionBackward is for unpaged layouts; dq, dk, dv are written.
func (d *Ops) AttentionBackward(dq, dk, dv, dout, out, lse, q kernels.Tensor, kv kernels.KV, l *kernels.Layout,
	a kernels.Attn) {
	mustAttend(a, q, kv.K, kv.V, out, dout, dq, dk, dv)
	if Absorbed(a) {
		d.gradientsAbsorbed(dq, dk, dv, dout, out, lse, q, kv, kernels.Tensor{}, l, a)
		return
	}
	rows, group := l.Rows(), a.Heads/a.KVHeads
	delta := d.Scratch(4 * rows * a.Heads)
	launchAttentionDelta(d.Context, driver.WarpGrid(rows*a.Heads), driver.WarpThreads, 0, delta, dout, out, rows,
		a.Heads, a.Values(), dout.Stride, out.Stride)
	if d.wide(a) {
		maps := attentionBackwardWideGradMaps{keysMaps{d.Boxes(kv.K, keyRows), d.Boxes(kv.V, keyRows)},
			d.Boxes(q, keyRows), d.Boxes(dout, keyRows)}
		if a.HeadDim == 256 {
			d.gradients256(&maps, dq, dk, dv, lse, delta, l, a)
		} else {
			d.gradientsWide(&maps, dq, dk, dv, dout, lse, q, delta, l, a)
		}
		return
	}
	shared := stageBytes(a, 2*attentionRows, 2*attentionRows)
	queries, keys := attentionParts(l, attentionRows, true), attentionParts(l, attentionRows, false)
	launchAttentionDq(d.Context, "_"+widths(a), [3]int{len(queries), a.Heads, 1}, attentionThreads, shared, dq, dout,
		lse, delta, q, kv.K, kv.V, driver.Stage(d.Context, queries), group, dq.Stride, dout.Stride, lse.Stride,
		q.Stride, kv.K.Stride, kv.V.Stride, a.Window, scoreScale(a), float32(a.Scale))
	launchAttentionDkv(d.Context, "_"+widths(a), [3]int{len(keys), a.KVHeads, 1}, keyThreads(a), shared, dk, dv, dout,
		lse, delta, q, kv.K, kv.V, driver.Stage(d.Context, keys), group, dk.Stride, dv.Stride, dout.Stride, lse.Stride,
		q.Stride, kv.K.Stride, kv.V.Stride, a.Window, scoreScale(a), float32(a.Scale))
}

// gradientsWide is dq, dk and dv by wgmma.
func (d *Ops) gradientsWide(maps *attentionBackwardWideGradMaps, dq, dk, dv, dout, lse, q kernels.Tensor,
	delta cu.DevicePtr, l *kernels.Layout, a kernels.Attn) {
	// bytes of a block of keys and values; of the queries that dq keeps in shared memory
	slot, group, own := keyRows*2*(a.HeadDim+a.Values()), a.Heads/a.KVHeads, 0
	if a.HeadDim > 128 {
		own = gradientTeams * slot
	}
	queries, keys := attentionParts(l, gradientRowsWide, true), attentionParts(l, gradientRowsWide, false)
	launchAttentionDqWide(d.Context, "_"+widths(a), [3]int{len(queries), a.Heads, 1}, gradientThreads,
		own+gradientStages*slot, maps, dq, dout, lse, delta, q, driver.Stage(d.Context, queries), group, dq.Stride,
		dout.Stride, lse.Stride, q.Stride, a.Window, scoreScale(a), float32(a.Scale))
	launchAttentionDkvWide(d.Context, "_"+widths(a), [3]int{len(keys), a.KVHeads, 1}, gradientThreads,
		gradientTeams*slot+gradientStages*(slot+2*4*keyRows), maps, dk, dv, lse, delta, driver.Stage(d.Context, keys),
		group, dk.Stride, dv.Stride, lse.Stride, a.Window, scoreScale(a), float32(a.Scale))
}

// gradients256 is the same of heads of 256.
func (d *Ops) gradients256(maps *attentionBackwardWideGradMaps, dq, dk, dv, lse kernels.Tensor, delta cu.DevicePtr,
	l *kernels.Layout, a kernels.Attn) {
	const pair, stages = attentionBackward256Pair, attentionBackward256QueryStages
	group, queries, keys := a.Heads/a.KVHeads, attentionParts(l, 2*keyRows, true), attentionParts(l, keyRows, false)
	launchAttentionDqApart(d.Context, "_256", [3]int{len(queries), a.Heads, 1}, attentionBackward256Threads+128,
		2*pair+(attentionBackward256KeyStages+1)*pair/2, maps, dq, lse, delta, driver.Stage(d.Context, queries), group,
		dq.Stride, lse.Stride, a.Window, scoreScale(a), float32(a.Scale))
	launchAttentionDkvApart(d.Context, "_256", [3]int{len(keys), a.KVHeads, 1}, attentionBackward256Threads+128,
		pair+stages*(pair+2*4*keyRows)+attentionBackward256Hands*attentionBackward256HandBytes, maps, dk, dv, lse,
		delta, driver.Stage(d.Context, keys), group, dk.Stride, dv.Stride, lse.Stride, a.Window, scoreScale(a),
		float32(a.Scale))
}

// attentionParts cuts every span into so many positions; those with most work come first: late queries, early keys.
func attentionParts(l *kernels.Layout, positions int, late bool) (parts []attentionPart) {
	for _, s := range l.Spans {
		for at := 0; at < s.Rows; at += positions {
			parts = append(parts, attentionPart{row: int32(s.Row), rows: int32(s.Rows), at: int32(at)})
		}
	}
	work := func(p attentionPart) int {
		if late {
			return int(p.at)
		}
		return int(p.rows - p.at)
	}
	slices.SortStableFunc(parts, func(x, y attentionPart) int { return work(y) - work(x) })
	return parts
}

// Supports tells whether the kernels are written for a shape.
func Supports(a kernels.Attn) bool {
	if a.Latent {
		return Absorbed(a) && a.Window == 0
	}
	written := slices.Contains(headDims, a.HeadDim) && a.Values() == a.HeadDim || Latent(a)
	return written && a.Heads%a.KVHeads == 0 && a.Heads/a.KVHeads <= attentionRows
}

// mustAttendTo is mustAttend with keys and values, which may be in codes.
func mustAttendTo(kv kernels.KV, a kernels.Attn, ts ...kernels.Tensor) {
	if kv.Codes == nil {
		ts = append(ts, kv.K, kv.V)
	}
	mustAttend(a, ts...)
}

// mustAttend panics with what the kernels cannot do.
func mustAttend(a kernels.Attn, ts ...kernels.Tensor) {
	driver.MustBF16(ts...)
	bad := !Supports(a)
	for _, t := range ts {
		bad = bad || !driver.Aligned16(t)
	}
	if bad {
		panic(kernels.Fault{Err: fmt.Errorf("attention on the GPU supports heads of %v, latent ones of %v, up "+
			"to %d queries a key, and absorbed ones of %v, not %+v on %v", headDims, headDimsLatent, attentionRows,
			headDimsAbsorbed, a, ts)})
	}
}

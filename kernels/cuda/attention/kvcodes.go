//go:build cuda

package attention

import (
	"gorgonia.org/cu"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
	"lockstep/quant"
)

// inCodes is keys or values in codes as kernels read them.
func inCodes(codes, scales kernels.Tensor) *kvcodesCodes {
	return &kvcodesCodes{codes: driver.At(codes), scales: driver.At(scales), stride: driver.Int32(codes.Stride),
		scaleStride: driver.Int32(scales.Stride)}
}

// storeCodes puts rows k and v into the codes of pages, at rows `to`. Where values are columns of their keys (absorbed
// latent attention) these alone are in codes, and the others are moved as they are.
func (d *Ops) storeCodes(cache kernels.KV, k, v kernels.Tensor, to []int32) {
	c, at, parts := cache.Codes, driver.Stage(d.Context, to), 2
	if cache.K.Data == cache.V.Data {
		parts = 1
		if r := c.Rotated; !r.IsNil() {
			own := k.ColRange(v.Cols, k.Cols)
			launchStoreKv(d.Context, driver.PartGrid(rowsMoved, len(to), r.Cols), driver.WarpThreads, 0, r, r, own, own,
				at, len(to), r.Cols, 0, r.Stride, r.Stride, k.Stride, k.Stride)
		}
		k = v
	}
	threads := len(to) * max(c.KScales.Cols, c.VScales.Cols) * (encodeINT4Group / 8)
	launchStoreKvCodes(d.Context, [3]int{driver.Blocks(threads, driver.ElementThreads), parts, 1},
		driver.ElementThreads, 0, inCodes(cache.K, c.KScales), inCodes(cache.V, c.VScales), k, v, at, len(to), c.Heads,
		k.Cols/c.Heads, v.Cols/c.Heads, k.Stride, v.Stride)
}

// codeRow is kWide of attention_decode_codes.cu: bytes of a row of codes in shared memory.
func codeRow(width int) int {
	switch {
	case width <= 32:
		return 32
	case width <= 64:
		return 64
	}
	return 128
}

// fewPortable tells whether few queries have the kernel of many: of heads for which attention_decode.cu is not
// compiled, and of pages in codes of which TMA, whose copies begin at multiples of 128 bytes, could bring only less at
// once.
func fewPortable(kv kernels.KV, a kernels.Attn) bool {
	return Latent(a) || kv.Codes != nil && boxRows(kv)*codeRow(a.HeadDim) < 128
}

// codeSlot is what a slot of the ring of codes takes: those of a key block, and its scales in bf16.
func codeSlot(width int) int {
	return keyRows * (codeRow(width) + 2*quant.MXFP8.Format().Blocks(width))
}

// expandedBytes is a row of a KV head that [Ops.expand] has made numbers of.
func expandedBytes(a kernels.Attn) int { return 2 * (a.HeadDim + a.Values()) }

// expand makes numbers of KV heads [head, head+count) of the rows of pages that a call reads, in the workspace behind
// so many bytes.
func (d *Ops) expand(c *attentionCall, at driver.Array[int32], kv kernels.KV, a kernels.Attn, head,
	count, behind int) kernels.KV {
	rows, p := c.expanded, d.Scratch(behind+c.expanded*count*expandedBytes(a))+cu.DevicePtr(behind)
	numbers := func(width int) kernels.Tensor {
		t := kernels.Tensor{Data: driver.Pointer(p), DType: kernels.BF16, Groups: 1, Rows: rows, Cols: count * width,
			Stride: count * width}
		p += 2 * cu.DevicePtr(rows*count*width)
		return t
	}
	out := kernels.KV{K: numbers(a.HeadDim), V: numbers(a.Values())}
	launchExpandKv(d.Context, [3]int{len(c.pieces), 2, 1}, driver.ElementThreads, 0, out.K, out.V,
		inCodes(kv.K, kv.Codes.KScales), inCodes(kv.V, kv.Codes.VScales),
		driver.Array[kvcodesExpanded](at.From(c.piecesAt)), at, head, count, a.HeadDim, a.Values(), kv.PageRows)
	return out
}

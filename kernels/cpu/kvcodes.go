package cpu

import (
	"fmt"

	"lockstep/kernels"
	"lockstep/kernels/cpu/gemm"
	"lockstep/quant"
)

var _ kernels.QuantizedCache = (*Device)(nil)

// CheckQuantizedCache accepts every shape.
func (d *Device) CheckQuantizedCache(kernels.Attn) error { return nil }

// storeCodes puts rows k and v into the codes of pages. Of absorbed attention v is the columns in codes, and k has the
// rotated ones behind them.
func (d *Device) storeCodes(cache kernels.KV, k, v kernels.Tensor, l *kernels.Layout) {
	c := cache.Codes
	shared := cache.K.Data == cache.V.Data
	if rotated := k.Cols - cache.K.Cols; cache.PageRows <= 0 || k.DType != c.DType || v.DType != c.DType ||
		v.Cols != cache.V.Cols || rotated != c.Rotated.Cols || rotated > 0 && !shared {
		panic(fmt.Sprintf("cpu: StoreKV of %s and %s in pages of %d rows of codes %s and %s", k, v, cache.PageRows,
			cache.K, cache.V))
	}
	keys, values := d.matrix(k), d.matrix(v)
	toKeys := d.codedHeads(cache, cache.K, c.KScales, kernels.Tensor{})
	toValues := d.codedHeads(cache, cache.V, c.VScales, kernels.Tensor{})
	d.eachCached(cache, l, func(at, row int) {
		toValues.encodeRow(at, values.load(row, make([]float32, v.Cols)))
		if !shared {
			toKeys.encodeRow(at, keys.load(row, make([]float32, k.Cols)))
		} else if c.Rotated.Cols > 0 {
			copyRow(c.Rotated, at, k.ColRange(v.Cols, k.Cols), row)
		}
	})
}

// codedHeads are the heads of keys or of values in codes.
type codedHeads struct {
	codes, scales []byte
	width, blocks int // of a head
	heads         int
	rotated       *matrix // columns behind those in codes; nil: none
}

func (d *Device) codedHeads(kv kernels.KV, codes, scales, rotated kernels.Tensor) *codedHeads {
	c := kv.Codes
	out := &codedHeads{codes: codes.Raw(), scales: scales.Raw(), width: codes.Cols / c.Heads,
		blocks: scales.Cols / c.Heads, heads: c.Heads}
	if !rotated.IsNil() {
		m := d.matrix(rotated)
		out.rotated = &m
	}
	return out
}

// encodeRow puts a row of numbers into codes and scales.
func (c *codedHeads) encodeRow(at int, numbers []float32) {
	scales := make([]float32, c.blocks)
	for h := range c.heads {
		i := at*c.heads + h
		quant.MXFP8.Encode(c.codes[i*c.width:][:c.width], scales, numbers[h*c.width:][:c.width], 1, c.width)
		for b, s := range scales {
			c.scales[i*c.blocks+b] = quant.CodeOfScale(s)
		}
	}
}

// copyRows fills rows of dst with a head of rows of the pages that follow each other. What MXFP8 leaves of bf16 numbers
// are such numbers, subnormal ones too: they need no second rounding.
func (c *codedHeads) copyRows(mm *gemm.Engine, s *gemm.Scratch, dst []float32, row, rows, head int) {
	at, stride := row*c.heads+head, len(dst)/rows
	mm.DequantizeMXFP8(s, dst, stride, c.codes[at*c.width:], c.heads*c.width, c.scales[at*c.blocks:], c.heads*c.blocks,
		rows, c.width)
	if c.rotated != nil {
		for i := range rows {
			c.rotated.copyHead(dst[i*stride+c.width:(i+1)*stride], row+i, 0)
		}
	}
}

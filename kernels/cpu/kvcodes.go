package cpu

import (
	"fmt"

	"lockstep/kernels"
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

// copyHead fills dst with a head of a row. What MXFP8 leaves of bf16 numbers are such numbers, subnormal ones too: they
// need no second rounding.
func (c *codedHeads) copyHead(dst []float32, row, head int) {
	i, f := row*c.heads+head, quant.MXFP8.Format()
	codes := c.codes[i*c.width:][:c.width]
	for b, power := range c.scales[i*c.blocks:][:c.blocks] {
		part := dst[b*f.Wide : min((b+1)*f.Wide, c.width)]
		f.Decode(part, codes, b*f.Wide, quant.PowerOfTwo(power))
	}
	if c.rotated != nil {
		c.rotated.copyHead(dst[c.width:], row, 0)
	}
}

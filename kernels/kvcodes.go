package kernels

import "lockstep/quant"

// KVCodes says what the codes of pages stand for: E4M3 of MXFP8, U8, one for each column of keys and values. Where
// values are columns of their keys (absorbed latent attention), these alone are in codes: K is V then.
type KVCodes struct {
	KScales, VScales Tensor // U8 (E8M0), [pages*PageRows, KVHeads*blocks of 32 columns of a head]
	Rotated          Tensor // the keys' other columns, numbers [pages*PageRows, HeadDim-ValueDim]; nil: there are none
	DType            DType  // storage type of the numbers
	Heads            int    // of a row
}

// QuantizedCache is a Device with pages in codes: StoreKV encodes keys and values, and Attention and SparseAttend read
// what [QuantizedProducts].FakeQuantizeHeads would leave of them.
type QuantizedCache interface {
	// CheckQuantizedCache returns nil where the device has such pages for a shape of attention, otherwise the reason.
	CheckQuantizedCache(a Attn) error
}

// NewQuantizedKV is pages of MXFP8 for numbers of a storage type; absorbed: values are columns of their keys.
func NewQuantizedKV(mem *Arena, d DType, a Attn, absorbed bool, rows, pageRows int) KV {
	heads := func(width int) (codes, scales Tensor) {
		return mem.New(U8, rows, a.KVHeads*width), mem.New(U8, rows, a.KVHeads*quant.MXFP8.Format().Blocks(width))
	}
	kv := KV{PageRows: pageRows, Codes: &KVCodes{DType: d, Heads: a.KVHeads}}
	kv.V, kv.Codes.VScales = heads(a.Values())
	if !absorbed {
		kv.K, kv.Codes.KScales = heads(a.HeadDim)
		return kv
	}
	kv.K, kv.Codes.KScales = kv.V, kv.Codes.VScales
	if r := a.HeadDim - a.Values(); r > 0 {
		kv.Codes.Rotated = mem.New(d, rows, r)
	}
	return kv
}

// QuantizedKVBytes is the memory of so many rows of [NewQuantizedKV].
func QuantizedKVBytes(d DType, a Attn, absorbed bool, rows int) int {
	head := func(width int) int { return width + quant.MXFP8.Format().Blocks(width) }
	n := a.KVHeads * head(a.Values())
	if absorbed {
		return rows * (n + (a.HeadDim-a.Values())*d.Size())
	}
	return rows * (n + a.KVHeads*head(a.HeadDim))
}

// Type is the storage type of the keys' and values' numbers.
func (kv KV) Type() DType {
	if kv.Codes != nil {
		return kv.Codes.DType
	}
	return kv.K.DType
}

// RowBytes is what a row of keys and values holds.
func (kv KV) RowBytes() int {
	n := (kv.K.Cols + kv.V.Cols) * kv.K.DType.Size()
	if c := kv.Codes; c != nil {
		n += c.KScales.Cols + c.VScales.Cols + c.Rotated.Cols*c.DType.Size()
	}
	return n
}

package model

import (
	"fmt"

	"lockstep/kernels"
	"lockstep/parallel"
	"lockstep/quant"
)

// Cache is what the mixers keep of the sequences in flight.
type Cache struct {
	Layers []LayerCache // by block
	Size   CacheSize
}

// LayerCache is the part of one mixer, zero where a block has none.
type LayerCache struct {
	KV        kernels.KV // of attention: pages of keys and values
	IndexKeys kernels.KV // of an indexer: pages of keys
	// of a recurrent layer: the state of its heads with the rows of the present chunk, and the last inputs of its
	// convolution, [slots, taps-1, C]
	State kernels.ChunkState
	Conv  kernels.Tensor
}

// readBy is what a block's attention reads: the batch's keys and values, or the pages that they go to where it has a
// cache. Where Definition.Cache rounds them it does so in their place, which a second Forward repeats without a change,
// and Backward reads what Forward has read. Pages in codes round by themselves.
func (o *operations) readBy(r *parallel.Rank, kv kernels.KV, a kernels.Attn, block int, b *Batch) kernels.KV {
	var pages kernels.KV
	if b.Cache != nil {
		pages = b.Cache.Layers[block].KV
	}
	if r.Dev.Definition().Cache != quant.AsTrained && pages.Codes == nil {
		if kv.K.Data != kv.V.Data { // else values are the columns of the keys that are not rotated
			o.coder.FakeQuantizeHeads(kv.K, a.HeadDim)
		}
		o.coder.FakeQuantizeHeads(kv.V, a.Values())
	}
	if b.Cache == nil {
		return kv
	}
	r.Dev.StoreKV(pages, kv.K, kv.V, b.Layout)
	return pages
}

// newKV is pages of keys and values, in codes where the device has such pages; absorbed: values are the first columns
// of their keys.
func (o *operations) newKV(mem *kernels.Arena, d kernels.DType, a kernels.Attn, absorbed bool,
	s CacheSize) kernels.KV {
	rows := s.Pages * s.PageRows
	if o.inCodes(a) {
		return kernels.NewQuantizedKV(mem, d, a, absorbed, rows, s.PageRows)
	}
	kv := kernels.KV{K: mem.New(d, rows, a.KVHeads*a.HeadDim), PageRows: s.PageRows}
	if absorbed {
		kv.V = kv.K.ColRange(0, a.ValueDim)
	} else {
		kv.V = mem.New(d, rows, a.KVHeads*a.Values())
	}
	return kv
}

// kvBytes is the memory of so many rows of newKV.
func (o *operations) kvBytes(d kernels.DType, a kernels.Attn, absorbed bool, rows int) int {
	switch {
	case o.inCodes(a):
		return kernels.QuantizedKVBytes(d, a, absorbed, rows)
	case absorbed:
		return rows * a.HeadDim * d.Size()
	}
	return rows * a.KVHeads * (a.HeadDim + a.Values()) * d.Size()
}

func (o *operations) inCodes(a kernels.Attn) bool {
	if o.pages == nil {
		return false
	}
	err := o.pages.CheckQuantizedCache(a)
	if o.refusedPages == nil {
		o.refusedPages = err
	}
	return err == nil
}

// PagesOpened is a line about keys and values that lie in pages as numbers where Definition.Cache has codes for them:
// why the device refuses codes of the first layer that has none; "": it refuses none.
func (m *Model) PagesOpened() string {
	m.CacheBytes(1) // asks for every layer
	if m.ops.refusedPages == nil {
		return ""
	}
	return fmt.Sprintf("cache: pages hold %s, rounded to %s, and no codes (%v)", m.DType, m.dev.Definition().Cache,
		m.ops.refusedPages)
}

// CacheSize sizes a cache: pages of PageRows positions, which sequences take as they grow, and slots, of which each
// sequence in flight has one.
type CacheSize struct{ Pages, PageRows, Slots int }

// NewCache allocates the cache of every layer.
func (m *Model) NewCache(mem *kernels.Arena, s CacheSize) *Cache {
	c := &Cache{Layers: make([]LayerCache, len(m.Blocks)), Size: s}
	for i, bl := range m.Blocks {
		if mixer := bl.mixer(); mixer != nil {
			c.Layers[m.Layer(i)] = mixer.NewCache(mem, s)
		}
	}
	return c
}

// CacheBytes is the memory of one page of so many rows, and of one slot, in all layers.
func (m *Model) CacheBytes(pageRows int) (page, slot int) {
	for _, bl := range m.Blocks {
		if mixer := bl.mixer(); mixer != nil {
			page += mixer.PageBytes(pageRows)
			slot += mixer.SlotBytes()
		}
	}
	return page, slot
}

// recurrentState is the cache of a block, or none: without one sequences start at position 0.
func recurrentState(b *Batch, block int) (*kernels.ChunkState, kernels.Tensor) {
	if b.Cache == nil {
		return nil, kernels.Tensor{}
	}
	c := &b.Cache.Layers[block]
	return &c.State, c.Conv
}

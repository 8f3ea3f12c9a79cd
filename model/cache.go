package model

import (
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

// roundKV rounds keys or values [T, heads*width] as Definition.Cache says, in their place.
func roundKV(r *parallel.Rank, ops *operations, x kernels.Tensor, width int) {
	if r.Dev.Definition().Cache != quant.AsTrained {
		ops.coder.FakeQuantizeHeads(x, width)
	}
}

// CacheSize sizes a cache: pages of PageRows positions, which sequences take as they grow, and slots, of which each
// sequence in flight has one.
type CacheSize struct{ Pages, PageRows, Slots int }

// NewCache allocates the cache of every layer.
func (m *Model) NewCache(mem *kernels.Arena, s CacheSize) *Cache {
	c := &Cache{Layers: make([]LayerCache, len(m.Blocks)), Size: s}
	for i, bl := range m.Blocks {
		if mixer := bl.mixer(); mixer != nil {
			c.Layers[i] = mixer.NewCache(mem, s)
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

func newRecurrentCache(mem *kernels.Arena, s CacheSize, r kernels.Recurrence, conv *Param) LayerCache {
	w := conv.W
	return LayerCache{
		State: kernels.NewChunkState(mem, r, s.Slots, kernels.Default().ChunkRows),
		Conv:  mem.NewGrouped(w.DType, s.Slots, w.Cols-1, w.Rows),
	}
}

func recurrentSlotBytes(r kernels.Recurrence, conv *Param) int {
	return kernels.ChunkStateBytes(r, kernels.Default().ChunkRows) + (conv.W.Cols-1)*conv.W.Rows*conv.W.DType.Size()
}

// recurrentState is the cache of a block, or none: without one sequences start at position 0.
func recurrentState(b *Batch, block int) (*kernels.ChunkState, kernels.Tensor) {
	if b.Cache == nil {
		return nil, kernels.Tensor{}
	}
	c := &b.Cache.Layers[block]
	return &c.State, c.Conv
}

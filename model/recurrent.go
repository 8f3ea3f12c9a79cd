package model

import (
	"math"

	"lockstep/kernels"
)

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

// decay is the parameters of the heads' decays, F32 whatever the model's storage: g = -exp(Rate) * clamp(softplus(a +
// Bias), Lo, Hi).
type decay struct {
	Rate, Bias *Param // [1, heads]; A_log and dt_bias
	Lo, Hi     float32
}

// forever is an upper bound of steps that bounds nothing.
var forever = float32(math.Inf(1))

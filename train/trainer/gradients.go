package trainer

import (
	"crypto/sha256"
	"slices"
	"unsafe"

	"lockstep/parallel"
)

// Gradients returns the SHA-256 of each parameter's gradient over packs, in the order of the graph. Nothing is updated,
// and all gradients are 0 afterwards.
func (t *Trainer) Gradients(packs [][]Sample) (sums [][sha256.Size]byte) {
	defer t.Rank.Stack.Release(t.Rank.Stack.Mark())
	for micro := range slices.Chunk(packs, t.MicroBatch) {
		t.ForwardBackward(micro)
	}
	t.Model.FinishGradients(t.Rank)
	for _, p := range t.Model.Trained() {
		v := parallel.Download[float32](t.Rank, p.Grad)
		sums = append(sums, sha256.Sum256(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v))))
		t.Rank.Dev.Zero(p.Grad)
	}
	return sums
}

package serve

import (
	"fmt"
	"math/bits"
	"slices"

	"lockstep/kernels"
)

// A decoding step is a repeated sequence of operations, on a GPU a CUDA graph. There is one for each of some numbers of
// sequences, as vLLM's cudagraph_capture_sizes: a step takes the next larger one, and up to mostPadded sequences its
// batch is filled up to it. So its kernels and their parameters are those of the last step of that size, and the graph
// is launched as it is. Without, each sequence that ends changes the parameters of every kernel.

// mostPadded is up to how many sequences a batch is filled up. Kernels of 64 rows take as long as of one; those of some
// hundred take less longer than a host takes to change the parameters of a graph's kernels.
const mostPadded = 512

// paddedLength is up to how many positions a sequence has whose row fills a batch up: its keys are read again.
const paddedLength = 512

// captureSize is the smallest number of sequences with a graph of its own that is at least n: 1, 2, 4, multiples of 8
// up to 64, four up to each next power of two as far as mostPadded, then powers of two, whose batches are not filled
// up.
func captureSize(n int) int {
	size := 1 << bits.Len(uint(max(n, 1)-1))
	if 4 < n && n <= mostPadded {
		step := max(8, size/8)
		return (n + step - 1) / step * step
	}
	return size
}

// fillsUp tells whether the batches of a decoding step may have the row of a sequence several times: not where it would
// change a recurrent state each time, and where the device repeats no sequence of operations there is nothing to gain.
func fillsUp(d kernels.Device, slotBytes int) bool {
	_, repeats := d.(kernels.Repeater)
	return repeats && slotBytes == 0
}

// decode runs the operations of a step that decodes a row of each sequence, and samples for each, then for those that
// fill the batch up.
func (e *Engine) decode(batch []scheduled) (next sampled) {
	size := min(captureSize(len(batch)), e.options.Slots)
	if e.fillsUp {
		batch = fillUp(batch, size)
	}
	ready, last := make([]*sequence, len(batch)), make([]int32, len(batch))
	for i, w := range batch {
		ready[i], last[i] = w.seq, int32(i)
	}
	if e.onLogits != nil { // a repeated sequence reads nothing back
		return e.enqueue(batch, ready, last)
	}
	kernels.Repeat(e.r.Dev, fmt.Sprintf("decode %d", size), func() { next = e.enqueue(batch, ready, last) })
	return next
}

// fillUp is the batch of a decoding step with up to size rows. The last ones are that of the shortest sequence once
// more: they take the same experts, and store a key where that sequence stores the same.
func fillUp(batch []scheduled, size int) []scheduled {
	shortest := slices.MinFunc(batch, func(x, y scheduled) int { return x.seq.cached - y.seq.cached })
	if size > mostPadded || shortest.seq.cached >= paddedLength {
		return batch
	}
	return slices.Concat(batch, slices.Repeat([]scheduled{shortest}, size-len(batch)))
}

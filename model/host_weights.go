package model

import (
	"errors"
	"fmt"

	"lockstep/kernels"
)

// leave moves the weights of blocks into memory of the host until at most `stay` bytes of them are on a card. Ranks
// share what they have alike, in memory that is pinned for the first. The blocks that leave lie evenly between the
// others, so that each copy has the time of several blocks.
func (m *Model) leave(ranks []kernels.Device, stay int) error {
	bytes := make([]int, len(m.Blocks))
	for _, p := range m.Params {
		if i := p.unit - blockUnit(0); i >= 0 && i < len(bytes) {
			bytes[i] += p.cardBytes(len(ranks))
		}
	}
	gone := leaving(bytes, stay)
	if gone == nil {
		return nil
	}
	for _, dev := range ranks {
		if _, ok := dev.(kernels.HostMemory); !ok && !kernels.IsMeta(dev) {
			return errors.New("offload.weights: " + dev.Name() + " has no copies from memory of the host")
		}
	}
	for _, p := range m.Params {
		i := p.unit - blockUnit(0)
		if i < 0 || i >= len(bytes) || !gone[i] {
			continue
		}
		if !p.split {
			p.home = []weightHome{p.newHome(0, ranks[0], p.W.Groups)}
		}
		for k := range p.home {
			p.home[k].host = true
		}
	}
	return nil
}

// leaving tells which blocks are to leave so that at most `stay` of their bytes do not, as few as possible; nil: none.
func leaving(bytes []int, stay int) []bool {
	for n := 0; n <= len(bytes); n++ {
		gone, left := make([]bool, len(bytes)), 0
		for i, b := range bytes {
			if gone[i] = (i+1)*n/len(bytes) > i*n/len(bytes); !gone[i] {
				left += b
			}
		}
		switch {
		case left > stay:
		case n == 0:
			return nil
		default:
			return gone
		}
	}
	panic(fmt.Sprintf("model: %d bytes are to stay on a card", stay))
}

// cardBytes is what a weight takes of a card, one of so many, while it is there.
func (p *Param) cardBytes(ranks int) (bytes int) {
	for _, h := range p.home {
		if own := storageBytes(h.t, h.q); p.split {
			bytes = max(bytes, own)
		} else {
			bytes += own / ranks
		}
	}
	if p.home == nil {
		bytes = storageBytes(p.W, p.Q)
	}
	return bytes
}

// away tells whether a rank computes with the weight elsewhere than where it lies.
func (p *Param) away(rank int) bool {
	switch {
	case p.home == nil:
		return false
	case p.split:
		return p.home[rank].host
	}
	return !p.staged || p.home[0].owner != rank
}

// describeAs makes the weight one rank's part of it, without memory.
func (p *Param) describeAs(h weightHome) {
	p.W = described(h.t.DType, h.t.Groups, h.t.Rows, h.t.Cols)
	if h.q != nil {
		q := kernels.NewQuantizedWeight(h.q.Format, h.q.DType, h.q.Groups, h.q.Rows, h.q.Cols, described)
		p.Q = &q
	}
}

// OnHost is how many blocks have weights in the host's memory, and their bytes that this rank copies.
func (m *Model) OnHost() (blocks, bytes int) {
	if m.sharded == nil {
		return 0, 0
	}
	for _, b := range m.sharded.blocks {
		if _, own := b.bytes(m.rank); own > 0 {
			blocks, bytes = blocks+1, bytes+own
		}
	}
	return blocks, bytes
}

// memory is where a home's tensors are read and written.
func (h weightHome) memory() kernels.Device {
	if h.host {
		return hostMemory{h.dev}
	}
	return h.dev
}

// hostMemory reads and writes tensors in the memory of the host, which a device may have pinned. Of its operations, it
// is the device's that draw there.
type hostMemory struct{ kernels.Device }

// Write copies to a tensor.
func (hostMemory) Write(dst kernels.Tensor, src []byte) {
	if n := copy(dst.Raw(), src); n != len(src) || n != dst.Bytes() {
		panic(fmt.Sprintf("model: %d bytes into %s", len(src), dst))
	}
}

// Read copies from a tensor.
func (hostMemory) Read(dst []byte, src kernels.Tensor) {
	if n := copy(dst, src.Raw()); n != len(dst) || n != src.Bytes() {
		panic(fmt.Sprintf("model: %s into %d bytes", src, len(dst)))
	}
}

// DrawCodes is the device's.
func (h hostMemory) DrawCodes(w kernels.QuantizedWeight, key uint64, first int, scale float32) {
	h.Device.(kernels.QuantizedProducts).DrawCodes(w, key, first, scale)
}

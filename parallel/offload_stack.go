package parallel

import "lockstep/kernels"

// OffloadStack is a stack of tensors of one shape that a forward pass pushes and a backward pass pops. The device has
// room for the latest alone: those below are copied to pinned memory of the host behind the forward pass, and back
// ahead of the backward pass (Rhu et al., vDNN, arXiv 1602.08124). Copies and operations follow each other by events,
// so the host waits for none. Who makes it releases the rank's stacks when all has been popped: what the next pass
// copies to the host follows what has read it.
type OffloadStack struct {
	dev   kernels.Transfers // nil: a plan, which copies nothing
	rank  *Rank
	slots []kernels.Tensor // on the device: tensor i has slot i modulo their number
	host  []kernels.Tensor // of the tensors that leave; the last ones stay
	moved []kernels.Event  // the latest copy of each of them, out or back; nil: none yet
	size  int              // tensors that have been pushed and not popped
}

// offloadSlots is how many tensors are on the device: one that is used, and two whose copies have the time of a layer
// each, since layers that follow one another may differ in what they compute.
const offloadSlots = 3

// NewOffloadStack makes a stack for at most depth tensors, on the rank's stacks of the device and of the host. The
// first tensor is there and pushed; its memory becomes a slot.
func NewOffloadStack(r *Rank, first kernels.Tensor, depth int) *OffloadStack {
	o := &OffloadStack{rank: r, slots: []kernels.Tensor{first}}
	if !kernels.IsMeta(r.Dev) {
		if o.dev = r.Transfers; o.dev == nil {
			panic("parallel: tensors leave a device that cannot copy to the host")
		}
	}
	d, rows, cols := first.DType, first.Rows, first.Cols
	for len(o.slots) < min(offloadSlots, depth) {
		o.slots = append(o.slots, r.Stack.New(d, rows, cols))
	}
	if leave := depth - len(o.slots); leave > 0 {
		r.Pinned().Reserve(leave * kernels.ArenaBytes(d, rows, cols))
		for range leave {
			o.host = append(o.host, r.Pinned().New(d, rows, cols))
		}
	}
	o.moved = make([]kernels.Event, len(o.host))
	o.Push()
	return o
}

func (o *OffloadStack) slot(i int) kernels.Tensor { return o.slots[i%len(o.slots)] }

// Next is where the next tensor is to be written. It holds operations that are enqueued later until the tensor that was
// there is on the host.
func (o *OffloadStack) Next() kernels.Tensor {
	o.await(o.size - len(o.slots))
	return o.slot(o.size)
}

// await holds operations that are enqueued later until a tensor's latest copy is done.
func (o *OffloadStack) await(i int) {
	if o.dev != nil && i >= 0 && i < len(o.moved) && o.moved[i] != nil {
		o.dev.WaitEvents(o.moved[i])
	}
}

// Push adds the tensor that Next gave, which what has been enqueued writes, and begins to copy it to the host. It must
// not be changed.
func (o *OffloadStack) Push() {
	i := o.size
	o.size++
	if i >= len(o.host) {
		return
	}
	kernels.CountExchange(o.rank.Dev, kernels.ExchangeOffload, o.host[i].Bytes())
	o.copy(i, o.host[i], o.slot(i))
}

// Top is the latest tensor that is left. It holds operations that are enqueued later until it is on the device.
func (o *OffloadStack) Top() kernels.Tensor {
	o.await(o.size - 1)
	return o.slot(o.size - 1)
}

// Pop drops the latest tensor, which nothing that is enqueued later reads, and begins to bring the one back that had
// its slot before.
func (o *OffloadStack) Pop() {
	o.size--
	if i := o.size - len(o.slots); i >= 0 {
		o.copy(i, o.slot(i), o.host[i])
	}
}

// copy begins to copy tensor i behind what is enqueued, which waits for its copies before.
func (o *OffloadStack) copy(i int, dst, src kernels.Tensor) {
	if o.dev != nil {
		o.moved[i] = o.dev.CopyPeer([]kernels.Event{o.dev.Record()}, kernels.PeerCopy{Dst: dst, Src: src})
	}
}

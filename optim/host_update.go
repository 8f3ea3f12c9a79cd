package optim

import (
	"fmt"
	"math"
	"runtime/debug"

	"lockstep/kernels"
	"lockstep/parallel"
)

// HostState is where the host's cores update a [State] while the device computes: memory of the host that the device
// copies from and to, in the shape of the state. The gradient comes there as soon as the norm is known, and the weights
// go back from there; 4 bytes and 2 of an element in bf16, where states that pass through the device are 12 each way.
type HostState struct {
	CPU                kernels.Device // of [kernels.HostMemory]
	Master, M, V, Grad kernels.Tensor // F32
	W                  kernels.Tensor // in the weights' type; may be Master
	Factor             kernels.Tensor // F32 [1, 1]

	in      kernels.Event // the gradient, the factor and, where W is the master, the weights are there
	updated chan error    // gets what the device failed by, nil: nothing
	known   bool          // updated was asked
	back    kernels.Event // the weights are on the device; nil: not on their way
}

// begin starts to copy what the host needs to it, behind an event.
func (h *HostState) begin(dev kernels.Transfers, st State, factor kernels.Tensor, after kernels.Event) {
	copies := []kernels.PeerCopy{{Dst: h.Grad, Src: st.Grad}, {Dst: h.Factor, Src: factor}}
	if h.W.Data == h.Master.Data {
		copies = append(copies, kernels.PeerCopy{Dst: h.W, Src: st.W})
	}
	h.in, h.updated = dev.CopyPeer([]kernels.Event{after}, copies...), make(chan error, 1)
}

// update takes the step of the elements, in a goroutine of its own.
func (h *HostState) update(s kernels.AdamW) {
	defer func() {
		switch p := recover().(type) {
		case nil:
			h.updated <- nil
		case kernels.Fault:
			h.updated <- p.Err
		default:
			h.updated <- fmt.Errorf("update on the host: internal error: %v\n%s", p, debug.Stack())
		}
	}()
	h.in.Synchronize()
	h.CPU.AdamW(h.W, h.Master, h.M, h.V, h.Grad, h.Factor, s)
}

// finite tells whether anything was updated.
func (h *HostState) finite() bool { return !math.IsNaN(float64(h.Factor.F32s()[0])) }

// sendBack begins to copy the weights to the device, once the host has them; wait: it waits for that. It tells whether
// they are on their way.
func (h *HostState) sendBack(dev kernels.Transfers, st State, wait bool) bool {
	if !h.known {
		select {
		case err := <-h.updated:
			h.received(dev, st, err)
		default:
			if !wait {
				return false
			}
			h.received(dev, st, <-h.updated)
		}
	}
	return true
}

// received is told how the host's update ended. All that read the weights before was over when the gradient left.
func (h *HostState) received(dev kernels.Transfers, st State, err error) {
	if err != nil {
		panic(kernels.Fault{Err: err})
	}
	if h.known = true; h.finite() {
		h.back = dev.CopyPeer([]kernels.Event{h.in}, kernels.PeerCopy{Dst: st.W, Src: h.W})
	}
}

// startHost leaves states to the host, in order, behind the factor of the step.
func (u *Update) startHost(r *parallel.Rank, ws []Weights) {
	for _, w := range ws {
		for _, st := range w.States {
			if w.Owner == r.ID && st.Host != nil && !kernels.IsMeta(r.Dev) {
				u.onHost = append(u.onHost, st)
			}
		}
	}
	if len(u.onHost) == 0 {
		return
	}
	known := r.Transfers.Record()
	for _, st := range u.onHost {
		st.Host.begin(r.Transfers, st, u.factor, known)
	}
	list, settings := u.onHost, u.settings
	r.Aside(func() {
		for _, st := range list {
			st.Host.update(settings)
		}
	})
}

// sendBack begins to copy weights to the device that the host has updated by now.
func (u *Update) sendBack(r *parallel.Rank) {
	for len(u.onHost) > 0 && u.onHost[0].Host.sendBack(r.Transfers, u.onHost[0], false) {
		u.onHost = u.onHost[1:]
	}
}

// finish holds what is enqueued next until the weights that the host has updated are on the device, and clears their
// gradient.
func (h *HostState) finish(dev kernels.Device, st State) {
	if kernels.IsMeta(dev) {
		return
	}
	t := dev.(kernels.Transfers)
	if h.sendBack(t, st, true); h.back != nil {
		t.WaitEvents(h.in, h.back)
		dev.Zero(st.Grad)
	}
}

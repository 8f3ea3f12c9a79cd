package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"lockstep/configs"
	"lockstep/kernels"
	"lockstep/optim"
	"lockstep/parallel"
	"lockstep/train/plan"
)

// UpdateOptions say what [Update] measures.
type UpdateOptions struct {
	Device     string // kind of the ranks' devices
	Ranks      int
	Share      bool  // they may share a GPU
	Parameters int   // M of a rank
	Host       []int // percent of them that the host's cores update
	Each       time.Duration
	Peer       string // Python interpreter with torch, whose AdamW runs on the host; "": no peer
	Out        io.Writer
}

// Update prints how many parameters a second all ranks update whose optimizer state is in the host's memory: those that
// pass through the devices, those that the host's cores update, and both at once; next to them the host's cores alone,
// in memory that no copy touches, and torch's.
func Update(ctx context.Context, o UpdateOptions) error {
	if o.Ranks < 1 || o.Parameters < 1 {
		return fmt.Errorf("--ranks %d, --parameters %d: want at least 1", o.Ranks, o.Parameters)
	}
	for _, n := range o.Host {
		if n < 0 || n > 100 {
			return fmt.Errorf("--host %d: want 0 to 100 percent", n)
		}
	}
	w, name, closeAll, err := openWorld(o.Device, o.Ranks, o.Share)
	if err != nil {
		return err
	}
	defer closeAll()
	fmt.Fprintf(o.Out, "%d ranks, each %s, %d M parameters in bf16\n", o.Ranks, name, o.Parameters)
	tab := tabwriter.NewWriter(o.Out, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tab, "G parameters/s\t  of all ranks")
	for _, percent := range o.Host {
		if err := ctx.Err(); err != nil {
			return err
		}
		seconds, err := timeExchange(w, o.Each, func(r *parallel.Rank) func() {
			host := w.Devices()[r.ID].(kernels.HostMemory).Host()
			return newStates(r, host, o.Parameters*1e6, percent).update(r)
		})
		if err != nil {
			return err
		}
		fmt.Fprintf(tab, "%.2f\t  %d%% by the host, the rest pass through the devices\n",
			float64(o.Parameters*o.Ranks)/1e3/seconds, percent)
	}
	host := w.Devices()[0].(kernels.HostMemory).Host()
	fmt.Fprintf(tab, "%.2f\t  the host alone\n", plan.HostUpdateRate(host, o.Each))
	if o.Peer != "" {
		var rows []struct{ Rate float64 }
		rows, err = peer[struct{ Rate float64 }](ctx, o.Peer, configs.CPUAdamW, o.Parameters*1e6, o.Each.Seconds())
		for _, row := range rows {
			fmt.Fprintf(tab, "%.2f\t  torch's fused AdamW on the host, in fp32\n", row.Rate/1e9)
		}
	}
	return errors.Join(err, tab.Flush())
}

// updatePiece is the most parameters of a state: 192 MiB, as a run passes at once.
const updatePiece = 16 << 20

// states are parameters of a rank, of which the host's cores update the last.
type states struct {
	ring    *parallel.HostRing
	weights []optim.Weights
	hosts   []*optim.HostState
}

// newStates makes parameters in bf16, percent of them for the host.
func newStates(r *parallel.Rank, host kernels.Device, n, percent int) *states {
	s := &states{}
	pinned, base := r.Pinned(), r.Pinned().Mark()
	defer pinned.Release(base) // the next row has the same memory
	var columns []int
	of := func(a *kernels.Arena, d kernels.DType, n int) kernels.Tensor { return a.New(d, 1, n) }
	for at := 0; at < n; at += updatePiece {
		size := min(updatePiece, n-at)
		w, grad := of(r.Stack, kernels.BF16, size), of(r.Stack, kernels.F32, size)
		r.Dev.Zero(w)
		r.Dev.Zero(grad)
		st := optim.State{W: w, Grad: grad}
		if at >= n-n*percent/100 {
			st.Host = &optim.HostState{CPU: host,
				Master: of(pinned, kernels.F32, size), M: of(pinned, kernels.F32, size),
				V: of(pinned, kernels.F32, size), Grad: of(pinned, kernels.F32, size),
				W: of(pinned, kernels.BF16, size), Factor: of(pinned, kernels.F32, 1)}
			s.hosts = append(s.hosts, st.Host)
		} else {
			columns = append(columns, 3*size)
		}
		s.weights = append(s.weights, optim.Weights{Owner: r.ID, Sharded: true, W: w, Grad: grad,
			States: []optim.State{st}})
	}
	s.ring = parallel.NewHostRing(r.Dev, r.Stack, pinned, columns, ringPieces*updatePiece*12)
	for i := range columns {
		t, st := s.ring.OnDevice(i), &s.weights[i].States[0]
		size := st.W.Cols
		st.Master, st.M, st.V = t.ColRange(0, size), t.ColRange(size, 2*size), t.ColRange(2*size, 3*size)
		st.Use = func() { s.ring.Use(i) }
	}
	return s
}

// ringPieces is how many pieces are on the device.
const ringPieces = 4

// update is a step of each rank for itself.
func (s *states) update(r *parallel.Rank) func() {
	alone := *r
	alone.Data = nil
	return func() {
		defer r.Stack.Release(r.Stack.Mark())
		for _, h := range s.hosts {
			*h = optim.HostState{CPU: h.CPU, Master: h.Master, M: h.M, V: h.V, Grad: h.Grad, W: h.W,
				Factor: h.Factor}
		}
		optim.AdamW{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8}.Step(&alone, s.weights, 1, 1e-9, 1)
		s.ring.Finish()
	}
}

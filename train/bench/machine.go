package bench

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"

	"lockstep/configs"
	"lockstep/data/atomicfile"
	"lockstep/kernels"
	"lockstep/kernels/devices"
	"lockstep/kernels/meta"
	"lockstep/parallel"
	"lockstep/train/plan"
	"lockstep/train/setup"
)

// MachineOptions say what [Machine] measures.
type MachineOptions struct {
	Device string // kind of its devices
	Cards  int    // 0: all
	Name   string // of the machine; "": as many cards, such as 2xH200, or cpu
	Shape  *configs.Shape
	Each   time.Duration // for each rate
	Steps  int           // of training
	Out    string        // file; "": it is printed
	Log    io.Writer

	sizes *machineSizes // of operands; nil: those of the device
}

// Machine measures a machine for plans and writes its file: operations one by one, then training, forward and decoding
// of a shape, whose speed is told as a share of what the rates make of it, then copies between cards.
func Machine(ctx context.Context, o MachineOptions) (err error) {
	if err := (&Options{Steps: o.Steps, Each: o.Each}).validate(); err != nil {
		return err
	}
	if o.Cards == 0 {
		if o.Cards, err = devices.Count(o.Device); err != nil {
			return err
		}
	}
	m := configs.Machine{Device: o.Device, Cards: o.Cards, Cores: runtime.NumCPU(), Measured: true,
		Date: time.Now().UTC().Format(time.DateOnly), Assumed: []string{},
		How: fmt.Sprintf("lockstep bench machine --device %s, on %s", o.Device, o.Shape.Run.Name)}
	if err := o.measureCard(ctx, &m); err != nil {
		return err
	}
	if o.Cards > 1 || o.Device == devices.CUDA { // a CPU has no links to itself
		if err := o.measureLinks(&m); err != nil {
			return err
		}
	}
	m.Round()
	text := m.TOML()
	if _, err := configs.ParseMachine(m.Name, text); err != nil {
		return fmt.Errorf("what was measured is no machine: %w", err)
	}
	if o.Out == "" {
		_, err = os.Stdout.Write(text)
		return err
	}
	return atomicfile.Write(o.Out, func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	})
}

// measureCard measures one device, and the shape on it.
func (o MachineOptions) measureCard(ctx context.Context, m *configs.Machine) error {
	c := setup.Device(o.Shape)
	dev, err := devices.Open(c)
	if err != nil {
		return err
	}
	defer dev.Close()
	if err := o.measureMemory(m, dev); err != nil {
		return err
	}
	_, name, _ := strings.Cut(dev.Name(), "(")
	name, _, _ = strings.Cut(name, ";")
	if m.Card = strings.TrimSuffix(name, ")"); o.Name == "" {
		o.Name = o.Device
		if words := strings.Fields(m.Card); o.Device == devices.CUDA && len(words) > 1 {
			o.Name = fmt.Sprintf("%dx%s", o.Cards, words[1])
		}
	}
	m.Name = o.Name
	return parallel.Run([]kernels.Device{dev}, func(r *parallel.Rank) error {
		if err := o.measureRates(r, m); err != nil {
			return err
		}
		if err := o.measureShares(ctx, r, m); err != nil {
			return err
		}
		m.Memory.Workspace = float64(kernels.Workspace(dev)) / (1 << 30)
		return nil
	})
}

// measureMemory asks for memory before any is taken.
func (o MachineOptions) measureMemory(m *configs.Machine, dev kernels.Device) error {
	const gib = 1 << 30
	available := func(d kernels.Device) float64 {
		b, ok := d.(kernels.Bounded)
		if !ok {
			return 0
		}
		return float64(b.Available()) / gib
	}
	m.Memory.Usable = available(dev)
	m.Memory.Card, m.Memory.Host = m.Memory.Usable, m.Memory.Usable
	if o.Device == devices.CPU {
		m.Assumed = append(m.Assumed, "memory.card, memory.host: what was available, as memory.usable")
		return nil
	}
	if gauges, err := devices.OpenGauges(o.Device, 1); err != nil { // such as a container without NVML
		m.Assumed = append(m.Assumed, "memory.card: what was available, as memory.usable: "+err.Error())
	} else {
		used, err := gauges[0].Usage()
		if err != nil {
			return err
		}
		m.Memory.Card += float64(used.Memory) / gib
	}
	host, err := devices.Open(devices.Config{Kind: devices.CPU, Definition: devices.Definition(devices.CPU)})
	if err != nil {
		return err
	}
	defer host.Close()
	m.Memory.Host = available(host)
	m.Assumed = append(m.Assumed, "memory.host: what was available")
	return nil
}

// measureRates measures operations, each by its own time less what its bytes and calls take.
func (o MachineOptions) measureRates(r *parallel.Rank, m *configs.Machine) error {
	of := machineOperations(o.Device, o.operands())
	spent := func(op operation) (seconds float64, w meta.Work, err error) {
		w = op.work(r.Dev)
		seconds, err = op.time(r, o.Each)
		return seconds, w, err
	}
	seconds, w, err := spent(of.copy)
	if err != nil {
		return err
	}
	m.Rates.Memory = w.Costs[meta.Rows].Bytes / seconds / 1e9
	if seconds, w, err = spent(of.calls); err != nil {
		return err
	}
	m.Rates.Call = 1e6 * seconds / w.Costs[meta.Rows].Calls
	for _, op := range of.products {
		seconds, w, err := spent(op.operation)
		if err != nil {
			return fmt.Errorf("%s: %w", op.name, err)
		}
		cost := w.Costs[op.kind]
		less := cost.Bytes/(m.Rates.Memory*1e9) + cost.Calls*m.Rates.Call*1e-6
		rate := op.of(&m.Rates)
		*rate = cost.FLOPs / max(seconds-less, seconds/4) / 1e12
		fmt.Fprintf(o.Log, "%-20s %.4g TFLOP/s, %.3g ms, of which memory %.3g\n", op.name, *rate, 1e3*seconds,
			1e3*less)
	}
	for _, op := range of.attention {
		if err := o.measureAttention(m, op, spent); err != nil {
			return err
		}
	}
	return nil
}

// measureAttention solves seconds = FLOPs/rate + scores/rate of two widths of heads for both rates. Where a noisy clock
// leaves nothing to one of them, it has a tenth of the time.
func (o MachineOptions) measureAttention(m *configs.Machine, op scored,
	spent func(op operation) (float64, meta.Work, error)) error {
	var seconds, flops [2]float64
	scores := 0.0
	for i, of := range []operation{op.narrow, op.wide} {
		took, w, err := spent(of)
		if err != nil {
			return fmt.Errorf("%s: %w", op.name, err)
		}
		cost := w.Costs[op.kind]
		less := cost.Bytes/(m.Rates.Memory*1e9) + cost.Calls*m.Rates.Call*1e-6
		seconds[i], flops[i], scores = max(took-less, took/4), cost.FLOPs, w.Costs[op.scores].FLOPs
	}
	products := (seconds[1] - seconds[0]) / (flops[1] - flops[0]) * flops[1]
	if least, most := seconds[1]/10, seconds[1]*9/10; products < least || products > most {
		fmt.Fprintf(o.Log, "%s: of %.3g ms, two widths of heads leave products %.3g: measure again\n",
			op.name, 1e3*seconds[1], 1e3*products)
		products = min(max(products, least), most)
	}
	*op.of(&m.Rates), *op.ofScores(&m.Rates) = flops[1]/products/1e12, scores/(seconds[1]-products)/1e12
	fmt.Fprintf(o.Log, "%-20s %.4g TFLOP/s, %.3g T scores/s, %.3g ms\n", op.name, *op.of(&m.Rates),
		*op.ofScores(&m.Rates), 1e3*seconds[1])
	return nil
}

// measureShares runs the shape as [CUDA] does, and compares.
func (o MachineOptions) measureShares(ctx context.Context, r *parallel.Rank, m *configs.Machine) error {
	dir, err := os.MkdirTemp("", "lockstep-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	m.Share = configs.MachineShare{Train: 1, Forward: 1, Decode: 1}
	planned, err := plan.Workloads(o.Shape, *m, plan.DecodeSize{Rows: decodeRows, Prompt: decodePrompt,
		Tokens: decodeTokens})
	if err != nil {
		return err
	}
	shares := map[string]*float64{"train": &m.Share.Train, "forward": &m.Share.Forward, "decode": &m.Share.Decode}
	tell := func(name string, speed float64) {
		*shares[name] = speed / planned[name]
		fmt.Fprintf(o.Log, "%-20s %.0f tokens/s, %.3f of what the rates make\n", name, speed, *shares[name])
	}
	return benchWorkloads(ctx, r, nil, o.Shape, Options{Steps: o.Steps, Out: o.Log}, dir, tell)
}

// measureLinks measures copies from the host's memory and between cards, of all cards at once.
func (o MachineOptions) measureLinks(m *configs.Machine) error {
	w, _, closeAll, err := openWorld(o.Device, o.Cards, false)
	if err != nil {
		return err
	}
	defer closeAll()
	if o.Device == devices.CUDA {
		if err := o.measureHost(w, m); err != nil {
			return err
		}
	}
	if o.Cards == 1 {
		return nil
	}
	bytes := o.operands().copied / 4
	both, err := timeExchange(w, o.Each, func(r *parallel.Rank) func() { return copyFromNext(r, bytes) })
	if err != nil {
		return err
	}
	one, err := timeExchange(w, o.Each, func(r *parallel.Rank) func() {
		if call := copyFromNext(r, bytes); r.ID == 0 {
			return call
		}
		return func() {}
	})
	if err != nil {
		return err
	}
	read, err := timeExchange(w, o.Each, func(r *parallel.Rank) func() { return readFromNext(r, bytes) })
	if err != nil {
		return err
	}
	row, err := timeExchange(w, o.Each, gatherCopied)
	if err != nil {
		return err
	}
	gb := float64(bytes) / 1e9
	m.Links = configs.MachineLinks{EachWay: gb / one, BothWays: gb / both, Rows: gb / read, Exchange: 1e6 * row}
	m.Share.Slowest, err = o.measureSlowest(w)
	return err
}

// measureSlowest times a dense product on the first card alone and on all, of which the slowest counts.
func (o MachineOptions) measureSlowest(w *parallel.World) (float64, error) {
	product := machineOperations(o.Device, o.operands()).products[0]
	seconds := func(ranks int) (float64, error) {
		return timeExchange(w, o.Each, func(r *parallel.Rank) func() {
			if r.ID >= ranks {
				return func() {}
			}
			return product.operation(r.Dev, r.Stack)
		})
	}
	one, err := seconds(1)
	if err != nil {
		return 0, err
	}
	all, err := seconds(w.Size())
	return one / all, err
}

// measureHost measures copies between each card and pinned memory, which all cards make at once.
func (o MachineOptions) measureHost(w *parallel.World, m *configs.Machine) error {
	bytes := o.operands().copied / 4
	for _, of := range []struct {
		name    string
		in, out bool
		rate    *float64
	}{{"host to card", true, false, &m.Host.ToCard}, {"card to host", false, true, &m.Host.FromCard},
		{"host, both ways", true, true, &m.Host.Both}} {
		seconds, err := timeExchange(w, o.Each, func(r *parallel.Rank) func() {
			return copyOfHost(r, bytes, of.in, of.out)
		})
		if err != nil {
			return fmt.Errorf("%s: %w", of.name, err)
		}
		*of.rate = float64(bytes) / seconds / 1e9
		fmt.Fprintf(o.Log, "%-20s %.4g GB/s, each of %d cards\n", of.name, *of.rate, w.Size())
	}
	m.Host.Update = plan.HostUpdateRate(w.Devices()[0].(kernels.HostMemory).Host(), o.Each)
	fmt.Fprintf(o.Log, "%-20s %.4g G parameters/s, by the cores of the host\n", "AdamW", m.Host.Update)
	return nil
}

// copyOfHost copies so many bytes from pinned memory, to it, or both at once.
func copyOfHost(r *parallel.Rank, bytes int, in, out bool) func() {
	dev, base := r.Transfers, r.Pinned().Mark()
	pair := func() (host, card kernels.Tensor) {
		card = rowsOf(r, bytes)
		return r.Pinned().New(card.DType, card.Rows, card.Cols), card
	}
	from, dst := pair()
	to, src := pair()
	r.Pinned().Release(base) // the next call has the same memory
	return func() {
		after := []kernels.Event{dev.Record()}
		var done []kernels.Event
		if in {
			done = append(done, dev.CopyPeer(after, kernels.PeerCopy{Dst: dst, Src: from}))
		}
		if out {
			done = append(done, dev.CopyPeer(after, kernels.PeerCopy{Dst: to, Src: src}))
		}
		dev.WaitEvents(done...)
	}
}

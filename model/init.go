package model

import (
	"hash/fnv"
	"slices"

	"lockstep/kernels"
	"lockstep/model/checkpoint"
)

// Initialise draws every weight that a checkpoint would hold, and those of adapters. A value depends on the seed, the
// tensor's name and the element alone, and takes no transcendental function, so every machine draws the same bits.
func (m *Model) Initialise(seed uint64) { initialise(m.dev, m.Params, seed) }

// InitialiseAdapters draws the adapters' weights only.
func (m *Model) InitialiseAdapters(seed uint64) {
	adapter := m.adapterParams()
	initialise(m.dev, slices.DeleteFunc(slices.Clone(m.Params), func(p *Param) bool { return !adapter[p] }), seed)
}

// EvenRouters draws the routers of mixtures again, for benchmarks: an expert of each of some ranks has the router's row
// of the expert at its place on the others. Experts with one row are chosen together, so every rank gets the same share
// of a mixture's rows, where the ranks divide the experts and the top-k, and no group limit parts them. Loads of
// the experts on one rank are those of random rows.
func (m *Model) EvenRouters(seed uint64, ranks int) {
	var list []*Param
	for _, l := range m.mixtures() {
		of := l.Router
		of.W.Init.Period = of.W.W.Rows / ranks * of.W.W.Cols
		list = append(list, of.W)
		if of.Bias != nil {
			of.Bias.Init.Period = of.W.W.Rows / ranks
			list = append(list, of.Bias)
		}
	}
	initialise(m.dev, list, seed)
}

// initialise draws on the devices that have the weights, all at once.
func initialise(dev kernels.Device, params []*Param, seed uint64) {
	if kernels.IsMeta(dev) {
		return
	}
	used := map[kernels.Device]bool{}
	for _, p := range params {
		if p.Q != nil {
			p.drawCodes(dev, seed, used)
			continue
		}
		for _, part := range p.Parts {
			p.part(p.weight(dev), part).draw(p.Init, keyOf(part.Name, seed), used)
		}
	}
	for on := range used {
		if err := on.Sync(); err != nil {
			panic(kernels.Fault{Err: err})
		}
	}
}

// keyOf is what the random numbers of a tensor depend on.
func keyOf(name string, seed uint64) uint64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	return kernels.DrawKey(seed ^ h.Sum64())
}

// draw fills elements, and adds their devices to those that are used.
func (e elements) draw(init Init, key uint64, used map[kernels.Device]bool) {
	if init.Kind == Drawn {
		values := make([]float32, e.len())
		for i := range values {
			values[i] = init.Draw(i, kernels.DrawnUniform(key, uint64(i)))
		}
		e.write(0, checkpoint.Round(values, e[0].t.DType))
		return
	}
	d, period := init.numbers(key), init.Period
	if period == 0 {
		period = e.len()
	}
	for _, on := range e {
		dev := on.dev.(kernels.Device)
		for from := 0; from < on.t.Cols; {
			to := min(from+period-d.First, on.t.Cols)
			dev.Draw(on.t.ColRange(from, to), d)
			d.First = (d.First + to - from) % period
			from = to
		}
		used[dev] = true
	}
}

// numbers says how a device draws them, but for those of Drawn.
func (init Init) numbers(key uint64) kernels.Draw {
	switch init.Kind {
	case Ones:
		return kernels.Draw{Kind: kernels.DrawConstant, Scale: 1}
	case Normal:
		return kernels.Draw{Kind: kernels.DrawNormal, Key: key, Scale: init.Std}
	case Uniform:
		return kernels.Draw{Kind: kernels.DrawUniform, Key: key, Scale: init.Std}
	}
	return kernels.Draw{Kind: kernels.DrawConstant}
}

// writeValues rounds to the tensor's type and writes it.
func writeValues(dev kernels.Device, t kernels.Tensor, v []float32) {
	dev.Write(t, checkpoint.Round(v, t.DType))
}

// ReadValues is a contiguous F32 or BF16 tensor on the host, in fp32.
func ReadValues(dev kernels.Device, t kernels.Tensor) []float32 {
	raw := make([]byte, t.Bytes())
	dev.Read(raw, t)
	out := make([]float32, t.Len())
	checkpoint.GetAll(out, raw, t.DType)
	return out
}

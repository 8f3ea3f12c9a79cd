package model

import (
	"hash/fnv"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

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
// of a mixture's rows, where the ranks divide the experts and the top-k, and no group limit cuts twins apart. Loads of
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

// drawn are some values of a tensor, from one on, on their way to the device.
type drawn struct {
	to   elements
	from int
	raw  []byte
}

// initialise draws the next part while one is copied to the device: a large model has billions of elements.
func initialise(dev kernels.Device, params []*Param, seed uint64) {
	if kernels.IsMeta(dev) {
		return
	}
	ready, free := make(chan drawn), make(chan []byte, 2)
	free <- nil
	free <- nil
	go func() {
		defer close(ready)
		for _, p := range params {
			if p.Q != nil {
				continue
			}
			for _, part := range p.Parts {
				h := fnv.New64a()
				h.Write([]byte(part.Name))
				to, size := p.part(p.weight(dev), part), p.W.DType.Size()
				eachPiece(to.len(), func(from, n int) {
					d := drawn{to, from, <-free}
					d.raw = slices.Grow(d.raw[:0], n*size)[:n*size]
					fill(d.raw, p.W.DType, p.Init, mix(seed^h.Sum64()), from)
					ready <- d
				})
			}
		}
	}()
	for d := range ready {
		d.to.write(d.from, d.raw)
		free <- d.raw
	}
	for _, p := range params {
		if p.Q != nil {
			p.drawCodes(dev, seed)
		}
	}
}

// fill draws elements of a tensor from one on, in its storage type, on all cores.
func fill(raw []byte, d kernels.DType, init Init, key uint64, first int) {
	const grain = 1 << 16 // elements
	size := d.Size()
	n := len(raw) / size
	var all sync.WaitGroup
	var next atomic.Int64
	for range min(runtime.NumCPU(), (n+grain-1)/grain) {
		all.Go(func() {
			for from := int(next.Add(grain)) - grain; from < n; from = int(next.Add(grain)) - grain {
				for i := from; i < min(from+grain, n); i++ {
					checkpoint.Put(raw[i*size:], d, init.value(key, uint64(first+i)))
				}
			}
		})
	}
	all.Wait()
}

// value is element i of the tensor with a key.
func (init Init) value(key, i uint64) float32 {
	if init.Period > 0 {
		i %= uint64(init.Period)
	}
	switch init.Kind {
	case Ones:
		return 1
	case Normal:
		return float32(normal(key, i) * init.Std)
	case Uniform:
		return float32((2*uniform(key, i) - 1) * init.Std)
	case Drawn:
		return init.Draw(int(i), uniform(key, i))
	}
	return 0
}

// uniform is a number in [0, 1).
func uniform(key, i uint64) float64 { return float64(mix(key+i*golden)>>11) / (1 << 53) }

const golden = 0x9e3779b97f4a7c15

// mix is the finaliser of SplitMix64 (Steele, Lea & Flood, OOPSLA 2014).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// normal is a standard normal variate as the sum of twelve 16-bit uniforms (Irwin-Hall), exact in integers until the
// last division.
func normal(key, i uint64) float64 {
	var sum uint64 // two sums of six, 32 bits each
	for j := range uint64(3) {
		w := mix(key + (3*i+j+1)*golden)
		sum += w&0x0000ffff_0000ffff + w>>16&0x0000ffff_0000ffff
	}
	return float64(int(sum&0xffffffff+sum>>32)-6*0xffff) / (1 << 16)
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

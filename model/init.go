package model

import (
	"hash/fnv"
	"math"

	"lockstep/kernels"
)

// Initialise draws every weight that a checkpoint would hold, and those of adapters. A value depends on the seed, the tensor's
// name and the element alone, and takes no transcendental function, so every machine draws the same bits.
func (m *Model) Initialise(dev kernels.Device, seed uint64) {
	for _, p := range m.Params {
		p.initialise(dev, seed)
	}
}

func (p *Param) initialise(dev kernels.Device, seed uint64) {
	for _, part := range p.Parts {
		h := fnv.New64a()
		h.Write([]byte(part.Name))
		values := make([]float32, p.view(p.W, part).Len())
		fill(values, p.Init, mix(seed^h.Sum64()))
		writeValues(dev, p.view(p.W, part), values)
	}
}

func fill(v []float32, init Init, key uint64) {
	switch init.Kind {
	case Zeros:
		clear(v)
	case Ones:
		for i := range v {
			v[i] = 1
		}
	case Normal:
		for i := range v {
			v[i] = float32(normal(key, uint64(i)) * init.Std)
		}
	case Uniform:
		for i := range v {
			u := float64(mix(key+uint64(i)*golden)>>11) / (1 << 53)
			v[i] = float32((2*u - 1) * init.Std)
		}
	}
}

const golden = 0x9e3779b97f4a7c15

// mix is the finaliser of SplitMix64 (Steele, Lea & Flood, OOPSLA 2014).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// normal is a standard normal variate as the sum of twelve 16-bit uniforms (Irwin-Hall), exact in integers until the last division.
func normal(key, i uint64) float64 {
	sum := 0
	for j := range uint64(3) {
		w := mix(key + (3*i+j+1)*golden)
		sum += int(w&0xffff) + int(w>>16&0xffff) + int(w>>32&0xffff) + int(w>>48)
	}
	return float64(sum-6*0xffff) / (1 << 16)
}

// writeValues rounds to the tensor's type and writes it.
func writeValues(dev kernels.Device, t kernels.Tensor, v []float32) {
	if t.DType == kernels.F32 {
		dev.Write(t, kernels.Wrap(v, 1, len(v)).Raw())
		return
	}
	raw := make([]byte, 2*len(v))
	for i, x := range v {
		b := kernels.RoundBF16(x)
		raw[2*i], raw[2*i+1] = byte(b), byte(b>>8)
	}
	dev.Write(t, raw)
}

// ReadValues is a contiguous F32 or BF16 tensor on the host, in fp32.
func ReadValues(dev kernels.Device, t kernels.Tensor) []float32 {
	raw := make([]byte, t.Bytes())
	dev.Read(raw, t)
	out := make([]float32, t.Len())
	for i := range out {
		if t.DType == kernels.F32 {
			out[i] = math.Float32frombits(uint32(raw[4*i]) | uint32(raw[4*i+1])<<8 | uint32(raw[4*i+2])<<16 | uint32(raw[4*i+3])<<24)
		} else {
			out[i] = kernels.FromBF16(uint16(raw[2*i]) | uint16(raw[2*i+1])<<8)
		}
	}
	return out
}

// InitialiseAdapters draws the adapters' weights only.
func (m *Model) InitialiseAdapters(dev kernels.Device, seed uint64) {
	adapter := m.adapterParams()
	for _, p := range m.Params {
		if adapter[p] {
			p.initialise(dev, seed)
		}
	}
}

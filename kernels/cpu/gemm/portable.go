package gemm

import (
	"math"
	"sync/atomic"
	"unsafe"

	"lockstep/kernels"
)

const (
	portableLanes = 4
	portableRows  = 8
)

var portable = set{lanes: portableLanes, families: []family{{vectors: 1, kernels: portableKernels()}}, masks: true,
	transposeF32: transposeGo[float32], transposeBF16: transposeGo[uint16], copyRowsF32: copyRowsGo[float32],
	copyRowsBF16: copyRowsGo[uint16],
	split16:      split16Go, steps16: steps16Go, steps32: steps32Go, spin: spinGo, spinFlops: 2 * portableLanes}

func portableKernels() []kernel {
	var all []kernel
	for rows := 1; rows <= portableRows; rows++ {
		all = append(all, func(k int, a *float32, as int, b *float32, bs int, c *float32, cs int, fresh bool) {
			for i := range rows {
				chains4(k, unsafe.Slice((*float32)(elementAt(a, i*as)), k), b, bs,
					(*[portableLanes]float32)(elementAt(c, i*cs)), fresh)
			}
		})
	}
	return all
}

func elementAt(p *float32, i int) unsafe.Pointer { return unsafe.Add(unsafe.Pointer(p), 4*i) }

// chains4 is four independent chains. Accumulators are fp64 that hold fp32 values.
func chains4(k int, a []float32, b *float32, bs int, c *[portableLanes]float32, fresh bool) {
	var c0, c1, c2, c3 float64
	if !fresh {
		c0, c1, c2, c3 = float64(c[0]), float64(c[1]), float64(c[2]), float64(c[3])
	}
	for l := range k {
		x, y := float64(a[l]), (*[portableLanes]float32)(elementAt(b, l*bs))
		c0 = fused(x, float64(y[0]), c0)
		c1 = fused(x, float64(y[1]), c1)
		c2 = fused(x, float64(y[2]), c2)
		c3 = fused(x, float64(y[3]), c3)
	}
	*c = [portableLanes]float32{float32(c0), float32(c1), float32(c2), float32(c3)}
}

// spinGo is four chains on registers.
func spinGo(rounds int) {
	var c0, c1, c2, c3 float64
	for range rounds {
		c0, c1, c2, c3 = fused(1, 1, c0), fused(1, 1, c1), fused(1, 1, c2), fused(1, 1, c3)
	}
	spinResult.Store(math.Float64bits(c0 + c1 + c2 + c3))
}

var spinResult atomic.Uint64 // keeps the compiler from dropping the loop

// fused is kernels.FMA of fp32 values held in fp64. The product is exact; when the fp64 sum is a normal fp32 beyond
// rounding and not half way between two fp32, its own rounding cannot matter.
func fused(x, y, z float64) float64 {
	const (
		least = 0x381 << 53 // exponent of the smallest normal fp32, sign shifted out
		above = 0x7ff << 53 // of Inf and NaN
	)
	s := float64(x*y) + z
	b := math.Float64bits(s)
	if b&0x1fffffff != 0x10000000 && b<<1-least < above-least {
		return float64(float32(s))
	}
	return fusedRarely(x, y, z)
}

//go:noinline
func fusedRarely(x, y, z float64) float64 {
	return float64(kernels.FMA(float32(x), float32(y), float32(z)))
}

// stored is an element of an operand in memory.
type stored interface{ float32 | uint16 }

func widened[T stored](x T) float32 {
	switch x := any(x).(type) {
	case uint16:
		return kernels.FromBF16(x)
	case float32:
		return x
	}
	panic("gemm: no such element")
}

func transposeGo[T stored](dst *float32, ds int, src *T, ss, rows, cols int) {
	to, from := unsafe.Slice(dst, (cols-1)*ds+rows), unsafe.Slice(src, (rows-1)*ss+cols)
	for j := range cols {
		for i := range rows {
			to[j*ds+i] = widened(from[i*ss+j])
		}
	}
}

func copyRowsGo[T stored](dst *float32, ds int, src *T, ss, rows, cols int) {
	to, from := unsafe.Slice(dst, (rows-1)*ds+cols), unsafe.Slice(src, (rows-1)*ss+cols)
	for i := range rows {
		for j := range cols {
			to[i*ds+j] = widened(from[i*ss+j])
		}
	}
}

//go:build cuda

package selftest

import (
	"math/rand/v2"

	"lockstep/kernels"
)

// layerCheck is a layer that both devices run on one sequence, forward and backward; what it computes on the way
// is compared.
type layerCheck struct {
	d       kernels.Device
	mem     *kernels.Arena
	r       *rand.Rand
	l       *kernels.Layout
	results []kernels.Tensor
}

const layerRows = 70 // two chunks of a recurrence, two tiles of queries

func newLayerCheck(d kernels.Device, mem *kernels.Arena, r *rand.Rand) layerCheck {
	return layerCheck{d: d, mem: mem, r: r, l: &kernels.Layout{Spans: []kernels.Span{{Rows: layerRows}},
		Segments: []int32{0, layerRows}}}
}

func (t *layerCheck) random(dtype kernels.DType, rows, cols int) kernels.Tensor {
	return random(t.d, t.mem, t.r, dtype, rows, cols, 0)
}

// rows is a random activation.
func (t *layerCheck) rows(cols int) kernels.Tensor {
	return t.random(kernels.BF16, layerRows, cols)
}

// result is zeros to compute into, which are compared.
func (t *layerCheck) result(dtype kernels.DType, rows, cols int) kernels.Tensor {
	x := t.mem.Zeros(dtype, rows, cols)
	t.results = append(t.results, x)
	return x
}

// activation and perHead are results of all rows.
func (t *layerCheck) activation(cols int) kernels.Tensor {
	return t.result(kernels.BF16, layerRows, cols)
}

func (t *layerCheck) perHead(heads int) kernels.Tensor {
	return t.result(kernels.F32, layerRows, heads)
}

// all is the results side by side.
func (t *layerCheck) all() kernels.Tensor {
	cols, at := 0, 0
	for _, x := range t.results {
		cols += x.Len()
	}
	all := t.mem.Zeros(kernels.F32, 1, cols)
	for _, x := range t.results {
		t.d.Copy(all.ColRange(at, at+x.Len()).Reshape(x.Rows, x.Cols), x)
		at += x.Len()
	}
	return all
}

package cpu

import (
	"cmp"
	"math"
	"slices"
	"testing"

	"lockstep/kernels"
)

// routeShape is the number of experts and of those picked for a case.
func (c *rowCase) routeShape() (experts, k int) {
	return []int{1, 4, 16, 60, 300}[c.size], []int{1, 2, 4, 8, 8}[c.size]
}

var routeOps = []rowOp{
	{name: "Route", run: func(d *Device, c *rowCase) (rows, _ []kernels.Tensor) {
		e, k := c.routeShape()
		logits := c.part(c.f32(c.n, e))
		for _, norm := range []bool{false, true} {
			w, picks, probs := rowTensor(kernels.F32, logits.Rows, k), rowTensor(kernels.I32, logits.Rows, k), rowTensor(kernels.F32, logits.Rows, e)
			d.Route(w, picks, probs, logits, norm)
			rows = append(rows, w, picks, probs)
		}
		return rows, nil
	}},
	{name: "RouteBackward", run: func(d *Device, c *rowCase) (rows, _ []kernels.Tensor) {
		e, k := c.routeShape()
		logits, dw := c.part(c.f32(c.n, e)), c.part(c.f32(c.n, k))
		w, picks, probs := rowTensor(kernels.F32, logits.Rows, k), rowTensor(kernels.I32, logits.Rows, k), rowTensor(kernels.F32, logits.Rows, e)
		for _, norm := range []bool{false, true} {
			d.Route(w, picks, probs, logits, norm)
			dl := c.f32(logits.Rows, e)
			d.RouteBackward(dl, dw, w, picks, probs, norm)
			rows = append(rows, dl)
		}
		return rows, nil
	}},
}

// scalarRoute is one row by the definition: softmax, a full sort, and weights in slot order.
func scalarRoute(exp2 func(float32) float32, x []float32, k int, norm bool) (w []float32, picks []int32, p []float32) {
	m, e := slices.Max(x), make([]float32, len(x))
	for j, v := range x {
		e[j] = exp2(float32((v - m) * kernels.Log2E))
	}
	r := 1 / scalarTree(e)
	for j := range e {
		p, picks = append(p, e[j]*r), append(picks, int32(j))
	}
	slices.SortStableFunc(picks, func(a, b int32) int { return cmp.Compare(p[b], p[a]) })
	picks = picks[:k]
	sum := float32(0)
	for _, j := range picks {
		w = append(w, p[j])
		sum += p[j]
	}
	if norm {
		for i := range w {
			w[i] /= sum
		}
	}
	return w, picks, p
}

func TestRouteIsTheDefinition(t *testing.T) {
	routeIsTheDefinition(t, newRowDevice(t, Auto, 2, ""))
	routeIsTheDefinition(t, newEx2hDevice(t, Auto, 2))
}

func routeIsTheDefinition(t *testing.T, d *Device) {
	t.Helper()
	c := rowCase{seed: 31, dtype: kernels.F32}
	c.start()
	const rows, e, k = 200, 24, 6
	logits := c.f32(rows, e)
	for i := range logits.F32s() { // few values: exact ties in most rows
		logits.F32s()[i] = float32(math.Round(float64(logits.F32s()[i])))
	}
	for _, norm := range []bool{false, true} {
		w, picks, probs := rowTensor(kernels.F32, rows, k), rowTensor(kernels.I32, rows, k), rowTensor(kernels.F32, rows, e)
		d.Route(w, picks, probs, logits, norm)
		for r := range rows {
			wantW, wantPicks, wantP := scalarRoute(d.def.Exp2.Func(), logits.F32s()[r*e:(r+1)*e], k, norm)
			wantBits(t, "weights", w.RowRange(r, r+1), wantW)
			wantBits(t, "probs", probs.RowRange(r, r+1), wantP)
			if got := picks.I32s()[r*k : (r+1)*k]; !slices.Equal(got, wantPicks) {
				t.Fatalf("row %d: experts %v, want %v", r, got, wantPicks)
			}
		}
	}
}

func TestRouteOfNaN(t *testing.T) {
	d := newRowDevice(t, Auto, 1, "")
	x := []float32{1, float32(math.NaN()), 3, 2}
	w, picks := rowTensor(kernels.F32, 1, 2), rowTensor(kernels.I32, 1, 2)
	d.Route(w, picks, rowTensor(kernels.F32, 1, 4), kernels.Wrap(x, 1, 4), true)
	if got := picks.I32s(); got[0] != 0 || got[1] != 1 {
		t.Errorf("experts %v, want the first", got)
	}
	if got := w.F32s(); got[0] == got[0] || got[1] == got[1] {
		t.Errorf("weights %v hide the NaN", got)
	}
}

func TestRouteGradient(t *testing.T) {
	d := newRowDevice(t, Auto, 1, "")
	c := rowCase{seed: 32, dtype: kernels.F32}
	c.start()
	const rows, e, k = 6, 12, 4
	logits, dw := c.f32(rows, e), c.f32(rows, k)
	for _, norm := range []bool{false, true} {
		w, picks, probs, dl := rowTensor(kernels.F32, rows, k), rowTensor(kernels.I32, rows, k), rowTensor(kernels.F32, rows, e), c.f32(rows, e)
		d.Route(w, picks, probs, logits, norm)
		d.RouteBackward(dl, dw, w, picks, probs, norm)
		dw64 := to64(dw)
		checkGradient(t, "dlogits", to64(logits), func(p []float64) float64 {
			loss := 0.0
			for r := range rows {
				all, chosen := 0.0, 0.0
				for _, v := range p[r*e : (r+1)*e] {
					all += math.Exp(v)
				}
				own := picks.I32s()[r*k : (r+1)*k]
				for _, j := range own {
					chosen += math.Exp(p[r*e+int(j)])
				}
				if norm {
					all = chosen
				}
				for i, j := range own {
					loss += dw64[r*k+i] * math.Exp(p[r*e+int(j)]) / all
				}
			}
			return loss
		}, rowValues(dl))
	}
}

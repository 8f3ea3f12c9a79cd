package cpu

import (
	"cmp"
	"math"
	"slices"
	"testing"

	"lockstep/kernels"
)

// routeShape is the number of experts and of those chosen in a case.
func (c *rowCase) routeShape() (experts, k int) {
	return []int{1, 4, 16, 60, 300}[c.size], []int{1, 2, 4, 8, 8}[c.size]
}

// routers are settings of every kind, for so many experts.
func (c *rowCase) routers(e int) []kernels.Router {
	bias := c.f32(1, e)
	all := []kernels.Router{
		{Scale: 1}, {Norm: true, Scale: 1}, {Scale: 1.7}, {Norm: true, Scale: 2.5}, {Bias: bias, Scale: 1},
		{Sigmoid: true, Scale: 1.5}, {Sigmoid: true, Bias: bias, Norm: true, Epsilon: 1e-20, Scale: 2.5},
		{Sigmoid: true, Norm: true, Epsilon: 0.5, Scale: 1},
	}
	if e%4 == 0 && e >= 16 {
		all = append(all, kernels.Router{Sigmoid: true, Bias: bias, Groups: 4, TopGroups: 2, Norm: true, Scale: 2.5},
			kernels.Router{Groups: 4, TopGroups: 2, Scale: 1})
	}
	return all
}

var routeOps = []rowOp{
	{name: "Route", run: func(d *Device, c *rowCase) (rows, _ []kernels.Tensor) {
		e, k := c.routeShape()
		logits := c.part(c.f32(c.n, e))
		for _, r := range c.routers(e) {
			w, ids, probs := rowTensor(kernels.F32, logits.Rows, k), rowTensor(kernels.I32, logits.Rows, k),
				rowTensor(kernels.F32, logits.Rows, e)
			d.Route(w, ids, probs, logits, r)
			rows = append(rows, w, ids, probs)
		}
		return rows, nil
	}},
	{name: "RouteBackward", run: func(d *Device, c *rowCase) (rows, _ []kernels.Tensor) {
		e, k := c.routeShape()
		logits, dw := c.part(c.f32(c.n, e)), c.part(c.f32(c.n, k))
		w, ids, probs := rowTensor(kernels.F32, logits.Rows, k), rowTensor(kernels.I32, logits.Rows, k),
			rowTensor(kernels.F32, logits.Rows, e)
		for _, r := range c.routers(e) {
			d.Route(w, ids, probs, logits, r)
			dl := c.f32(logits.Rows, e)
			d.RouteBackward(dl, dw, w, ids, probs, r)
			rows = append(rows, dl)
		}
		return rows, nil
	}},
}

// scalarRoute is one row by the definition: scores, full sorts, and weights in slot order.
func scalarRoute(exp2 func(float32) float32, x []float32, k int, r kernels.Router) (w []float32, ids []int32,
	p []float32) {
	p = scalarScores(exp2, x, r.Sigmoid)
	b := slices.Clone(p)
	for j := range b {
		if !r.Bias.IsNil() {
			b[j] += r.Bias.F32s()[j]
		}
	}
	if r.Groups > 0 {
		n := len(b) / r.Groups
		var sums []float32
		for g := range r.Groups {
			group := slices.Sorted(slices.Values(b[g*n : (g+1)*n]))
			sums = append(sums, group[n-1]+group[n-2])
		}
		for _, g := range descending(sums)[r.TopGroups:] {
			for j := range n {
				b[int(g)*n+j] = float32(math.Inf(-1))
			}
		}
	}
	ids = descending(b)[:k]
	sum := float32(0)
	for _, j := range ids {
		w = append(w, p[j])
		sum += p[j]
	}
	for i := range w {
		if r.Norm {
			w[i] /= float32(sum + r.Epsilon)
		}
		w[i] *= r.Scale
	}
	return w, ids, p
}

func scalarScores(exp2 func(float32) float32, x []float32, sigmoid bool) []float32 {
	m, p := slices.Max(x), make([]float32, len(x))
	for j, v := range x {
		if sigmoid {
			p[j] = scalarSigmoid(exp2, v)
		} else {
			p[j] = exp2(float32((v - m) * kernels.Log2E))
		}
	}
	if !sigmoid {
		r := 1 / scalarTree(p)
		for j := range p {
			p[j] *= r
		}
	}
	return p
}

// descending is the indices of v, largest first, ties in order.
func descending(v []float32) []int32 {
	at := make([]int32, len(v))
	for j := range at {
		at[j] = int32(j)
	}
	slices.SortStableFunc(at, func(a, b int32) int { return cmp.Compare(v[b], v[a]) })
	return at
}

func TestRouteIsTheDefinition(t *testing.T) {
	routeIsTheDefinition(t, newRowDevice(t, Auto, 2))
	routeIsTheDefinition(t, newEx2hDevice(t))
	routeIsTheDefinition(t, newDevice(t, roundedDefinition(), Auto, 2))
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
	for i := range logits.F32s()[:rows*e/2] { // of half of the rows by little more than a rounding to bf16
		logits.F32s()[i] *= 1 + float32(i%7)/512
	}
	for _, router := range c.routers(e) {
		for i := range router.Bias.Len() { // likewise, with ties between groups
			router.Bias.F32s()[i] = float32(math.Round(float64(router.Bias.F32s()[i])))
		}
		w, ids, probs := rowTensor(kernels.F32, rows, k), rowTensor(kernels.I32, rows, k),
			rowTensor(kernels.F32, rows, e)
		d.Route(w, ids, probs, logits, router)
		for r := range rows {
			x := slices.Clone(logits.F32s()[r*e : (r+1)*e])
			for j, v := range x {
				if d.def.Router == kernels.ToBF16 {
					x[j] = kernels.NearestBF16(v)
				}
			}
			wantW, wantIDs, wantP := scalarRoute(d.def.Exp2.Func(), x, k, router)
			wantBits(t, "weights", w.RowRange(r, r+1), wantW)
			wantBits(t, "probs", probs.RowRange(r, r+1), wantP)
			if got := ids.I32s()[r*k : (r+1)*k]; !slices.Equal(got, wantIDs) {
				t.Fatalf("%+v, row %d: experts %v, want %v", router, r, got, wantIDs)
			}
		}
	}
}

// With NaN logits experts are still chosen, each once, and the weights are NaN.
func TestRouteOfNaN(t *testing.T) {
	d := newRowDevice(t, Auto, 1)
	nan := float32(math.NaN())
	for _, c := range []struct {
		router kernels.Router
		x      []float32
		want   []int32
	}{
		{kernels.Router{Norm: true, Scale: 1}, []float32{1, nan, 3, 2}, []int32{0, 1}},
		{kernels.Router{Sigmoid: true, Scale: 1}, []float32{nan, 1, nan, nan}, []int32{1, 0}},
		{kernels.Router{Sigmoid: true, Groups: 2, TopGroups: 1, Scale: 1}, []float32{nan, 9, nan, nan}, []int32{1, 0}},
		{kernels.Router{Sigmoid: true, Groups: 2, TopGroups: 1, Scale: 1}, []float32{nan, nan, nan, nan},
			[]int32{0, 1}},
	} {
		w, ids := rowTensor(kernels.F32, 1, 2), rowTensor(kernels.I32, 1, 2)
		d.Route(w, ids, rowTensor(kernels.F32, 1, 4), kernels.Wrap(c.x, 1, 4), c.router)
		if !slices.Equal(ids.I32s(), c.want) {
			t.Errorf("%+v: experts %v, want %v", c.router, ids.I32s(), c.want)
		}
		if sum := w.F32s()[0] + w.F32s()[1]; sum == sum {
			t.Errorf("%+v: weights %v hide the NaN", c.router, w.F32s())
		}
	}
}

func TestRouteRefuses(t *testing.T) {
	d := newRowDevice(t, Auto, 1)
	w, ids, probs, logits := rowTensor(kernels.F32, 1, 2), rowTensor(kernels.I32, 1, 2), rowTensor(kernels.F32, 1, 6),
		rowTensor(kernels.F32, 1, 6)
	for what, r := range map[string]kernels.Router{
		"groups of one": {Groups: 6, TopGroups: 2, Scale: 1}, "uneven groups": {Groups: 4, TopGroups: 2, Scale: 1},
		"no top groups":               {Groups: 2, Scale: 1},
		"more top groups than groups": {Groups: 2, TopGroups: 3, Scale: 1}, "an epsilon of a softmax": {Norm: true,
			Epsilon: 1, Scale: 1},
	} {
		mustPanic(t, what, func() { d.Route(w, ids, probs, logits, r) })
	}
}

func TestRouteGradient(t *testing.T) {
	d := newRowDevice(t, Auto, 1)
	c := rowCase{seed: 32, dtype: kernels.F32}
	c.start()
	const rows, e, k = 6, 16, 4
	logits, dw := c.f32(rows, e), c.f32(rows, k)
	for _, r := range c.routers(e) {
		w, ids, probs, dl := rowTensor(kernels.F32, rows, k), rowTensor(kernels.I32, rows, k),
			rowTensor(kernels.F32, rows, e), c.f32(rows, e)
		d.Route(w, ids, probs, logits, r)
		d.RouteBackward(dl, dw, w, ids, probs, r)
		dw64 := to64(dw)
		checkGradient(t, "dlogits", to64(logits), func(p []float64) float64 {
			loss := 0.0
			for row := range rows {
				loss += routed64(p[row*e:(row+1)*e], dw64[row*k:], ids.I32s()[row*k:(row+1)*k], r)
			}
			return loss
		}, rowValues(dl))
	}
}

// routed64 is sum(dw * weights) of one row whose experts are chosen.
func routed64(x, dw []float64, chosen []int32, r kernels.Router) float64 {
	score := math.Exp
	if r.Sigmoid {
		score = func(v float64) float64 { return 1 / (1 + math.Exp(-v)) }
	}
	all, own := 1.0, float64(r.Epsilon)
	if !r.Sigmoid {
		all = 0
		for _, v := range x {
			all += score(v)
		}
	}
	for _, j := range chosen {
		own += score(x[j])
	}
	if r.Norm {
		all = own
	}
	loss := 0.0
	for i, j := range chosen {
		loss += dw[i] * score(x[j]) / all * float64(r.Scale)
	}
	return loss
}

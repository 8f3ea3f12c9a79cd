package cpu

import (
	"fmt"
	"math"

	"lockstep/kernels"
)

// Route chooses the experts of each token and their weights as kernels.Device states it. logits, probs F32 [T, E];
// experts int32 and weights F32 [T, K].
func (d *Device) Route(weights, experts, probs, logits kernels.Tensor, r kernels.Router) {
	const op = "route"
	t, e, k := logits.Rows, logits.Cols, weights.Cols
	mustShape(op, "probs", probs, t, e)
	mustShape(op, "weights", weights, t, k)
	mustRouter(op, r, e, k)
	if logits.DType != kernels.F32 || probs.DType != kernels.F32 {
		panic(fmt.Sprintf("cpu: route: logits %s, probs %s", logits, probs))
	}
	ws, ids := vector(op, "weights", weights, t*k), indices(op, "experts", experts, t*k)
	in, out := d.matrix(logits), d.matrix(probs)
	d.eachRow(t, 8*e, 1, func(from, to int, buf [][]float32) {
		c := choice{settings: r, biased: buf[0][:e]}
		for i := from; i < to; i++ {
			p, x := out.load(i, nil), in.load(i, nil)
			if d.def.Router == kernels.ToBF16 {
				x = inBF16(buf[0][e:2*e], x)
			}
			if r.Sigmoid {
				d.vec.Sigmoid(p, x)
			} else {
				d.softmax(p, x)
			}
			chosen := ids[i*k : (i+1)*k]
			topK(chosen, c.scores(p))
			weigh(ws[i*k:(i+1)*k], p, chosen, r)
		}
	})
}

// mustRouter panics on settings that the definition does not have.
func mustRouter(op string, r kernels.Router, e, k int) {
	bad := k == 0 || k > e || r.Epsilon != 0 && !(r.Sigmoid && r.Norm)
	bad = bad || r.Groups != 0 && (r.Groups > kernels.MaxGroups || e%r.Groups != 0 || e/r.Groups < 2 ||
		r.TopGroups <= 0 || r.TopGroups > r.Groups)
	if bad {
		panic(fmt.Sprintf("cpu: %s: %d of %d experts by %+v", op, k, e, r))
	}
}

// inBF16 is x rounded to bf16, in buf.
func inBF16(buf, x []float32) []float32 {
	for i, v := range x {
		buf[i] = kernels.NearestBF16(v)
	}
	return buf
}

func (d *Device) softmax(p, x []float32) {
	d.vec.Exp2Sub(p, x, kernels.Log2E, d.vec.Max(x))
	d.vec.Scale(p, 1/d.vec.Tree(p))
}

// choice computes the scores by which experts are chosen.
type choice struct {
	settings kernels.Router
	biased   []float32 // [E]
	groups   [kernels.MaxGroups]float32
	best     [kernels.MaxGroups]int32
}

// scores is b of the definition. It is p itself for a softmax without bias and groups: then either all of p is NaN or
// nothing is.
func (c *choice) scores(p []float32) []float32 {
	r := c.settings
	if r.Bias.IsNil() && r.Groups == 0 && !r.Sigmoid {
		return p
	}
	b := c.biased
	copy(b, p)
	if !r.Bias.IsNil() {
		for j, v := range vector("route", "bias", r.Bias, len(p)) {
			b[j] += v
		}
	}
	for j, v := range b {
		if v != v {
			b[j] = float32(math.Inf(-1))
		}
	}
	if r.Groups > 0 {
		c.mask(b)
	}
	return b
}

// mask sets the scores of experts outside the best groups to -Inf.
func (c *choice) mask(b []float32) {
	groups, n := c.groups[:c.settings.Groups], len(b)/c.settings.Groups
	for g := range groups {
		first, second := float32(math.Inf(-1)), float32(math.Inf(-1))
		for _, v := range b[g*n : (g+1)*n] {
			first, second = max(first, v), max(second, min(first, v))
		}
		groups[g] = first + second
	}
	best := c.best[:c.settings.TopGroups]
	topK(best, groups)
	var kept [kernels.MaxGroups]bool
	for _, g := range best {
		kept[g] = true
	}
	for g := range groups {
		if !kept[g] {
			for j := g * n; j < (g+1)*n; j++ {
				b[j] = float32(math.Inf(-1))
			}
		}
	}
}

// weigh is the weights of the chosen experts, in slot order.
func weigh(w, p []float32, chosen []int32, r kernels.Router) {
	var sum float32
	for i, j := range chosen {
		w[i] = p[j]
		sum += p[j]
	}
	for i := range w {
		if r.Norm {
			w[i] /= sum + r.Epsilon
		}
		w[i] *= r.Scale
	}
}

// topK fills ids with the indices of the largest p, by (p descending, index ascending). It inserts, since k is small.
// If p is NaN, every element of the row is, and the first k are chosen; the loss is then NaN too.
func topK(ids []int32, p []float32) {
	for n := range ids {
		insert(ids[:n+1], p, n)
	}
	last := len(ids) - 1
	least := p[ids[last]]
	for j := len(ids); j < len(p); j++ {
		if p[j] > least { // an equal one came earlier
			insert(ids, p, j)
			least = p[ids[last]]
		}
	}
}

// insert puts j, which is above all indices in ids, in its place in ids and drops the last one.
func insert(ids []int32, p []float32, j int) {
	i := len(ids) - 1
	for ; i > 0 && p[ids[i-1]] < p[j]; i-- {
		ids[i] = ids[i-1]
	}
	ids[i] = int32(j)
}

// RouteBackward writes dlogits F32 [T, E] from dweights F32 [T, K] and what Route wrote.
func (d *Device) RouteBackward(dlogits, dweights, weights, experts, probs kernels.Tensor, r kernels.Router) {
	const op = "route backward"
	t, e, k := probs.Rows, probs.Cols, weights.Cols
	mustShape(op, "dlogits", dlogits, t, e)
	mustRouter(op, r, e, k)
	n := t * k
	dws, ws, ids := vector(op, "dweights", dweights, n), vector(op, "weights", weights, n),
		indices(op, "experts", experts, n)
	mustIndex(op, ids, e)
	out, in := d.matrix(dlogits), d.matrix(probs)
	d.eachRow(t, e, 1, func(from, to int, buf [][]float32) {
		for i := from; i < to; i++ {
			w, dw, chosen := ws[i*k:(i+1)*k], dws[i*k:(i+1)*k], ids[i*k:(i+1)*k]
			dl, p := out.target(i, buf[0]), in.load(i, nil)
			if r.Norm || r.Sigmoid {
				chosenGrad(dl, p, w, dw, chosen, r)
			} else {
				softmaxChosenGrad(dl, p, dw, chosen, r.Scale)
			}
		}
	})
}

// chosenGrad is the gradient where only selected experts have one: of sigmoids, or of weights that are divided by their
// sum.
func chosenGrad(dl, p, w, dw []float32, ids []int32, r kernels.Router) {
	var mean float32
	if r.Norm {
		for i, v := range w {
			mean += float32(v * dw[i])
		}
		mean /= r.Scale
	}
	clear(dl)
	for i, j := range ids {
		dl[j] = w[i] * (dw[i] - mean)
		if r.Sigmoid {
			dl[j] *= 1 - p[j]
		}
	}
}

// softmaxChosenGrad is the gradient of a softmax p of which only the elements ids are used.
func softmaxChosenGrad(dl, p, dw []float32, ids []int32, scale float32) {
	var sum float32
	clear(dl)
	for i, j := range ids {
		dl[j] = dw[i] * scale
		sum += float32(p[j] * dl[j])
	}
	for j, v := range p {
		dl[j] = v * (dl[j] - sum)
	}
}

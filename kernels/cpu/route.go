package cpu

import (
	"fmt"

	"lockstep/kernels"
)

// Route: probs F32 [T, E] is the softmax of logits F32 [T, E] (e = Exp2((x-max)*log2e), p = e*(1/tree(e))); experts int32 [T, K] are the
// k largest by (p descending, expert ascending), weights F32 [T, K] their p, with norm divided by their sum in slot order.
func (d *Device) Route(weights, experts, probs, logits kernels.Tensor, norm bool) {
	const op = "route"
	t, e, k := logits.Rows, logits.Cols, weights.Cols
	mustShape(op, "probs", probs, t, e)
	mustShape(op, "weights", weights, t, k)
	if k == 0 || k > e || logits.DType != kernels.F32 || probs.DType != kernels.F32 {
		panic(fmt.Sprintf("cpu: route: %d of %d experts, logits %s, probs %s", k, e, logits, probs))
	}
	ws, picks := vector(op, "weights", weights, t*k), indices(op, "experts", experts, t*k)
	in, out := d.matrix(logits), d.matrix(probs)
	d.eachRow(t, 8*e, 0, func(from, to int, _ [][]float32) {
		for r := from; r < to; r++ {
			p := out.load(r, nil)
			d.softmax(p, in.load(r, nil))
			w := ws[r*k : (r+1)*k]
			choose := picks[r*k : (r+1)*k]
			largest(choose, p)
			for i, j := range choose {
				w[i] = p[j]
			}
			if norm {
				normalise(w)
			}
		}
	})
}

func (d *Device) softmax(p, x []float32) {
	d.vec.Exp2Sub(p, x, kernels.Log2E, d.vec.Max(x))
	d.vec.Scale(p, 1/d.vec.Tree(p))
}

// normalise divides w by its sum in slot order.
func normalise(w []float32) {
	var sum float32
	for _, v := range w {
		sum += v
	}
	for i := range w {
		w[i] /= sum
	}
}

// largest fills picks with the indices of the largest p, by (p descending, index ascending), by insertion: few are picked.
// If p is not a number (then no element of the row is one) the first are picked, and the loss tells.
func largest(picks []int32, p []float32) {
	for n := range picks {
		insert(picks[:n+1], p, n)
	}
	last := len(picks) - 1
	least := p[picks[last]]
	for j := len(picks); j < len(p); j++ {
		if p[j] > least { // an equal one came earlier
			insert(picks, p, j)
			least = p[picks[last]]
		}
	}
}

// insert puts j, which comes after all of picks, in its place in picks, over the last one.
func insert(picks []int32, p []float32, j int) {
	i := len(picks) - 1
	for ; i > 0 && p[picks[i-1]] < p[j]; i-- {
		picks[i] = picks[i-1]
	}
	picks[i] = int32(j)
}

// RouteBackward writes dlogits F32 [T, E] from dweights F32 [T, K]. With norm, z_i = w_i*(dw_i - sum over slots of w_j*dw_j) on selected experts
// and 0 elsewhere; without, p_j*([j selected]*dw - sum over slots of p_i*dw_i).
func (d *Device) RouteBackward(dlogits, dweights, weights, experts, probs kernels.Tensor, norm bool) {
	const op = "route backward"
	t, e, k := probs.Rows, probs.Cols, weights.Cols
	mustShape(op, "dlogits", dlogits, t, e)
	n := t * k
	dws, ws, picks := vector(op, "dweights", dweights, n), vector(op, "weights", weights, n), indices(op, "experts", experts, n)
	mustIndex(op, picks, e)
	out, in := d.matrix(dlogits), d.matrix(probs)
	d.eachRow(t, e, 1, func(from, to int, buf [][]float32) {
		for r := from; r < to; r++ {
			w, dw, picked := ws[r*k:(r+1)*k], dws[r*k:(r+1)*k], picks[r*k:(r+1)*k]
			dl := out.target(r, buf[0])
			if norm {
				chosenGrad(dl, w, dw, picked)
			} else {
				softmaxChosenGrad(dl, in.load(r, nil), dw, picked)
			}
		}
	})
}

// chosenGrad is the gradient of weights that are divided by their sum: a softmax over the selected experts alone.
func chosenGrad(dl, w, dw []float32, picked []int32) {
	var sum float32
	for i, v := range w {
		sum += float32(v * dw[i])
	}
	clear(dl)
	for i, j := range picked {
		dl[j] = w[i] * (dw[i] - sum)
	}
}

// softmaxChosenGrad is the gradient of a softmax p of which only the picked elements are used.
func softmaxChosenGrad(dl, p, dw []float32, picked []int32) {
	var sum float32
	clear(dl)
	for i, j := range picked {
		sum += float32(p[j] * dw[i])
		dl[j] = dw[i]
	}
	for j, v := range p {
		dl[j] = v * (dl[j] - sum)
	}
}

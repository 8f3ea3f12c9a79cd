package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"lockstep/kernels"
)

// indexCase is an indexer's queries, keys and weights, and the attention of two layers that read its choice, of some
// sequences.
type indexCase struct {
	kernels.Index
	layers  [2]attnCase
	q, k, w [][]float32 // by sequence: [T, Heads*Dim], [T, Dim], [T, Heads]
}

func newIndexCase(rng *rand.Rand, kind attnKind, lengths ...int) indexCase {
	c := indexCase{Index: kernels.Index{Heads: 3, Dim: 24, TopK: 70, Scale: 1 / math.Sqrt(24)}}
	c.layers[0], c.layers[1] = newValueCase(rng, kind, 1, 2, 24, 16, 0, lengths...), newValueCase(rng, kind, 2, 2, 16,
		8, 0, lengths...)
	for _, n := range lengths {
		c.q = append(c.q, attnRandom(rng, kind.dtype, n*c.Heads*c.Dim, 1))
		c.k = append(c.k, attnRandom(rng, kind.dtype, n*c.Dim, 1))
		c.w = append(c.w, attnRandom(rng, kernels.F32, n*c.Heads, 1))
	}
	return c
}

// indexGrads is what the operations write for a packed batch.
type indexGrads struct {
	layout                     *kernels.Layout
	selected                   kernels.Tensor
	lse                        [2]kernels.Tensor
	loss, ds, dq, dk, dweights kernels.Tensor
}

// run computes the sequences in an order, as one batch. lists draws the keys of rows; nil: all.
func (c indexCase) run(dev *Device, order []int, lists func(b attnBatch) kernels.Tensor) (g indexGrads) {
	dtype := c.layers[0].dtype
	var q, k, w []float32
	for _, s := range order {
		q, k, w = append(q, c.q[s]...), append(k, c.k[s]...), append(w, c.w[s]...)
	}
	for i, layer := range c.layers {
		b := layer.pack(order)
		rows := b.layout.Rows()
		kv := kernels.KV{K: b.k, V: b.v}
		if i == 0 {
			g.layout, g.ds = b.layout, attnTensor(kernels.F32, make([]float32, rows*c.entries()), rows, c.entries(), 3)
			if lists != nil {
				g.selected = lists(b)
			}
		}
		if lists == nil {
			dev.Attention(b.out, b.lse, b.q, kv, b.layout, layer.Attn)
		} else {
			dev.SparseAttend(b.out, b.lse, b.q, kv, g.selected, b.layout, layer.Attn)
		}
		g.lse[i] = b.lse
		dev.IndexTarget(g.ds, b.q, b.k, b.lse, g.selected, b.layout, layer.Attn)
	}
	rows := g.layout.Rows()
	queries, keys, weights := attnTensor(dtype, q, rows, c.Heads*c.Dim, 5), attnTensor(dtype, k, rows, c.Dim, 1),
		attnTensor(kernels.F32, w, rows, c.Heads, 2)
	g.loss = kernels.Wrap(make([]float32, rows), 1, rows)
	dev.IndexLoss(g.loss, g.ds, queries, weights, keys, g.selected, g.layout, c.Index)
	g.dq, g.dk, g.dweights = attnTensor(dtype, nil, rows, c.Heads*c.Dim, 4), attnTensor(dtype, nil, rows, c.Dim, 0),
		attnTensor(kernels.F32, nil, rows, c.Heads, 1)
	dev.IndexBackward(g.dq, g.dk, g.dweights, g.ds, queries, weights, keys, g.selected, g.layout, c.Index)
	return g
}

// entries is more than any row needs.
func (c indexCase) entries() int { return slices.Max(c.layers[0].lengths) + 1 }

// reference follows the definition line by line, for one sequence: lists [T] and lse of both layers [T][heads].
type reference struct {
	loss             []float32
	ds               [][]float32 // [T][entries]
	dq, dk, dweights []float32
}

func (c indexCase) reference(s int, lists [][]int32, lse [2][][]float32) (r reference) {
	kind, n := c.layers[0].attnKind, len(lists)
	exp2, ln := kind.exp2.Func(), kernels.Ln
	products := make([][][]float32, n) // r of row, head, entry
	for i, list := range lists {
		target, scores := make([]float32, len(list)), make([]float32, len(list))
		products[i] = make([][]float32, c.Heads)
		for e, j := range list {
			for x, layer := range c.layers {
				for h := range layer.Heads {
					u := refDot(kind.dot, 0, layer.head(layer.q[s], i, h, layer.Heads), layer.head(layer.k[s], int(j),
						h/(layer.Heads/layer.KVHeads), layer.KVHeads)) * float32(layer.Scale*math.Log2E)
					target[e] += exp2(min(u-lse[x][i][h], 0))
				}
			}
			for h := range c.Heads {
				v := float32(refDot(kind.dot, 0, c.q[s][(i*c.Heads+h)*c.Dim:][:c.Dim], c.k[s][int(j)*c.Dim:][:c.Dim]) *
					float32(c.Scale))
				products[i][h] = append(products[i][h], v)
				scores[e] += float32(c.w[s][i*c.Heads+h] * max(v, 0))
			}
		}
		total, m, y := treeOf(target), slices.Max(scores), make([]float32, len(list))
		for e := range y {
			y[e] = exp2(float32((scores[e] - m) * kernels.Log2E))
		}
		z := treeOf(y)
		terms, ds := make([]float32, len(list)), make([]float32, len(list))
		for e := range y {
			p := target[e] / total
			if p >= 0x1p-126 {
				terms[e] = float32(p * (ln(p) - ((scores[e] - m) - ln(z))))
			}
			ds[e] = float32(y[e]*(1/z)) - p
		}
		r.loss, r.ds = append(r.loss, treeOf(terms)), append(r.ds, ds)
	}
	r.gradients(c, s, lists, products)
	return r
}

func (r *reference) gradients(c indexCase, s int, lists [][]int32, products [][][]float32) {
	kind, n := c.layers[0].attnKind, len(lists)
	r.dq, r.dk, r.dweights = make([]float32, n*c.Heads*c.Dim), make([]float32, n*c.Dim), make([]float32, n*c.Heads)
	for h := range c.Heads {
		dr := make([][]float32, n) // [T][keys]
		for i, list := range lists {
			dr[i] = make([]float32, n)
			along, row := make([]float32, len(list)), make([]float32, len(list))
			for e, j := range list {
				v := products[i][h][e]
				along[e] = float32(r.ds[i][e] * max(v, 0))
				if v > 0 {
					row[e] = attnRound(kind.dtype, float32(float32(r.ds[i][e]*c.w[s][i*c.Heads+h])*float32(c.Scale)))
				}
				dr[i][j] = row[e]
			}
			r.dweights[i*c.Heads+h] = treeOf(along)
			for d := range c.Dim {
				column := make([]float32, len(list))
				for e, j := range list {
					column[e] = c.k[s][int(j)*c.Dim+d]
				}
				r.dq[(i*c.Heads+h)*c.Dim+d] = attnRound(kind.dtype, refDot(kind.dot, 0, row, column)+0)
			}
		}
		for j := range n {
			column, q := make([]float32, n), make([]float32, n)
			for d := range c.Dim {
				for i := range n {
					column[i], q[i] = dr[i][j], c.q[s][(i*c.Heads+h)*c.Dim+d]
				}
				r.dk[j*c.Dim+d] = refDot(kind.dot, r.dk[j*c.Dim+d], column, q)
			}
		}
	}
	for i, v := range r.dk {
		r.dk[i] = attnRound(kind.dtype, v+0)
	}
}

// check compares a batch with the reference of each sequence and reports the first difference.
func (c indexCase) check(g indexGrads, order []int) error {
	all := make([]int32, c.entries())
	for i := range all {
		all[i] = int32(i)
	}
	for at, s := range order {
		span := g.layout.Spans[at]
		var lists [][]int32
		var lse [2][][]float32
		for i := range span.Rows {
			if g.selected.IsNil() {
				lists = append(lists, all[:i+1])
			} else {
				lists = append(lists, listOf(g.selected, span.Row+i))
			}
			for x := range lse {
				lse[x] = append(lse[x], attnRow(g.lse[x], span.Row+i))
			}
		}
		want := c.reference(s, lists, lse)
		for i := range span.Rows {
			row := span.Row + i
			for _, x := range []struct {
				what      string
				got, want []float32
			}{
				{"loss", g.loss.F32s()[row:][:1], want.loss[i:][:1]}, {"ds", attnRow(g.ds, row)[:len(lists[i])],
					want.ds[i]},
				{"behind the list", attnRow(g.ds, row)[len(lists[i]):], make([]float32, c.entries()-len(lists[i]))},
				{"dweights", attnRow(g.dweights, row), want.dweights[i*c.Heads:][:c.Heads]},
				{"dq", attnRow(g.dq, row), want.dq[i*c.Heads*c.Dim:][:c.Heads*c.Dim]}, {"dk", attnRow(g.dk, row),
					want.dk[i*c.Dim:][:c.Dim]},
			} {
				if !sameBits(x.got, x.want) {
					return fmt.Errorf("%s of sequence %d row %d: %v, want %v", x.what, s, i, x.got, x.want)
				}
			}
		}
	}
	return nil
}

// The indexer loss and its gradients equal the definition on every bit, for any order of packed sequences, instruction
// set and number of threads.
func TestIndexLoss(t *testing.T) {
	rng := rand.New(rand.NewPCG(71, 72))
	for _, kind := range attnKinds {
		for n, dev := range attnDevices(t, kind) {
			c := newIndexCase(rng, kind, 90, 3, 70)
			if kind == plainKind && n == 0 {
				c = newIndexCase(rng, kind, stripKeys+20, 3, 70)
			}
			order := rng.Perm(3)
			for _, lists := range []func(attnBatch) kernels.Tensor{nil, func(b attnBatch) kernels.Tensor {
				return c.layers[0].lists(rng, b, 66)
			}} {
				if err := c.check(c.run(dev, order, lists), order); err != nil {
					t.Fatalf("%v on %s, lists %t: %v", kind, dev.Name(), lists != nil, err)
				}
			}
		}
	}
}

// The order of heads is part of the definition: another order has other bits.
func TestIndexLossSeesOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(81, 82))
	dev := attnDevices(t, plainKind)[0]
	c := newIndexCase(rng, plainKind, 100)
	reversed := c
	reversed.q, reversed.w = [][]float32{nil}, [][]float32{nil}
	for at := c.Heads; at <= len(c.w[0]); at += c.Heads {
		for h := 1; h <= c.Heads; h++ {
			reversed.q[0] = append(reversed.q[0], c.q[0][(at-h)*c.Dim:][:c.Dim]...)
			reversed.w[0] = append(reversed.w[0], c.w[0][at-h])
		}
	}
	g, other := c.run(dev, []int{0}, nil), reversed.run(dev, []int{0}, nil)
	if sameBits(g.loss.F32s(), other.loss.F32s()) {
		t.Error("divergences of heads in reverse are the same: the test of bits cannot fail")
	}
	differ := 0
	for r := range g.dk.Rows {
		if !sameBits(attnRow(g.dk, r), attnRow(other.dk, r)) {
			differ++
		}
	}
	if differ == 0 {
		t.Error("gradients of heads in reverse are the same: the test of bits cannot fail")
	}
}

// Lists of every key give the bits of no lists.
func TestIndexLossOfAllKeys(t *testing.T) {
	rng := rand.New(rand.NewPCG(73, 74))
	for _, kind := range attnKinds {
		for _, dev := range attnDevices(t, kind) {
			c := newIndexCase(rng, kind, 9, 100)
			want := c.run(dev, []int{0, 1}, nil)
			got := c.run(dev, []int{0, 1}, func(b attnBatch) kernels.Tensor {
				return c.layers[0].lists(rng, b, 100)
			})
			for i, pair := range [][2]kernels.Tensor{{got.loss, want.loss}, {got.ds, want.ds}, {got.dq, want.dq},
				{got.dk, want.dk}, {got.dweights, want.dweights}} {
				for r := range pair[0].Rows {
					if !sameBits(attnRow(pair[0], r), attnRow(pair[1], r)) {
						t.Fatalf("%v: result %d, row %d differs from that of all keys", kind, i, r)
					}
				}
			}
		}
	}
}

// The gradient is that of the divergence, by finite differences in float64.
func TestIndexGradient(t *testing.T) {
	rng := rand.New(rand.NewPCG(75, 76))
	const n, topK, step = 17, 5, 1e-6
	c := newIndexCase(rng, plainKind, n)
	dev := attnDevices(t, plainKind)[0]
	g := c.run(dev, []int{0}, func(b attnBatch) kernels.Tensor { return c.layers[0].lists(rng, b, topK) })
	var x [3][]float64
	for i, v := range [][]float32{c.q[0], c.k[0], c.w[0]} {
		for _, y := range v {
			x[i] = append(x[i], float64(y))
		}
	}
	targets := c.targets64(g)
	losses, total := c.loss64(g.selected, targets, x), 0.0
	for i, want := range losses {
		total += want
		if got := float64(g.loss.F32s()[i]); math.Abs(got-want) > 1e-5*(1+want) {
			t.Errorf("row %d: divergence %g, want %g", i, got, want)
		}
	}
	if total < 1 {
		t.Fatalf("divergence %g: nothing to learn", total)
	}
	for which, grad := range []kernels.Tensor{g.dq, g.dk, g.dweights} {
		for i := range x[which] {
			keep := x[which][i]
			x[which][i] = keep + step
			up := sum64(c.loss64(g.selected, targets, x))
			x[which][i] = keep - step
			down := sum64(c.loss64(g.selected, targets, x))
			x[which][i] = keep
			got, want := float64(attnRow(grad, i/grad.Cols)[i%grad.Cols]), (up-down)/(2*step)
			if math.Abs(got-want) > 1e-4*(1+math.Abs(want)) {
				t.Fatalf("input %d element %d: gradient %g, want %g", which, i, got, want)
			}
		}
	}
}

func sum64(x []float64) (sum float64) {
	for _, v := range x {
		sum += v
	}
	return sum
}

// targets64 is the normalised attention probabilities of the first sequence's rows: [T][entries].
func (c indexCase) targets64(g indexGrads) (all [][]float64) {
	for i := range c.layers[0].lengths[0] {
		list := listOf(g.selected, i)
		p, total := make([]float64, len(list)), 0.0
		for _, layer := range c.layers {
			for h := range layer.Heads {
				e, sum := make([]float64, len(list)), 0.0
				for n, j := range list {
					q, k := layer.head(layer.q[0], i, h, layer.Heads), layer.head(layer.k[0], int(j),
						h/(layer.Heads/layer.KVHeads), layer.KVHeads)
					u := 0.0
					for d := range q {
						u += float64(q[d]) * float64(k[d])
					}
					e[n] = math.Exp(u * layer.Scale)
					sum += e[n]
				}
				for n := range p {
					p[n] += e[n] / sum
				}
				total++
			}
		}
		for n := range p {
			p[n] /= total
		}
		all = append(all, p)
	}
	return all
}

// loss64 is the divergence of each row of the first sequence from queries, keys and weights.
func (c indexCase) loss64(selected kernels.Tensor, targets [][]float64, x [3][]float64) (losses []float64) {
	for i, p := range targets {
		list := listOf(selected, i)
		scores, z, loss := make([]float64, len(list)), 0.0, 0.0
		for e, j := range list {
			for h := range c.Heads {
				dot := 0.0
				for d := range c.Dim {
					dot += x[0][(i*c.Heads+h)*c.Dim+d] * x[1][int(j)*c.Dim+d]
				}
				scores[e] += x[2][i*c.Heads+h] * max(dot*c.Scale, 0)
			}
			z += math.Exp(scores[e])
		}
		for e := range list {
			loss += p[e] * (math.Log(p[e]) - (scores[e] - math.Log(z)))
		}
		losses = append(losses, loss)
	}
	return losses
}

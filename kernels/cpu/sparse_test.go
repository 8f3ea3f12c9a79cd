package cpu

import (
	"math/rand/v2"
	"slices"
	"sort"
	"testing"

	"lockstep/kernels"
)

// lists draws for every row of a case's packed batch min(topK, i+1) of its keys.
func (c attnCase) lists(rng *rand.Rand, b attnBatch, topK int) kernels.Tensor {
	selected := make([]int32, b.layout.Rows()*topK)
	for i := range selected {
		selected[i] = -1
	}
	for _, s := range b.layout.Spans {
		for i := range s.Rows {
			list := selected[(s.Row+i)*topK:][:topK]
			for n, j := range rng.Perm(i + 1)[:min(topK, i+1)] {
				list[n] = int32(j)
			}
			slices.Sort(list[:min(topK, i+1)])
		}
	}
	t := kernels.WrapI32(selected)
	return t.Reshape(b.layout.Rows(), topK)
}

// compacted is the case of one row alone: a sequence whose keys are the row's list and whose last query is the row's.
func (c attnCase) compacted(s, i int, list []int32) attnCase {
	nq, nk, nv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim, c.KVHeads*c.ValueDim
	one := attnCase{Attn: c.Attn, attnKind: c.attnKind, lengths: []int{len(list)},
		q: [][]float32{make([]float32, len(list)*nq)}}
	var k, v []float32
	for _, j := range list {
		k, v = append(k, c.k[s][int(j)*nk:][:nk]...), append(v, c.v[s][int(j)*nv:][:nv]...)
	}
	copy(one.q[0][(len(list)-1)*nq:], c.q[s][i*nq:][:nq])
	one.k, one.v = [][]float32{k}, [][]float32{v}
	return one
}

// Attention to a list is attention to a sequence of its keys; a list of all keys gives the bits of Attention, forward
// and backward.
func TestSparseAttention(t *testing.T) {
	rng := rand.New(rand.NewPCG(61, 62))
	for _, kind := range attnKinds {
		for n, dev := range attnDevices(t, kind) {
			c := newValueCase(rng, kind, 1+n, 2, 24, 16, 0, 140, 3, 70)
			b := c.pack(ints(len(c.lengths)))
			kv := kernels.KV{K: b.k, V: b.v}
			selected := c.lists(rng, b, 66)
			dev.SparseAttend(b.out, b.lse, b.q, kv, selected, b.layout, c.Attn)
			for s, span := range b.layout.Spans {
				for i := range span.Rows {
					list := listOf(selected, span.Row+i)
					one := c.compacted(s, i, list)
					for h := range c.Heads {
						out, lse := one.forward(0, len(list)-1, h)
						if got := c.value(attnRow(b.out, span.Row+i), 0, h, c.Heads); !sameBits(got, out) ||
							attnRow(b.lse, span.Row+i)[h] != lse {
							t.Fatalf("%v: sequence %d row %d head %d: %v, want %v", c, s, i, h, got, out)
						}
					}
				}
			}
			c.allKeys(t, dev, rng)
			newValueCase(rng, kind, 3+17*(n%2), 1, 24, 16, 0, 140, 3, 20).latent().allKeys(t, dev, rng)
		}
	}
}

// allKeys compares lists of every key with Attention, and its gradients, and those along shorter lists, with the same
// in parts.
func (c attnCase) allKeys(t *testing.T, dev *Device, rng *rand.Rand) {
	t.Helper()
	dout := c.randomDout(rng)
	want, grads := c.backward(dev, dout, ints(len(c.lengths)))
	for _, topK := range []int{140, 20} {
		b := c.pack(ints(len(c.lengths)))
		selected := c.lists(rng, b, topK)
		d := attnTensor(c.dtype, slices.Concat(dout...), b.layout.Rows(), b.out.Cols, 1)
		got := c.sparseBackward(dev, b, d, selected)
		if topK == 140 {
			c.checkSame(t, "all keys", b, want)
			sameGradients(t, got, grads)
		}
		sameGradients(t, c.divided(dev, b, d, selected), got)
	}
}

// sparseBackward runs forward and backward of the sequences of a packed batch with lists.
func (c attnCase) sparseBackward(dev *Device, b attnBatch, dout, selected kernels.Tensor) attnGrads {
	rows, kv := b.layout.Rows(), kernels.KV{K: b.k, V: b.v}
	g := attnGrads{attnTensor(c.dtype, nil, rows, b.q.Cols, 7), attnTensor(c.dtype, nil, rows, b.k.Cols, 7),
		attnTensor(c.dtype, nil, rows, b.v.Cols, 7)}
	dev.SparseAttend(b.out, b.lse, b.q, kv, selected, b.layout, c.Attn)
	dev.SparseAttendBackward(g.dq, g.dk, g.dv, dout, b.out, b.lse, b.q, kv, selected, b.layout, c.Attn)
	return g
}

// The gradient is that of attention to the list, by finite differences in float64.
func TestSparseAttentionGradient(t *testing.T) {
	rng := rand.New(rand.NewPCG(63, 64))
	const n, topK = 19, 5
	for _, c := range []attnCase{newValueCase(rng, plainKind, 2, 2, 8, 5, 0, n),
		newValueCase(rng, plainKind, 3, 1, 8, 5, 0, n).latent()} {
		b, dout := c.pack([]int{0}), c.randomDout(rng)
		selected := c.lists(rng, b, topK)
		g := c.sparseBackward(attnDevices(t, c.attnKind)[0], b, attnTensor(c.dtype, dout[0], n, b.out.Cols, 0),
			selected)
		c.isTheGradient(t, g, dout[0], func(i, j int) bool {
			return slices.Contains(listOf(selected, i), int32(j))
		})
	}
}

// Chains of keys on lists, of a latent and of heads with keys of their own: pairs that are not on a list add nothing.
func TestSparseKeyGradEqualsDefinition(t *testing.T) {
	rng := rand.New(rand.NewPCG(65, 66))
	for _, kind := range attnKinds {
		for _, c := range []attnCase{newValueCase(rng, kind, 1, 2, 24, 16, 0, 70),
			newValueCase(rng, kind, 20, 1, 24, 16, 0, 70).latent()} {
			dev, b, dout := attnDevices(t, kind)[0], c.pack([]int{0}), c.randomDout(rng)
			selected := c.lists(rng, b, 9)
			g := c.sparseBackward(dev, b, attnTensor(c.dtype, dout[0], 70, b.out.Cols, 0), selected)
			c.sees = func(i, j int) bool { return slices.Contains(listOf(selected, i), int32(j)) }
			var out, lse [][]float32
			for i := range 70 {
				out, lse = append(out, attnRow(b.out, i)), append(lse, attnRow(b.lse, i))
			}
			_, dk, dv := c.gradient(0, dout[0], out, lse)
			for i := range 70 {
				if !sameBits(attnRow(g.dk, i), attnRowOf(dk, i, b.k.Cols)) ||
					!sameBits(attnRow(g.dv, i), attnRowOf(dv, i, b.v.Cols)) {
					t.Fatalf("%v: gradients of key %d are %v and %v", c, i, attnRow(g.dk, i), attnRow(g.dv, i))
				}
			}
		}
	}
}

// Selection equals the definition for any pages and any other sequences in the batch; many scores are equal.
func TestSelectKeys(t *testing.T) {
	rng := rand.New(rand.NewPCG(65, 66))
	x := kernels.Index{Heads: 3, Dim: 16, TopK: 7, Scale: 0.25}
	const n, pageRows = 150, 16
	for _, kind := range attnKinds {
		for _, dev := range attnDevices(t, kind) {
			few := func(count int) []float32 { // few values, so that ties are common
				v := make([]float32, count)
				for i := range v {
					v[i] = float32(rng.IntN(3) - 1)
				}
				return v
			}
			q, k, w := few(n*x.Heads*x.Dim), few(n*x.Dim), few(n*x.Heads)
			packed := &kernels.Layout{Spans: []kernels.Span{{Rows: n}}, Segments: []int32{0, n}}
			selected := kernels.WrapI32(make([]int32, n*x.TopK)).Reshape(n, x.TopK)
			keys := kernels.KV{K: attnTensor(kind.dtype, k, n, x.Dim, 3)}
			dev.SelectKeys(selected, attnTensor(kind.dtype, q, n, x.Heads*x.Dim, 1), attnTensor(kernels.F32, w, n,
				x.Heads,
				2), keys, packed, x)
			for i := range n {
				if got, want := listOf(selected, i), wantedKeys(kind, x, q, k, w, i); !slices.Equal(got, want) {
					t.Fatalf("%v row %d: %v, want %v", kind, i, got, want)
				}
			}
			// the last rows alone, keys in pages
			const rows = 5
			pages := rng.Perm(n/pageRows + 3)
			cache := kernels.KV{K: attnTensor(kind.dtype, nil, len(pages)*pageRows, x.Dim, 0), PageRows: pageRows}
			span := kernels.Span{Rows: rows, Pos: n - rows}
			for p := range (n + pageRows - 1) / pageRows {
				span.Pages = append(span.Pages, int32(pages[p]))
			}
			for j := range n {
				copyRow(cache.K, cacheRow(cache, &span, j), keys.K, j)
			}
			some := kernels.WrapI32(make([]int32, rows*x.TopK)).Reshape(rows, x.TopK)
			dev.SelectKeys(some, attnTensor(kind.dtype, q[(n-rows)*x.Heads*x.Dim:], rows, x.Heads*x.Dim, 0),
				attnTensor(kernels.F32, w[(n-rows)*x.Heads:], rows, x.Heads, 0), cache,
				&kernels.Layout{Spans: []kernels.Span{span}, Segments: []int32{0, rows}}, x)
			for i := range rows {
				if !slices.Equal(listOf(some, i), listOf(selected, n-rows+i)) {
					t.Fatalf("%v: row %d alone chooses %v, in its batch %v", kind, n-rows+i, listOf(some, i),
						listOf(selected, n-rows+i))
				}
			}
		}
	}
}

// wantedKeys is the selected keys of row i, by a stable sort.
func wantedKeys(kind attnKind, x kernels.Index, q, k, w []float32, i int) []int32 {
	var order []int32
	scores := make([]float32, i+1)
	for j := range scores {
		for h := range x.Heads {
			dot := refDot(kind.dot, 0, q[(i*x.Heads+h)*x.Dim:][:x.Dim], k[j*x.Dim:][:x.Dim])
			scores[j] += float32(w[i*x.Heads+h] * max(float32(dot*float32(x.Scale)), 0))
		}
		order = append(order, int32(j))
	}
	sort.SliceStable(order, func(a, b int) bool { return scores[order[a]] > scores[order[b]] })
	order = order[:min(len(order), x.TopK)]
	slices.Sort(order)
	return order
}

// treeOf is the tree of 256 lanes.
func treeOf(x []float32) float32 {
	lanes := make([]float32, 256)
	for i, v := range x {
		lanes[i%256] += v
	}
	return refTree(256, lanes)
}

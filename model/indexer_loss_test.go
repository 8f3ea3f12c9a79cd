package model

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/parallel"
)

// withIndexers runs body with a tiny GLM-5 whose indexers learn.
func withIndexers(t *testing.T, family string, o Options, threads int, body func(r *parallel.Rank, m *Model)) {
	t.Helper()
	dev, err := cpu.New(kernels.Default(), cpu.Options{Threads: threads})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	err = parallel.Run([]kernels.Device{dev}, func(r *parallel.Rank) error {
		m, err := LoadFolder(dev, "testdata/"+family, "", o)
		if err == nil {
			m.TrainAll()
			body(r, m)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// indexerBatch is sequences of random ids of some lengths, each a segment.
func indexerBatch(r *parallel.Rank, m *Model, ids ...[]int32) *Batch {
	l := &kernels.Layout{Segments: []int32{0}}
	for _, s := range ids {
		l.Spans = append(l.Spans, kernels.Span{Row: l.Rows(), Rows: len(s)})
		l.Segments = append(l.Segments, int32(l.Rows()+len(s)))
	}
	b := NewBatch(r, slices.Concat(ids...), l, nil)
	b.IndexerLoss = m.NewIndexerLoss(r, b.Rows())
	return b
}

func randomIDs(seed uint64, vocab int, lengths ...int) (all [][]int32) {
	rng := rand.New(rand.NewPCG(seed, 1))
	for _, n := range lengths {
		ids := make([]int32, n)
		for i := range ids {
			ids[i] = int32(rng.IntN(vocab))
		}
		all = append(all, ids)
	}
	return all
}

// indexerGrads is what a step of some micro-batches leaves: gradients by name, divergences and log-probabilities of
// rows in order.
type indexerGrads struct {
	grads       map[string][]float32
	kl, logprob []float32
}

func (m *Model) indexerStep(r *parallel.Rank, policy Policy, rows int, micros ...[][]int32) indexerGrads {
	out := indexerGrads{grads: map[string][]float32{}}
	for _, ids := range micros {
		mark := r.Stack.Mark()
		b := indexerBatch(r, m, ids...)
		targets, d := slices.Concat(ids...), slices.Repeat([]float32{-1 / float32(rows)}, b.Rows())
		logprob := r.Stack.New(kernels.F32, 1, b.Rows())
		p := &Pass{Batch: b, LogProb: logprob, Targets: Targets{IDs: parallel.Upload(r, targets)},
			Loss: Loss{Derivative: parallel.Upload(r, d).ColRange}}
		m.Step(r, &Share{Passes: []*Pass{p}}, policy)
		out.logprob = append(out.logprob, parallel.Download[float32](r, logprob)...)
		if b.IndexerLoss != nil {
			kl := parallel.Download[float32](r, b.IndexerLoss.KL)
			for i := range b.Rows() {
				for n := range b.IndexerLoss.KL.Rows {
					out.kl = append(out.kl, kl[n*b.Rows()+i])
				}
			}
		}
		r.Stack.Release(mark)
	}
	for _, p := range m.Trained() {
		out.grads[p.Name] = ReadValues(r.Dev, p.Grad)
		r.Dev.Zero(p.Grad)
	}
	return out
}

// differs names the first thing that is not the same on every bit among gradients whose names have a part in common.
func (a indexerGrads) differs(b indexerGrads, part string) string {
	for name, g := range a.grads {
		if strings.Contains(name, part) && !equalBits(g, b.grads[name]) {
			return name
		}
	}
	if !equalBits(a.kl, b.kl) {
		return "divergence"
	}
	if !equalBits(a.logprob, b.logprob) {
		return "log-probabilities"
	}
	return ""
}

func equalBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

var indexedFamilies = []string{"glm5", "glm5_shared"}

// The loss of indexers leaves every gradient of the model as it is, to the bit, and the indexers' own do not depend on
// micro-batches, recompute or threads.
func TestIndexersLearnApart(t *testing.T) {
	for _, family := range indexedFamilies {
		for _, dtype := range []kernels.DType{kernels.F32, kernels.BF16} {
			var frozen, whole indexerGrads
			ids := randomIDs(1, 96, 40, 7, 25)
			const rows = 72
			withIndexers(t, family, Options{DType: dtype}, 2, func(r *parallel.Rank, m *Model) {
				frozen = m.indexerStep(r, nil, rows, ids)
			})
			withIndexers(t, family, Options{DType: dtype, Indexing: IndexersSparse}, 2,
				func(r *parallel.Rank, m *Model) {
					whole = m.indexerStep(r, nil, rows, ids)
					if len(whole.grads) != len(frozen.grads)+len(m.IndexerParams()) ||
						len(m.IndexerParams()) != 5*len(m.indexers) {
						t.Errorf("%s: %d gradients, without indexers %d", family, len(whole.grads), len(frozen.grads))
					}
					for name, what := range map[string]indexerGrads{"micro-batches": m.indexerStep(r, nil, rows,
						ids[:1],
						ids[1:]),
						"recompute": m.indexerStep(r, m.Everywhere(0), rows, ids[:2], ids[2:])} {
						if d := whole.differs(what, ""); d != "" {
							t.Errorf("%s %s: %s differs by %s", family, dtype, d, name)
						}
					}
					if whole.differs(m.indexerStep(r, nil, rows, ids[1:]), "indexer") == "" {
						t.Errorf("%s: fewer rows give the same bits: the test cannot fail", family)
					}
				})
			for name, g := range frozen.grads {
				if !equalBits(g, whole.grads[name]) {
					t.Errorf("%s %s: the gradient of %s is another one where indexers learn", family, dtype, name)
				}
			}
			if !equalBits(frozen.logprob, whole.logprob) {
				t.Errorf("%s %s: log-probabilities are others where indexers learn", family, dtype)
			}
			withIndexers(t, family, Options{DType: dtype, Indexing: IndexersSparse}, 1,
				func(r *parallel.Rank, m *Model) {
					if d := whole.differs(m.indexerStep(r, nil, rows, ids), ""); d != "" {
						t.Errorf("%s %s: %s differs by threads", family, dtype, d)
					}
				})
		}
	}
}

// Where indexers alone learn the model reads all keys, and nothing else has a gradient; within the keys of a choice
// both stages are one.
func TestDenseStage(t *testing.T) {
	for _, family := range indexedFamilies {
		var sparse, dense indexerGrads
		short, long := randomIDs(2, 96, 8, 5), randomIDs(3, 96, 40)
		withIndexers(t, family, Options{Indexing: IndexersSparse}, 2, func(r *parallel.Rank, m *Model) {
			sparse = m.indexerStep(r, nil, 13, short)
		})
		withIndexers(t, family, Options{Indexing: IndexersDense}, 2, func(r *parallel.Rank, m *Model) {
			dense = m.indexerStep(r, nil, 13, short)
			if d := dense.differs(sparse, "indexer"); d != "" {
				t.Errorf("%s: %s differs between stages though every row reads all keys", family, d)
			}
			if len(dense.grads) != len(m.IndexerParams()) {
				t.Errorf("%s: %d parameters learn, %d are the indexers'", family, len(dense.grads),
					len(m.IndexerParams()))
			}
			if d := m.indexerStep(r, nil, 40, long).differs(m.indexerStep(r, m.Everywhere(0), 40, long), ""); d != "" {
				t.Errorf("%s: %s differs by recompute", family, d)
			}
		})
	}
}

// The gradient is that of the mean divergence, by finite differences in float64 from the inputs of each indexer on.
func TestIndexerGradient(t *testing.T) {
	for _, family := range indexedFamilies {
		for _, stage := range []IndexerStage{IndexersSparse, IndexersDense} {
			withIndexers(t, family, Options{Indexing: stage}, 2, func(r *parallel.Rank, m *Model) {
				b := indexerBatch(r, m, randomIDs(4, 96, 24, 7)...)
				s := new(Saved)
				m.Forward(r, b, s)
				m.blocks().trainIndexers(r, &Share{Passes: []*Pass{{Batch: b, Saved: s}}})
				for i, bl := range m.Blocks {
					if a := bl.mixer().(*MLA); a.Index != nil {
						c := newIndexerReference(r, m, b, s, i)
						if err := c.check(r, b, rand.New(rand.NewPCG(5, uint64(i)))); err != nil {
							t.Errorf("%s, %s stage, block %d: %v", family, stage, i, err)
						}
					}
				}
			})
		}
	}
}

// indexerReference is one indexer in float64: its inputs and weights, the keys of each row and the attention that it is
// to follow.
type indexerReference struct {
	n       *Indexer
	u, x    [][]float64 // [T, cq], [T, H]
	weights [][]float64 // of params
	target  [][]float64 // [T][entries]
	lists   [][]int     // [T]: rows of the batch
	at      []int       // [T]: position
}

func rowsOf(r *parallel.Rank, t kernels.Tensor) (out [][]float64) {
	flat := r.Stack.New(t.DType, t.Rows, t.Cols)
	r.Dev.Copy(flat, t)
	v := ReadValues(r.Dev, flat)
	for i := range t.Rows {
		var row []float64
		for _, y := range v[i*t.Cols:][:t.Cols] {
			row = append(row, float64(y))
		}
		out = append(out, row)
	}
	return out
}

func newIndexerReference(r *parallel.Rank, m *Model, b *Batch, s *Saved, block int) *indexerReference {
	own := s.blocks[block].inner[0].Layer.(*MLASaved)
	c := &indexerReference{n: m.Blocks[block].mixer().(*MLA).Index, u: rowsOf(r, own.Index.U),
		x: rowsOf(r, own.Index.X)}
	for _, p := range c.n.params() {
		c.weights = append(c.weights, slices.Concat(rowsOf(r, p.W)...))
	}
	var selected []int32
	if !own.Selected.IsNil() {
		selected = parallel.Download[int32](r, own.Selected)
	}
	for _, span := range b.Layout.Spans {
		for pos := range span.Rows {
			var list []int
			for e := range pos + 1 {
				j := e
				if selected != nil {
					if e == own.Selected.Cols {
						break
					}
					j = int(selected[(span.Row+pos)*own.Selected.Cols+e])
				}
				list = append(list, span.Row+j)
			}
			c.lists, c.at, c.target = append(c.lists, list), append(c.at, pos),
				append(c.target, make([]float64, len(list)))
		}
	}
	readers := 0
	for i, bl := range m.Blocks {
		if a := bl.mixer().(*MLA); a.SelectedBy == block {
			readers++
			c.addAttention(r, a, s.blocks[i].inner[0].Layer.(*MLASaved))
		}
	}
	for _, p := range c.target {
		for e := range p {
			p[e] /= float64(readers)
		}
	}
	return c
}

// addAttention adds the mean of a layer's heads to the target.
func (c *indexerReference) addAttention(r *parallel.Rank, a *MLA, s *MLASaved) {
	q, k, dim, group := rowsOf(r, s.Q), rowsOf(r, s.K), a.Shape.HeadDim, a.Shape.Heads/a.Shape.KVHeads
	for i, list := range c.lists {
		for h := range a.Shape.Heads {
			e, z := make([]float64, len(list)), 0.0
			for n, j := range list {
				e[n] = math.Exp(dot64(q[i][h*dim:][:dim], k[j][h/group*dim:]) * a.Shape.Scale)
				z += e[n]
			}
			for n := range e {
				c.target[i][n] += e[n] / z / float64(a.Shape.Heads)
			}
		}
	}
}

func dot64(x, y []float64) (sum float64) {
	for i, v := range x {
		sum += v * y[i]
	}
	return sum
}

// times is x W^T for rows of W.
func times(x, w []float64) (y []float64) {
	for ; len(w) > 0; w = w[len(x):] {
		y = append(y, dot64(x, w))
	}
	return y
}

// rotated is a head with rotary positions on its first columns, in adjacent pairs.
func (c *indexerReference) rotated(x []float64, pos int) []float64 {
	y, cos, sin := slices.Clone(x), c.n.Rope.Cos.F32s(), c.n.Rope.Sin.F32s()
	for i := range c.n.Rope.Cos.Cols {
		co, si := float64(cos[pos*c.n.Rope.Cos.Stride+i]), float64(sin[pos*c.n.Rope.Sin.Stride+i])
		a, b := 2*i, 2*i+1
		y[a], y[b] = x[a]*co-x[b]*si, x[b]*co+x[a]*si
	}
	return y
}

// losses is the divergence of each row.
func (c *indexerReference) losses() (out []float64) {
	var keys [][]float64
	dim := c.n.Shape.Dim
	for i, x := range c.x {
		k, mean, square := times(x, c.weights[1]), 0.0, 0.0
		for _, v := range k {
			mean += v / float64(dim)
		}
		for _, v := range k {
			square += (v - mean) * (v - mean) / float64(dim)
		}
		for j, v := range k {
			k[j] = (v-mean)/math.Sqrt(square+float64(c.n.Eps))*c.weights[2][j] + c.weights[3][j]
		}
		keys = append(keys, c.rotated(k, c.at[i]))
	}
	for i, list := range c.lists {
		q, w := times(c.u[i], c.weights[0]), times(c.x[i], c.weights[4])
		scores, z, loss := make([]float64, len(list)), 0.0, 0.0
		for h, weight := range w {
			rotated := c.rotated(q[h*dim:][:dim], c.at[i])
			for e, j := range list {
				scores[e] += weight * float64(c.n.Scale) * max(dot64(rotated, keys[j])*c.n.Shape.Scale, 0)
			}
		}
		for _, v := range scores {
			z += math.Exp(v)
		}
		for e, p := range c.target[i] {
			loss += p * (math.Log(p) - (scores[e] - math.Log(z)))
		}
		out = append(out, loss)
	}
	return out
}

// check holds divergences, and the gradients of some elements of each weight, against the model's.
func (c *indexerReference) check(r *parallel.Rank, b *Batch, rng *rand.Rand) error {
	kl := parallel.Download[float32](r, b.IndexerLoss.KL.RowRange(c.n.Place, c.n.Place+1))
	for i, want := range c.losses() {
		if math.Abs(float64(kl[i])-want) > 1e-5*(1+want) {
			return fmt.Errorf("row %d: divergence %g, want %g", i, kl[i], want)
		}
	}
	const step, elements = 1e-6, 24
	total := func() (sum float64) {
		for _, v := range c.losses() {
			sum += v
		}
		return sum
	}
	for i, p := range c.n.params() {
		got, largest := ReadValues(r.Dev, p.Grad), 0.0
		for _, v := range got {
			largest = max(largest, math.Abs(float64(v)))
		}
		if largest == 0 {
			return fmt.Errorf("%s has no gradient", p)
		}
		for range elements {
			at := rng.IntN(len(got))
			keep := c.weights[i][at]
			c.weights[i][at] = keep + step
			up := total()
			c.weights[i][at] = keep - step
			want := (up - total()) / (2 * step)
			c.weights[i][at] = keep
			if math.Abs(float64(got[at])-want) > 1e-3*largest {
				return fmt.Errorf("%s element %d: gradient %g, want %g", p, at, got[at], want)
			}
		}
	}
	return nil
}

// What cannot learn is refused in one line.
func TestIndexersRefuse(t *testing.T) {
	dev, err := cpu.New(kernels.Default(), cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	lacks := struct {
		kernels.Device
		kernels.SparseAttention
	}{dev, dev}
	for _, c := range []struct {
		dev    kernels.Device
		family string
		want   string
	}{{lacks, "glm5", "does not compute the training of indexers yet"}, {dev, "kimi_k2", "has no indexers"}} {
		if _, err := LoadFolder(c.dev, "testdata/"+c.family, "", Options{Indexing: IndexersSparse}); err == nil ||
			strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.family, err, c.want)
		}
		if _, err := LoadFolder(c.dev, "testdata/"+c.family, "", Options{}); err != nil {
			t.Errorf("%s with frozen indexers: %v", c.family, err)
		}
	}
	if _, err := LoadFolder(dev, "testdata/glm5", "testdata/adapters/glm5", Options{Indexing: IndexersSparse}); err ==
		nil || !strings.Contains(err.Error(), "fine-tune in full") {
		t.Errorf("adapters: %v", err)
	}
}

// Indexers that learn come nearer to attention, and choose other keys for it.
func TestChoicesMove(t *testing.T) {
	withIndexers(t, "glm5", Options{Indexing: IndexersSparse}, 2, func(r *parallel.Rank, m *Model) {
		ids := randomIDs(6, 96, 60)
		choices := func() (selected [][]int32) {
			b := indexerBatch(r, m, ids...)
			m.Forward(r, b, nil)
			for _, p := range b.Selected {
				selected = append(selected, parallel.Download[int32](r, p))
			}
			return selected
		}
		before := choices()
		var first, last float64
		for step := range 20 {
			if last = m.stepIndexers(r, ids); step == 0 {
				first = last
			}
		}
		if last > 0.8*first {
			t.Errorf("divergence %g, at first %g", last, first)
		}
		for i, selected := range choices() {
			if slices.Equal(selected, before[i]) {
				t.Errorf("block %d chooses the keys that it chose before", i)
			}
		}
	})
}

// stepIndexers takes a step of gradient descent on the indexers alone, and gives their divergence before it.
func (m *Model) stepIndexers(r *parallel.Rank, ids [][]int32) (total float64) {
	b := indexerBatch(r, m, ids...)
	s := new(Saved)
	m.Forward(r, b, s)
	m.blocks().trainIndexers(r, &Share{Passes: []*Pass{{Batch: b, Saved: s}}})
	for _, v := range parallel.Download[float32](r, b.IndexerLoss.KL) {
		total += float64(v)
	}
	for _, n := range m.indexers {
		for _, p := range n.params() {
			r.Dev.Scale(p.Grad, p.Grad, -2)
			r.Dev.Add(p.W, p.W, p.Grad)
			r.Dev.Zero(p.Grad)
		}
	}
	return total
}

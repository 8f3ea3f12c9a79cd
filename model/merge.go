package model

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"

	"lockstep/data/safetensors"
	"lockstep/kernels"
	"lockstep/model/checkpoint"
	"lockstep/model/lowrank"
	"lockstep/model/peft"
)

// Merged counts what a merge took.
type Merged struct {
	Projections, Saved int    // of the adapter: weights with a delta, and modules that it holds themselves
	Decoded            string // the format that the base was stored in, which it has no more; "": none
}

// MergeFolder writes a base and an adapter on it as one model into an existing folder, with the companions of the base.
// A weight under an adapter becomes W + scale*B*A of the values on disk, experts included, in fp32, which is rounded
// once to the storage type; what PiSSA and OLoRA take out of W is taken out first. Weights are read one after
// the other, so that no device is needed. Tensors of either that nothing takes are errors.
func MergeFolder(ctx context.Context, dir, adapter, out string, dtype kernels.DType) (done Merged, err error) {
	m, err := fromConfig(dir, func(config []byte) (*Model, error) { return Describe(config, dtype) })
	if err != nil {
		return done, err
	}
	c, err := readAdapterConfig(adapter)
	if err == nil {
		err = m.AddLoRA(c)
	}
	if err == nil && c.Init != "" {
		err = m.takeInitOut(c.Init)
	}
	if err != nil {
		return done, fmt.Errorf("%s: %w", adapter, err)
	}
	err = withCheckpoint(adapter, func(a *safetensors.Checkpoint) error {
		return withCheckpoint(dir, func(b *safetensors.Checkpoint) error {
			done, err = m.merge(ctx, a, b, dir, out)
			return err
		})
	})
	return done, err
}

// merger is a merge in progress, of a described model.
type merger struct {
	*Model
	ctx         context.Context
	over, under *checkpoint.Weights // of the adapter and of the base
	last        *delta              // the one whose A and B are in memory: all experts of a layer have one
	a, b        []float32
}

// merge writes the merged tensors of a described model.
func (m *Model) merge(ctx context.Context, adapter, base *safetensors.Checkpoint, dir, out string) (done Merged,
	err error) {
	over, err := checkpoint.NewWeights(adapter, nil)
	if err != nil {
		return done, err
	}
	under, err := checkpoint.NewWeights(base, m.kept)
	if err != nil {
		return done, err
	}
	g := &merger{Model: m, ctx: ctx, over: over, under: under}
	deltas, err := m.deltas(over)
	if err != nil {
		return done, err
	}
	done = Merged{Saved: len(m.saved)}
	if m.kept != nil {
		done.Decoded = m.kept.Name
	}
	var tensors []safetensors.OutTensor
	for _, p := range m.base() {
		p.chooseLayout(under)
		done.Projections += len(deltas[p])
		for _, part := range p.Parts {
			t, err := g.part(p, part, deltas[p])
			if err != nil {
				return done, err
			}
			tensors = append(tensors, t)
		}
	}
	if err := over.CheckUnused(func(string) bool { return false }, peft.File); err != nil {
		return done, err
	}
	if err := under.CheckUnused(m.redundant, "config.json"); err != nil {
		return done, err
	}
	says, err := m.readRounding()
	if err == nil {
		err = says.Read(m.LoRA.Own)
	}
	if err != nil {
		return done, err
	}
	config, err := m.configFor(m.DType, checkpoint.Rounding{Cache: says.Cache})
	if err != nil {
		return done, err
	}
	return done, m.saveFolder(out, dir, config, tensors)
}

// delta is what an adapter adds to rows of a weight, with A and B as they are on disk.
type delta struct {
	*Sub
	groups int
	a, b   checkpoint.Weight
}

// deltas finds the tensors of all adapters.
func (m *Model) deltas(w *checkpoint.Weights) (map[*Param][]*delta, error) {
	found := map[*Param][]*delta{}
	for _, l := range m.linears() {
		for _, s := range l.Subs {
			if s.LoRA == nil {
				continue
			}
			d := &delta{Sub: s, groups: l.W.matrices()}
			for p, to := range map[*Param]*checkpoint.Weight{s.LoRA.A: &d.a, s.LoRA.B: &d.b} {
				part, err := p.Parts[0], error(nil)
				if *to, err = w.Find(m.peftName(part.Name), peft.File); err != nil {
					return nil, err
				}
				if !slices.Equal(to.Shape, part.Shape) {
					return nil, fmt.Errorf("%s: tensor %s has shape %v, %s wants %v", w.Path(), m.peftName(part.Name),
						to.Shape, peft.File, part.Shape)
				}
			}
			found[l.W] = append(found[l.W], d)
		}
	}
	return found, nil
}

// part is one tensor of the merged model.
func (g *merger) part(p *Param, part Part, deltas []*delta) (t safetensors.OutTensor, err error) {
	from, err := g.under.Find(part.Name, "config.json")
	if err == nil && g.saved[p] {
		from, err = g.over.Find(g.peftName(part.Name), peft.File)
	}
	if err != nil {
		return t, err
	}
	if !slices.Equal(from.Shape, part.Shape) {
		return t, fmt.Errorf("%s: tensor %s has shape %v, config.json wants %v", g.under.Path(), part.Name, from.Shape,
			part.Shape)
	}
	deltas = slices.DeleteFunc(slices.Clone(deltas), func(d *delta) bool { return !d.within(p, part) })
	return safetensors.OutTensor{Name: part.Name, DType: checkpoint.DTypeName(g.DType), Shape: part.Shape,
		Write: func(w io.Writer) error {
			if err := g.ctx.Err(); err != nil {
				return err
			}
			if len(deltas) > 0 {
				raw, err := g.addDeltas(p, part, from, deltas)
				if err == nil {
					_, err = w.Write(raw)
				}
				return err
			}
			defer from.Forget()
			return from.Convert(g.DType, func(_ int, raw []byte) error {
				_, err := w.Write(raw)
				return err
			})
		}}, nil
}

// within tells whether a part has rows of the projection.
func (d *delta) within(p *Param, part Part) bool {
	return part.Rows >= p.W.Rows || part.Row < d.To && part.Row+part.Rows > d.From
}

// addDeltas is a part with the terms of adapters, as it lies on disk.
func (g *merger) addDeltas(p *Param, part Part, from checkpoint.Weight, deltas []*delta) ([]byte, error) {
	cols, size := p.W.Cols, g.DType.Size()
	w := lowrank.Matrix{Rows: part.Rows, Cols: cols}
	var err error
	if w.V, err = inMemoryOrder(from, cols, part.Disk); err != nil {
		return nil, err
	}
	for _, d := range deltas {
		if err := g.add(d, w, p.W.Rows, part); err != nil {
			return nil, err
		}
	}
	for _, x := range w.V {
		if math.IsNaN(float64(x)) || math.IsInf(float64(x), 0) {
			return nil, fmt.Errorf("%s: merged it is not finite: check the adapter and its base", part.Name)
		}
	}
	raw := checkpoint.Round(w.V, g.DType)
	if part.Disk != nil {
		raw = permuted(raw, size, cols, part.Disk)
	}
	return raw, nil
}

// inMemoryOrder is the values of a weight on disk in the order of memory, rows of cols.
func inMemoryOrder(from checkpoint.Weight, cols int, disk func(i int) int) ([]float32, error) {
	values := make([]float32, safetensors.TensorInfo{Shape: from.Shape}.Len())
	if err := from.Read(values); err != nil || disk == nil {
		return values, err
	}
	out := make([]float32, len(values))
	eachPlace(len(values), cols, disk, func(i, at int) { out[i] = values[at] })
	return out, nil
}

// add adds scale*B*A to the rows of a part that are the projection's. height is the rows of each matrix of the weight.
func (g *merger) add(d *delta, w lowrank.Matrix, height int, part Part) error {
	rank, rows := d.LoRA.A.Parts[0].Rows/d.groups, d.To-d.From
	if err := g.read(d, w.Cols, rank); err != nil {
		return err
	}
	if init := g.LoRA.Init; init != "" {
		if part.Row > d.From || part.Row+part.Rows < d.To {
			return fmt.Errorf("%s: init_lora_weights %q of %s, which is in several tensors: not supported", peft.File,
				init, d.Module)
		}
		of := lowrank.Matrix{Rows: rows, Cols: w.Cols, V: w.V[(d.From-part.Row)*w.Cols : (d.To-part.Row)*w.Cols]}
		takeInit(of, init, rank, d.LoRA.Scale)
	}
	first := part.Group*height + part.Row
	checkpoint.InParallel(w.Rows, 1, func(from, to int) {
		for i := from; i < to; i++ {
			group, row := (first+i)/height, (first+i)%height
			if row < d.From || row >= d.To {
				continue
			}
			lowrank.AddProduct(w.V[i*w.Cols:][:w.Cols], g.b[(group*rows+row-d.From)*rank:][:rank],
				g.a[group*rank*w.Cols:][:rank*w.Cols], d.LoRA.Scale)
		}
	})
	return nil
}

// read brings A and B of an adapter into memory.
func (g *merger) read(d *delta, cols, rank int) (err error) {
	if g.last == d {
		return nil
	}
	if g.a, err = inMemoryOrder(d.a, cols, d.LoRA.A.Parts[0].Disk); err == nil {
		g.b, err = inMemoryOrder(d.b, rank, d.LoRA.B.Parts[0].Disk)
	}
	if g.last = nil; err == nil {
		g.last = d
	}
	return err
}

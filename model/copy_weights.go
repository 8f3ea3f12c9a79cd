package model

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"lockstep/kernels"
	"lockstep/model/checkpoint"
	"lockstep/quant"
)

// EmptyCopy is a model of the same config, length, adapters and stage of indexers on another device or in another
// storage type, for [Model.CopyWeights] to fill with weights that are rounded so. Frozen weights in codes stay in
// codes where neither changes their numbers; on one device both models have them in the same memory. Rounded
// projections read inputs as those in codes do, by Definition.Acts, and lie in codes where it multiplies codes.
func (m *Model) EmptyCopy(dev kernels.Device, dtype kernels.DType, rounding Encode) (*Model, error) {
	o := Options{DType: dtype, MaxLength: m.MaxLength, Indexing: m.Indexing}
	if dtype == m.DType && rounding.As == quant.AsTrained {
		o.Weights = KeepWeights
	}
	return m.copyWith(dev, o, rounding)
}

// Replica is an EmptyCopy of the first rank's model for another rank. Weights that are cut over the ranks are those of
// this model.
func (m *Model) Replica(rank int, dev kernels.Device) (*Model, error) {
	return m.copyWith(dev, Options{DType: m.DType, MaxLength: m.MaxLength, Indexing: m.Indexing, Weights: KeepWeights,
		Offload: m.offload, home: m, rank: rank}, Encode{})
}

func (m *Model) copyWith(dev kernels.Device, o Options, rounding Encode) (*Model, error) {
	t, err := describeOn(dev, m.Config, o)
	if err == nil && o.Weights == KeepWeights {
		t.keepCodesOf(m, dev, o.home != nil)
		t.encoded = m.encoded
	}
	if err == nil && dev.Definition().Acts == quant.FP8x128 {
		err = t.encodeWeights(dev, rounding)
	}
	if err == nil {
		for i, p := range t.Params {
			p.coded = p.Q != nil || m.Params[i].coded
		}
		for _, l := range t.linearsOf(rounding) {
			l.W.coded = l.W.coded || l.encodable() && t.encoded.As == quant.AsTrained
		}
		err = t.checkRounding(dev.Definition())
	}
	if err == nil {
		err = t.allocate(dev, o)
	}
	if err == nil && m.LoRA != nil {
		err = t.AddLoRA(*m.LoRA)
		t.dropout = m.dropout
	}
	return t, err
}

// CopyWeights copies every parameter of a model of the same config, adapters too: on the device where it can read the
// other's memory, else through the host. Storage types may differ. Projections, those of experts included, are rounded
// to the format and back: a projection, or one of an expert (gate and up together), is a matrix with its rows in the
// order of memory. Embeddings, head, norms, biases, convolutions, routers, indexers, adapters and gates of one
// output stay as they are, as in stacks that serve block FP8.
func (m *Model) CopyWeights(from *Model, rounding Encode) error {
	from.mustBeUpdated()
	format := rounding.As
	if err := format.Validate(); err != nil {
		return err
	}
	if len(m.Params) != len(from.Params) {
		return fmt.Errorf("weights of a model with %d parameters into one with %d: want the same config and adapters",
			len(from.Params), len(m.Params))
	}
	rounded := m.projections(rounding)
	for i, p := range m.Params {
		q := from.Params[i]
		if p.Name != q.Name || p.matrices() != q.matrices() || p.W.Rows != q.W.Rows || p.W.Cols != q.W.Cols {
			return fmt.Errorf("weights of %s into %s: want the same config and adapters", q, p)
		}
		if p.Q != nil && format != quant.AsTrained {
			m.copyEncoded(p, q, from.dev)
			continue
		}
		if q.Q != nil {
			m.copyQuantized(p, q, from.dev, rounded[p], format)
			continue
		}
		if d := m.ops.reader; d != nil && q.home == nil && d.CanRead(from.dev) {
			m.copyRounded(p.W, q.W, rounded[p], format)
			continue
		}
		if subs := rounded[p]; subs != nil || p.W.DType != q.W.DType {
			shape := described(q.W.DType, q.matrices(), q.W.Rows, q.W.Cols)
			raw := make([]byte, shape.Bytes())
			q.weight(from.dev).read(raw, 0)
			p.weight(m.dev).write(0, restored(raw, shape, p.W.DType, subs, format))
			continue
		}
		eachPiece(q.Elements(), func(at, n int) {
			raw := make([]byte, n*q.W.DType.Size())
			q.weight(from.dev).read(raw, at)
			p.weight(m.dev).write(at, raw)
		})
	}
	return nil
}

// copyEncoded fills a weight in codes with those of another model's numbers. Blocks begin where tensors of a checkpoint
// do, as in training.
func (m *Model) copyEncoded(p, from *Param, dev kernels.Device) {
	host := onHost(p.Q.Format, p.Q.DType, p.Q.Groups, p.Q.Rows, p.Q.Cols, false)
	values := make([]float32, host.Groups*host.Rows*host.Cols)
	if from.Q != nil {
		from.numbers(dev, 0, from.matrices(), func(g int, of []float32) { copy(values[g*len(of):], of) })
	} else {
		raw := make([]byte, len(values)*from.W.DType.Size())
		from.weight(dev).read(raw, 0)
		checkpoint.GetAll(values, raw, from.W.DType)
	}
	starts := append(p.starts(), host.Rows)
	for first := 0; first < host.Groups*host.Rows; first += host.Rows {
		for i, row := range starts[:len(starts)-1] {
			for ; row < starts[i+1]; row += p.encoding.High() {
				end := min(row+p.encoding.High(), starts[i+1])
				host.EncodeRows(p.encoding, first+row, values[(first+row)*host.Cols:(first+end)*host.Cols])
			}
		}
	}
	p.writeCodes(m.dev, host, 0)
}

// projections are the parameters that are rounded, with the matrices that they consist of.
func (m *Model) projections(rounding Encode) map[*Param][]*Sub {
	out := map[*Param][]*Sub{}
	for _, l := range m.linearsOf(rounding) {
		for _, s := range l.Subs {
			if s.To-s.From > 1 { // not a gate of one output
				out[l.W] = append(out[l.W], s)
			}
		}
	}
	return out
}

// band is some rows of a parameter, counted through all groups, that a format rounds or that are copied
// as they are.
type band struct {
	from, to int
	round    bool
}

// bands cuts a parameter's rows into projections and what lies between them.
func bands(t kernels.Tensor, subs []*Sub) (out []band) {
	cut := func(from, to int, round bool) {
		if from < to {
			out = append(out, band{from, to, round})
		}
	}
	for g := range t.Groups {
		at := g * t.Rows
		for _, s := range subs {
			cut(at, g*t.Rows+s.From, false)
			cut(g*t.Rows+s.From, g*t.Rows+s.To, true)
			at = g*t.Rows + s.To
		}
		cut(at, (g+1)*t.Rows, false)
	}
	return out
}

// copyRounded fills a parameter w on the device from one that the device can read, projections rounded.
func (m *Model) copyRounded(w, from kernels.Tensor, subs []*Sub, format quant.Encoding) {
	switch {
	case len(subs) == 0:
		m.dev.Copy(w, from)
		return
	case subs[0].To-subs[0].From == w.Rows: // of all experts at once
		m.ops.coder.FakeQuantize(w, from, format)
		return
	}
	rows := w.Groups * w.Rows
	dst, src := w.Reshape(rows, w.Cols), from.Reshape(rows, w.Cols)
	for _, b := range bands(w, subs) {
		if b.round {
			m.ops.coder.FakeQuantize(dst.RowRange(b.from, b.to), src.RowRange(b.from, b.to), format)
		} else {
			m.dev.Copy(dst.RowRange(b.from, b.to), src.RowRange(b.from, b.to))
		}
	}
}

// restored is raw elements of t in another storage type, projections rounded by the format, on all cores.
func restored(raw []byte, t kernels.Tensor, to kernels.DType, subs []*Sub, format quant.Encoding) []byte {
	out := make([]byte, t.Len()*to.Size())
	const high = 128 // a multiple of the rows of every encoding's blocks
	var all []band
	for _, b := range bands(t, subs) {
		for ; b.from < b.to; b.from += high { // whole blocks
			all = append(all, band{b.from, min(b.from+high, b.to), b.round})
		}
	}
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(runtime.NumCPU(), len(all)) {
		workers.Go(func() {
			scratch := make([]float32, high*t.Cols)
			for i := next.Add(1) - 1; int(i) < len(all); i = next.Add(1) - 1 {
				b := all[i]
				from, end := b.from*t.Cols, b.to*t.Cols
				if !b.round && t.DType == to {
					copy(out[from*to.Size():end*to.Size()], raw[from*to.Size():])
					continue
				}
				w := scratch[:end-from]
				checkpoint.GetAll(w, raw[from*t.DType.Size():], t.DType)
				if b.round {
					format.Round(w, b.to-b.from, t.Cols)
				}
				for j, x := range w {
					checkpoint.Put(out[(from+j)*to.Size():], to, x)
				}
			}
		})
	}
	workers.Wait()
	return out
}

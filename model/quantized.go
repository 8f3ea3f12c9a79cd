package model

import (
	"errors"
	"fmt"
	"io"
	"unsafe"

	"lockstep/data/safetensors"
	"lockstep/kernels"
	"lockstep/model/checkpoint"
	"lockstep/quant"
)

// WeightsMode says in what form projections lie on the device that a checkpoint stores in codes.
type WeightsMode int

const (
	OpenWeights WeightsMode = iota // the numbers that the codes stand for
	KeepWeights                    // codes and scales, where the device multiplies by them: no bit changes
)

// quantizedChoice counts what [Model.keepCodes] decides, for people.
type quantizedChoice struct {
	kept, bytes, opened int
	refused             error // why the first of those opened is
}

// Opened is a line about the format that the weights were stored in and their type now; "": they were plain numbers.
func (m *Model) Opened() string {
	name := string(m.encoded.As)
	switch {
	case m.kept != nil && name != "":
		name = m.kept.Name + " put into " + name
	case m.kept != nil:
		name = m.kept.Name
	case name == "":
		return ""
	}
	said := fmt.Sprintf("weights: %s, opened as %s", name, m.DType)
	if c := m.choice; c.kept > 0 {
		said = fmt.Sprintf("weights: %s, %d kept in codes (%s)", name, c.kept, gib(c.bytes))
		if c.opened > 0 {
			said += fmt.Sprintf(", %d opened as %s", c.opened, m.DType)
		}
	}
	if m.choice.refused != nil {
		said += fmt.Sprintf(" (%v)", m.choice.refused)
	}
	if m.ignored > 0 {
		said += fmt.Sprintf("; %d tensors %s are ignored: activations are not rounded", m.ignored, m.kept.Ignored)
	}
	return said
}

// keepCodes gives the projections that a checkpoint stores in codes a quantized weight without memory, where the device
// multiplies by it. Opened are those of which not all parts are in one format, those that attention reads as a matrix
// for each head, and those that the device refuses.
func (m *Model) keepCodes(dev kernels.Device, w *checkpoint.Weights) {
	if device, ok := dev.(kernels.QuantizedProducts); ok && w.Format != nil {
		m.keepWhere(device.CheckQuantized, w, dev.Definition().Acts)
	}
}

// keepWhere is keepCodes where check has no objection, for a definition with acts.
func (m *Model) keepWhere(check func(kernels.QuantizedWeight) error, w *checkpoint.Weights, acts quant.Encoding) {
	for _, l := range m.linears() {
		l.W.chooseLayout(w)
		f, err := l.W.format(w, acts)
		switch {
		case errors.Is(err, errNotCoded):
			continue
		case err == nil && l.byHead:
			err = errors.New("attention reads it as a matrix for each head")
		case err == nil:
			q := kernels.NewQuantizedWeight(f, l.W.W.DType, l.W.W.Groups, l.W.W.Rows, l.W.W.Cols, described)
			l.W.coded = true
			if err = check(q); err == nil {
				l.W.Q = &q
				m.choice.kept++
				m.choice.bytes += q.Bytes()
				continue
			}
		}
		if m.choice.opened++; m.choice.refused == nil {
			m.choice.refused = fmt.Errorf("%s: %w", l.W.Name, err)
		}
	}
}

// keepCodesOf gives projections a quantized weight where another model has one and the device multiplies by it: on the
// same device that of the other model. Those that the other one trains are numbers, which a checkpoint holds as they
// are; a replica has them in codes.
func (m *Model) keepCodesOf(other *Model, dev kernels.Device, replica bool) {
	trained := map[*Param]bool{}
	for _, p := range other.trainable() {
		trained[p] = !replica && p.encoding != quant.AsTrained
	}
	device, ok := dev.(kernels.QuantizedProducts)
	for i, p := range m.Params {
		q := other.Params[i].Q
		switch {
		case !ok || q == nil || trained[other.Params[i]]:
		case dev == other.dev && other.Params[i].home == nil:
			p.Q = q
		default:
			own := kernels.NewQuantizedWeight(q.Format, q.DType, p.W.Groups, p.W.Rows, p.W.Cols, described)
			if device.CheckQuantized(own) == nil {
				p.Q = &own
			}
		}
		if p.Q != nil {
			p.encoding = other.Params[i].encoding
		}
	}
}

// copyQuantized fills p from a quantized weight of another model: with its codes, or with its numbers.
func (m *Model) copyQuantized(p, from *Param, dev kernels.Device, subs []*Sub, rounding quant.Encoding) {
	switch {
	case p.Address() == from.Address():
	case p.Q != nil:
		from.eachHome(dev, func(home kernels.Device, q kernels.QuantizedWeight, first int) {
			p.writeCodes(m.dev, hostCopy(home, q), first)
		})
	default:
		shape := described(kernels.F32, 1, p.W.Rows, p.W.Cols)
		from.numbers(dev, 0, from.matrices(), func(group int, values []float32) {
			raw := restored(checkpoint.Round(values, kernels.F32), shape, p.W.DType, subs, rounding)
			p.weight(m.dev).write(group*p.W.Rows*p.W.Cols, raw)
		})
	}
}

var errNotCoded = errors.New("not in codes")

// format is the one format of all parts of a weight: [errNotCoded] where none is in codes. Scales that are powers of
// two take less memory as such, but for products with inputs in codes.
func (p *Param) format(w *checkpoint.Weights, acts quant.Encoding) (f quant.Format, err error) {
	parts := 0
	for _, part := range p.Parts {
		if _, ok := w.Encoded(part.Name); ok {
			parts++
		}
	}
	switch {
	case parts == 0:
		return f, errNotCoded
	case parts < len(p.Parts):
		return f, errors.New("not all of its parts are in codes")
	}
	powers := acts != quant.FP8x128
	for i, part := range p.Parts {
		from, err := w.Find(part.Name, "config.json")
		if err != nil {
			return f, err
		}
		if from.Codes == nil {
			return f, errors.New("its rows cut the blocks of its scales")
		}
		if i > 0 && from.Codes.Format != f {
			return f, errors.New("its parts have different blocks")
		}
		f = from.Codes.Format
		powers = powers && f.Code == quant.CodeE4M3 && from.Codes.PowersOfTwo()
	}
	if powers {
		f.Scale = quant.ScaleE8M0
	}
	return f, nil
}

// quantizedPart is a part with its codes.
type quantizedPart struct {
	Part
	codes *checkpoint.Codes
}

// loadCodes fills a quantized weight from a checkpoint: with its codes, or with codes of its numbers.
func (p *Param) loadCodes(dev kernels.Device, w *checkpoint.Weights) error {
	if p.encoding != quant.AsTrained {
		return p.loadEncoded(dev, w)
	}
	return p.loadQuantized(dev, w)
}

// loadQuantized fills a quantized weight with a checkpoint's codes, group by group.
func (p *Param) loadQuantized(dev kernels.Device, w *checkpoint.Weights) error {
	var parts []quantizedPart
	for _, part := range p.Parts {
		from, err := w.Find(part.Name, "config.json")
		if err == nil {
			err = from.CheckShape(part.Shape, part.Name, w, "config.json")
		}
		if err != nil {
			return err
		}
		if !kernels.IsMeta(dev) {
			err = from.Codes.Check()
		}
		if err != nil {
			return err
		}
		parts = append(parts, quantizedPart{part, from.Codes})
	}
	if kernels.IsMeta(dev) {
		return nil
	}
	p.eachHome(dev, func(home kernels.Device, q kernels.QuantizedWeight, first int) {
		one := q.Group(0)
		codes, scales := make([]byte, one.Codes.Bytes()), make([]byte, one.Scales.Bytes())
		for g := range q.Groups {
			for _, part := range parts {
				part.fill(codes, scales, one, (first+g)*q.Rows)
			}
			home.Write(q.Codes.Group(g), codes)
			home.Write(q.Scales.Group(g), scales)
		}
	})
	return nil
}

// fill writes the part's rows of a group, whose first row is row from of all groups', to the group's codes and scales.
func (p quantizedPart) fill(codes, scales []byte, w kernels.QuantizedWeight, from int) {
	first := p.Group*w.Rows + p.Row
	low, high := max(first, from), min(first+p.Rows, from+w.Rows)
	size := w.Scales.DType.Size()
	checkpoint.InParallel(max(high-low, 0), 1, func(a, b int) {
		for row := low + a; row < low+b; row++ {
			onDisk := row - first
			if p.RowOnDisk != nil {
				onDisk = p.RowOnDisk(onDisk)
			}
			p.codes.CopyRow(codes[(row-from)*w.Codes.Cols:][:w.Codes.Cols], onDisk)
			for block := range w.Scales.Rows {
				putScale(scales[(block*w.Rows+row-from)*size:], w.Format.Scale, p.codes.Scale(onDisk, block))
			}
		}
	})
}

// putScale writes a scale, little-endian, in a type that holds it exactly.
func putScale(raw []byte, s quant.Scale, x float32) {
	switch s {
	case quant.ScaleE8M0:
		raw[0], _ = quant.EncodePowerOfTwo(x)
	case quant.ScaleBF16:
		checkpoint.Put(raw, kernels.BF16, x)
	default:
		checkpoint.Put(raw, kernels.F32, x)
	}
}

// term is the weight as a term of a product with x.
func (p *Param) term(x kernels.Tensor) kernels.Term {
	if p.Q != nil {
		return kernels.Term{X: x, Q: p.Q}
	}
	return kernels.Term{X: x, W: p.W}
}

// Address is where the weight begins in device memory: it tells weights apart.
func (p *Param) Address() unsafe.Pointer { return p.term(kernels.Tensor{}).At() }

// Bytes is the memory of the weight.
func (p *Param) Bytes() int {
	if p.Q != nil {
		return p.Q.Bytes()
	}
	return p.W.Bytes()
}

// shared tells whether the weight is codes in memory of another model.
func (p *Param) shared() bool { return p.Q != nil && !p.Q.Codes.IsNil() }

// tensors are what the weight consists of in device memory, a matrix of each for each of the weight's.
func (p *Param) tensors() []kernels.Tensor { return tensorsOf(p.W, p.Q) }

// allocate gives the weight memory of an arena.
func (p *Param) allocate(mem *kernels.Arena) { allocateStorage(mem, &p.W, p.Q) }

// tensorsOf is numbers w, or where q is not nil its codes and scales.
func tensorsOf(w kernels.Tensor, q *kernels.QuantizedWeight) []kernels.Tensor {
	if q != nil {
		return []kernels.Tensor{q.Codes, q.Scales}
	}
	return []kernels.Tensor{w}
}

// storageBytes is what they take in an arena.
func storageBytes(w kernels.Tensor, q *kernels.QuantizedWeight) (bytes int) {
	for _, t := range tensorsOf(w, q) {
		bytes += kernels.ArenaBytes(t.DType, t.Groups*t.Rows, t.Cols)
	}
	return bytes
}

// allocateStorage gives them memory.
func allocateStorage(mem *kernels.Arena, w *kernels.Tensor, q *kernels.QuantizedWeight) {
	if q == nil {
		*w = mem.NewGrouped(w.DType, w.Groups, w.Rows, w.Cols)
		return
	}
	*q = kernels.NewQuantizedWeight(q.Format, q.DType, q.Groups, q.Rows, q.Cols, mem.NewGrouped)
}

// eachHome visits a quantized weight where it lies, in the memory of one device or of several, with the first of its
// groups there.
func (p *Param) eachHome(dev kernels.Device, visit func(home kernels.Device, q kernels.QuantizedWeight, first int)) {
	if p.home == nil {
		visit(dev, *p.Q, 0)
		return
	}
	first := 0
	for _, h := range p.home {
		visit(h.memory(), *h.q, first)
		first += h.q.Groups
	}
}

// numbers visits the numbers of groups [from, to) of a quantized weight, in fp32.
func (p *Param) numbers(dev kernels.Device, from, to int, visit func(group int, values []float32)) {
	p.eachHome(dev, func(home kernels.Device, q kernels.QuantizedWeight, first int) {
		low, high := max(from-first, 0), min(to-first, q.Groups)
		if low < high {
			numbersOf(home, q.Matrices(low, high-low), func(g int, values []float32) { visit(first+low+g, values) })
		}
	})
}

// numbersOf visits the numbers of each matrix of a quantized weight, in fp32.
func numbersOf(dev kernels.Device, q kernels.QuantizedWeight, visit func(group int, values []float32)) {
	values := make([]float32, q.Rows*q.Cols)
	for g := range q.Groups {
		host := hostCopy(dev, q.Group(g))
		checkpoint.InParallel(q.Rows, 1, func(from, to int) {
			for r := from; r < to; r++ {
				host.DecodeRow(values[r*q.Cols:(r+1)*q.Cols], r, 0)
			}
		})
		visit(g, values)
	}
}

// dequantized writes the numbers of a part of a quantized weight, in the model's storage type.
func (p *Param) dequantized(dev kernels.Device, part Part) safetensors.OutTensor {
	d := p.W.DType
	return safetensors.OutTensor{Name: part.Name, DType: checkpoint.DTypeName(d), Shape: part.Shape,
		Write: func(w io.Writer) error {
			var raw []byte
			first := part.Group*p.W.Rows + part.Row
			end := first + part.Rows
			p.numbers(dev, part.Group, (end-1)/p.W.Rows+1, func(g int, values []float32) {
				from, to := max(first-g*p.W.Rows, 0), min(end-g*p.W.Rows, p.W.Rows)
				raw = append(raw, checkpoint.Round(values[from*p.W.Cols:to*p.W.Cols], d)...)
			})
			if part.Disk != nil {
				raw = permuted(raw, d.Size(), p.W.Cols, part.Disk)
			}
			_, err := w.Write(raw)
			return err
		}}
}

// hostCopy is a quantized weight in host memory.
func hostCopy(dev kernels.Device, q kernels.QuantizedWeight) kernels.QuantizedWeight {
	for _, t := range []*kernels.Tensor{&q.Codes, &q.Scales} {
		raw, on := make([]uint32, (t.Bytes()+3)/4), *t // aligned for every type of scale
		t.Data = unsafe.Pointer(unsafe.SliceData(raw))
		dev.Read(t.Raw(), on)
	}
	return q
}

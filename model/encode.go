package model

import (
	"fmt"
	"slices"
	"unsafe"

	"lockstep/data/safetensors"
	"lockstep/kernels"
	"lockstep/model/checkpoint"
	"lockstep/parallel"
	"lockstep/quant"
)

// Encode is what projections are put into codes, whatever a checkpoint stores them in. Frozen ones are encoded once.
// Those that are trained have fp32 masters, and their codes are made anew after each update: quantisation-aware
// training with the straight-through estimator (Bengio et al., arXiv 1308.3432), whose weights are the codes that are
// deployed.
type Encode struct {
	As          quant.Encoding // AsTrained: none
	Projections bool           // all of them; without it experts alone, where there are some
}

// DefaultEncode is experts in formats of 4 bits, where there are some, and all projections in those of 8.
func DefaultEncode(as quant.Encoding) Encode { return Encode{as, as.Format().Code.Bits() == 8} }

// encodeWeights gives projections a quantized weight without memory. Those that attention reads as a matrix for each
// head, and gates of one output, stay numbers, and so do those whose rows lie in another order on disk than here where
// blocks have several rows.
func (m *Model) encodeWeights(dev kernels.Device, e Encode) error {
	if e.As == quant.AsTrained {
		return nil
	}
	device, ok := dev.(kernels.QuantizedProducts)
	if !ok {
		return fmt.Errorf("weights in %s: the device %s does not multiply by codes", e.As, dev.Name())
	}
	return m.encodeWhere(device.CheckQuantized, e)
}

// encodeWhere is encodeWeights where check has no objection.
func (m *Model) encodeWhere(check func(kernels.QuantizedWeight) error, e Encode) error {
	for _, l := range m.linearsOf(e) {
		if !l.encodable() {
			continue
		}
		if e.As.High() > 1 && slices.ContainsFunc(l.W.Parts, func(p Part) bool { return p.RowOnDisk != nil }) {
			if m.choice.opened++; m.choice.refused == nil {
				m.choice.refused = fmt.Errorf("%s: its blocks would have rows of several blocks on disk", l.W.Name)
			}
			continue
		}
		q := kernels.NewQuantizedWeight(e.As.Format(), l.W.W.DType, l.W.W.Groups, l.W.W.Rows, l.W.W.Cols, described)
		if err := check(q); err != nil {
			return fmt.Errorf("%s in %s: %w: choose another format", l.W.Name, e.As, err)
		}
		l.W.Q, l.W.encoding, l.W.coded = &q, e.As, true
		m.choice.kept++
		m.choice.bytes += q.Bytes()
	}
	if m.choice.kept == 0 {
		return fmt.Errorf("weights in %s: there is none to put into it: %w: choose another format, or all projections",
			e.As, m.choice.refused)
	}
	m.encoded = e
	return nil
}

// linearsOf are those whose weights e is for, encodable or not.
func (m *Model) linearsOf(e Encode) []*Linear {
	list := m.linears()
	switch {
	case e.As == quant.AsTrained:
		return nil
	case e.Projections || !slices.ContainsFunc(list, func(l *Linear) bool { return l.Fused }):
		return list
	}
	return slices.DeleteFunc(list, func(l *Linear) bool { return !l.Fused })
}

// encodable tells whether a format may have the weight: attention does not read it as a matrix for each head, and it is
// no gate of one output.
func (l *Linear) encodable() bool {
	return !l.byHead && !slices.ContainsFunc(l.Subs, func(s *Sub) bool { return s.To-s.From == 1 })
}

// starts are the rows of each matrix at which tensors of a checkpoint begin, and with them blocks of codes.
func (p *Param) starts() (rows []int) {
	for _, part := range p.Parts {
		if part.Rows <= p.W.Rows && !slices.Contains(rows, part.Row) {
			rows = append(rows, part.Row)
		}
	}
	if len(rows) == 0 { // one tensor for all matrices
		return []int{0}
	}
	slices.Sort(rows)
	return rows
}

// loadEncoded fills a quantized weight with the codes of a checkpoint's numbers.
func (p *Param) loadEncoded(dev kernels.Device, w *checkpoint.Weights) error {
	groups := p.matrices()
	host := onHost(p.Q.Format, p.Q.DType, groups, p.Q.Rows, p.Q.Cols, kernels.IsMeta(dev))
	for _, part := range p.Parts {
		from, err := w.Find(part.Name, "config.json")
		if err == nil {
			err = from.CheckShape(part.Shape, part.Name, w, "config.json")
		}
		if err != nil {
			return err
		}
		if kernels.IsMeta(dev) {
			continue
		}
		values := make([]float32, part.Rows*p.Q.Cols)
		if err := from.Read(values); err != nil {
			return err
		}
		from.Forget()
		p.encode(host, part, values)
	}
	if !kernels.IsMeta(dev) {
		p.writeCodes(dev, host, 0)
	}
	return nil
}

// encode puts the numbers of a part, as they lie on disk, into codes in host memory.
func (p *Param) encode(host kernels.QuantizedWeight, part Part, values []float32) {
	cols := p.Q.Cols
	if part.Disk != nil {
		inOrder := make([]float32, len(values))
		eachPlace(len(values), cols, part.Disk, func(i, at int) { inOrder[i] = values[at] })
		values = inOrder
	}
	starts, first, high := p.starts(), part.Group*p.Q.Rows+part.Row, p.encoding.High()
	var blocks [][2]int // rows of the part
	for row := 0; row < part.Rows; {
		in := (first + row) % p.Q.Rows // of its matrix
		end := p.Q.Rows
		for _, s := range starts {
			if s > in {
				end = s
				break
			}
		}
		n := min(high, end-in, part.Rows-row)
		blocks = append(blocks, [2]int{row, row + n})
		row += n
	}
	checkpoint.InParallel(len(blocks), 1, func(a, b int) {
		for _, rows := range blocks[a:b] {
			host.EncodeRows(p.encoding, first+rows[0], values[rows[0]*cols:rows[1]*cols])
		}
	})
}

// onHost is a quantized weight in host memory; of a plan without memory.
func onHost(f quant.Format, d kernels.DType, groups, rows, cols int, plan bool) kernels.QuantizedWeight {
	if plan {
		return kernels.NewQuantizedWeight(f, d, groups, rows, cols, described)
	}
	return kernels.NewQuantizedWeight(f, d, groups, rows, cols, func(d kernels.DType, groups, rows,
		cols int) kernels.Tensor {
		t := described(d, groups, rows, cols)
		words := make([]uint32, max((t.Bytes()+3)/4, 1)) // aligned for every type of scale
		t.Data = unsafe.Pointer(unsafe.SliceData(words))
		return t
	})
}

// writeCodes fills a quantized weight from host memory, whose first group is one of the weight's.
func (p *Param) writeCodes(dev kernels.Device, host kernels.QuantizedWeight, first int) {
	p.eachHome(dev, func(to kernels.Device, own kernels.QuantizedWeight, at int) {
		for g := max(first, at); g < min(first+host.Groups, at+own.Groups); g++ {
			to.Write(own.Codes.Group(g-at), host.Codes.Group(g-first).Raw())
			to.Write(own.Scales.Group(g-at), host.Scales.Group(g-first).Raw())
		}
	})
}

// drawCodes draws the codes of a weight that no checkpoint holds, of about its standard deviation, and adds the devices
// that do to those that are used.
func (p *Param) drawCodes(dev kernels.Device, seed uint64, used map[kernels.Device]bool) {
	key, scale := keyOf(p.Parts[0].Name, seed), drawnScale(p.encoding, float32(p.Init.Std))
	p.eachHome(dev, func(home kernels.Device, q kernels.QuantizedWeight, first int) {
		home.(codeDrawer).DrawCodes(q, key, first, scale)
		used[home] = true
	})
}

// codeDrawer draws codes in its memory.
type codeDrawer interface {
	DrawCodes(w kernels.QuantizedWeight, key uint64, first int, scale float32)
}

// drawnScale is the scale of drawn codes whose numbers are to have about a standard deviation.
func drawnScale(e quant.Encoding, std float32) float32 {
	switch e {
	case quant.INT4:
		return kernels.NearestBF16(std / 4.18)
	case quant.MXFP4:
		return powerNear(std / 2.93)
	case quant.MXFP8:
		return powerNear(std / 1.17)
	}
	return std / 1.17
}

// powerNear is a power of two near x.
func powerNear(x float32) float32 { return quant.PowerOfTwo(quant.CodeOfScale(x * 1.414)) }

// EncodeState makes the codes of weights from their master.
func (m *Model) EncodeState(st *ShardState) {
	p := st.shard.Param
	m.ops.coder.Quantize(*st.Q, st.Moved.Master, p.encoding, p.starts())
}

// EncodeMasters makes the codes of trained weights from masters that were loaded, in all ranks.
func (c Replicas) EncodeMasters(w *parallel.World) error {
	return w.Run(func(r *parallel.Rank) error {
		owned := make([][]kernels.Tensor, r.Size)
		for _, s := range c[r.ID].Shards {
			if s.Q == nil {
				continue
			}
			if !s.Sharded {
				owned[s.Owner] = append(owned[s.Owner], s.Q.Codes, s.Q.Scales)
			}
		}
		m := c[r.ID]
		for _, st := range m.states {
			if st.Q != nil {
				st.Use()
				m.EncodeState(st)
			}
		}
		m.ring.Finish()
		r.Data.Broadcast(owned).Wait()
		return nil
	})
}

// DrawMasters draws the masters of trained weights in codes, of a model that no checkpoint holds, and makes codes of
// them: a model in a format starts from what the same model starts from without one, and not from [Param.drawCodes].
func (c Replicas) DrawMasters(w *parallel.World, seed uint64) error {
	used := map[kernels.Device]bool{}
	for _, o := range c.masters() {
		for _, part := range o.param.Parts {
			o.param.part(o.elements, part).draw(o.param.Init, keyOf(part.Name, seed), used)
		}
	}
	if len(used) == 0 {
		return nil
	}
	for on := range used {
		if err := on.Sync(); err != nil {
			return err
		}
	}
	return c.EncodeMasters(w)
}

// masters are those of trained weights in codes.
func (c Replicas) masters() []optimizerState {
	if !slices.ContainsFunc(c[0].Shards, func(s *Shard) bool { return s.Q != nil }) {
		return nil
	}
	return slices.DeleteFunc(c.optimizerStates(), func(o optimizerState) bool {
		return o.param.encoding == quant.AsTrained || o.name != o.param.Name+masterSuffix
	})
}

// LoadMasters fills the masters of trained weights in codes with a checkpoint's numbers, which their codes have lost.
func (c Replicas) LoadMasters(dir string) error {
	masters := c.masters()
	if len(masters) == 0 {
		return nil
	}
	return withCheckpoint(dir, func(ck *safetensors.Checkpoint) error {
		w, err := checkpoint.NewWeights(ck, c[0].kept)
		if err != nil {
			return err
		}
		for _, o := range masters {
			for _, part := range o.param.Parts {
				from, err := w.Find(part.Name, "config.json")
				if err != nil {
					return err
				}
				values := make([]float32, part.Rows*o.param.W.Cols)
				if err := from.Read(values); err != nil {
					return err
				}
				raw := checkpoint.Round(values, kernels.F32)
				if part.Disk != nil {
					raw = arranged(values, kernels.F32, o.param.W.Cols, part.Disk)
				}
				o.param.part(o.elements, part).write(0, raw)
			}
		}
		return nil
	})
}

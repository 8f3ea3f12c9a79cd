package meta

import (
	"math"

	"lockstep/kernels"
)

// Kind is a kind of work. A machine does those of one kind at about one rate.
type Kind int

const (
	Dense             Kind = iota // products with one matrix for all rows
	Grouped                       // products with a matrix for each group of rows: experts, heads
	Attention                     // forward, with the scores of indexers
	AttentionBackward             // and the loss of indexers
	Latent                        // forward of heads wider than wideHead
	LatentBackward                // and backward
	// Scores of heads up to wideHead columns, one a key, row and head, whose exp2, maximum and sum no product hides; of
	// an indexer its ReLU and weight. FLOPs is how many there are.
	Scores
	ScoresBackward
	// What a GPU's multiprocessors could compute of AttentionBackward and ScoresBackward while they wait for the
	// longest block, see [Device.waiting].
	AttentionWaiting
	ScoresWaiting
	Sort       // of rows by expert; FLOPs is how many
	Codes      // what products of weights in codes take longer; FLOPs is how many
	Recurrence // chunks of DeltaNet and Mamba, forward and backward
	Rows       // all that has no products: bound by memory
	Optimizer  // sums of squares, AdamW and new codes: bound by memory
	Kinds
)

// wideHead is more columns than heads have but those of absorbed latent attention, whose gradients take two passes, and
// whose scores weigh little next to as many columns.
const wideHead = 256

// Cost is that of operations of one kind.
type Cost struct {
	Calls float64
	FLOPs float64 // of matrix products
	Bytes float64 // that have to be read and written at least once
}

// Work is what operations compute and move.
type Work struct {
	Costs     [Kinds]Cost
	Exchanged [kernels.Exchanges]Cost // what a rank gets from others, or moves to the host
}

// Plus is both.
func (c Cost) Plus(other Cost) Cost {
	return Cost{c.Calls + other.Calls, c.FLOPs + other.FLOPs, c.Bytes + other.Bytes}
}

// Times is so many of it.
func (c Cost) Times(n float64) Cost { return Cost{c.Calls * n, c.FLOPs * n, c.Bytes * n} }

// Times is so many of it.
func (w Work) Times(n float64) Work {
	for k := range w.Costs {
		w.Costs[k] = w.Costs[k].Times(n)
	}
	for k := range w.Exchanged {
		w.Exchanged[k] = w.Exchanged[k].Times(n)
	}
	return w
}

// FLOPs is that of products of all kinds.
func (w Work) FLOPs() (all float64) {
	for k, c := range w.Costs {
		switch Kind(k) {
		case Scores, ScoresBackward, AttentionWaiting, ScoresWaiting, Sort, Codes:
		default:
			all += c.FLOPs
		}
	}
	return all
}

// CountWork makes operations count their work from now on, with tokens that choose experts evenly; without, the device
// is one of [New], whose mixtures take the memory of more rows than that.
func (d *Device) CountWork(on bool) {
	d.work = nil
	if on {
		d.work = new(Work)
	}
}

// Work is what has been counted.
func (d *Device) Work() Work { return *d.work }

// CountsWork reports whether work is counted.
func (d *Device) CountsWork() bool { return d.work != nil }

// CountExchange adds bytes that a rank gets from others, or moves to the host.
func (d *Device) CountExchange(kind kernels.Exchange, bytes int) {
	if d.work != nil {
		c := &d.work.Exchanged[kind]
		*c = c.Plus(Cost{Calls: 1, Bytes: float64(bytes)})
	}
}

// count adds an operation.
func (d *Device) count(k Kind, flops, bytes float64) {
	if d.work == nil {
		return
	}
	c := &d.work.Costs[k]
	*c = c.Plus(Cost{1, flops, bytes})
}

// scores counts those that an operation of attention computes besides its products.
func (d *Device) scores(of Kind, n float64) {
	k := Scores
	if of == AttentionBackward {
		k = ScoresBackward
	}
	d.work.Costs[k].FLOPs += n
}

// rows counts an operation that reads or writes each of some tensors once.
func (d *Device) rows(tensors ...kernels.Tensor) {
	if d.work != nil {
		d.count(Rows, 0, bytesOf(tensors...))
	}
}

// optimizer is rows, of the update.
func (d *Device) optimizer(tensors ...kernels.Tensor) {
	if d.work != nil {
		d.count(Optimizer, 0, bytesOf(tensors...))
	}
}

func bytesOf(tensors ...kernels.Tensor) float64 {
	bytes := 0
	for _, t := range tensors {
		bytes += t.Bytes()
	}
	return float64(bytes)
}

// product counts MatMul and MatMulT: for each term 2*M*N*K FLOPs, its X and weight, and out once.
func (d *Device) product(out kernels.Tensor, g *kernels.Groups, terms []kernels.Term) {
	if d.work == nil {
		return
	}
	kind, flops, bytes := kindOf(g), 0.0, bytesOf(out)
	for _, t := range terms {
		w := t.Weight()
		flops += 2 * float64(t.X.Rows) * float64(w.Rows) * float64(w.Cols)
		stored := bytesOf(w)
		if t.Q != nil {
			stored = float64(t.Q.Bytes())
			d.work.Costs[Codes].FLOPs++
		}
		read := bytesOf(t.X)
		if t.XQ != nil {
			read = float64(t.XQ.Bytes())
		}
		bytes += read + stored*touched(g, w.Groups, t.X.Rows)
	}
	d.count(kind, flops, waited(kind, flops, bytes, out))
}

// A GPU's multiprocessors, how many outputs of a product one of them computes at a time, and how many FLOPs for a byte
// hide what a product reads and writes: twice those in which an H200 has as much of both.
const (
	multiprocessors = 132
	productTile     = 128 * 256
	hidingFLOPs     = 320
)

// waited is the bytes of a product that multiprocessors wait for: while they compute a tile of the output they write
// the one before and read the next, so those of one of their tiles remain. Products by groups have tiles that groups
// fill in part, and hide less of more.
func waited(k Kind, flops, bytes float64, out kernels.Tensor) float64 {
	if k != Dense || flops < hidingFLOPs*bytes {
		return bytes
	}
	return bytes / max(float64(out.Rows)*float64(out.Cols)/(multiprocessors*productTile), 1)
}

// kindOf is the kind of a product.
func kindOf(g *kernels.Groups) Kind {
	if g != nil && g.Count > 1 {
		return Grouped
	}
	return Dense
}

// touched is the share of so many matrices that rows read which choose evenly and independently: 1 - (1 - 1/n)^rows.
// Interleaved groups read all.
func touched(g *kernels.Groups, matrices, rows int) float64 {
	if g == nil || g.Interleaved || matrices < 2 {
		return 1
	}
	return 1 - math.Pow(1-1/float64(matrices), float64(rows))
}

// weightGrad counts 2*M*N*K FLOPs; dw is read and written once.
func (d *Device) weightGrad(dw kernels.Tensor, places []kernels.GradRows) {
	if d.work == nil {
		return
	}
	rows, bytes := 0, bytesOf(dw, dw)
	if places[0].Groups.Fresh {
		bytes = bytesOf(dw)
	}
	for _, p := range places {
		rows, bytes = rows+p.DY.Rows, bytes+bytesOf(p.DY, p.X)
	}
	kind, flops := kindOf(places[0].Groups), 2*float64(rows)*float64(dw.Rows)*float64(dw.Cols)
	d.count(kind, flops, waited(kind, flops, bytes, dw))
}

// keysOf is how many keys all rows of a layout read together, each at most so many (0: all up to its own), and how many
// positions of keys all spans have.
func keysOf(l *kernels.Layout, most int) (read, held float64) {
	for _, s := range l.Spans {
		from, to := float64(s.Pos), float64(s.Pos+s.Rows)
		held += to
		if bound := float64(most); most > 0 && to > bound {
			full := max(from, bound) // rows from here on read as many as they may
			read += bound * (to - full)
			to = max(full, from)
		}
		read += (to*(to+1) - from*(from+1)) / 2
	}
	return read, held
}

// attention counts two products for each key that a row reads; backward has five: scores, dP, dV, dQ and dK.
func (d *Device) attention(k Kind, kv kernels.KV, l *kernels.Layout, most int, a kernels.Attn,
	tensors ...kernels.Tensor) {
	d.attentionPart(1, k, kv, l, most, a, tensors...)
	if k == AttentionBackward && a.HeadDim <= wideHead {
		d.waiting(l, most, a)
	}
}

// keyTile is the keys of a block of dk and dv.
const keyTile = 128

// waiting counts what multiprocessors could compute while they wait for the longest block of dk and dv: it has the
// first keys of a sequence and the queries of all heads that read them, which is twice the mean. A pack of 4,096 rows
// with 4 KV heads is 128 blocks, one for each multiprocessor.
func (d *Device) waiting(l *kernels.Layout, most int, a kernels.Attn) {
	if d.work == nil {
		return
	}
	most = readable(most, a)
	read, _ := keysOf(l, most)
	longest := 0
	for _, s := range l.Spans {
		if most > 0 {
			s.Rows = min(s.Rows, most+keyTile)
		}
		longest = max(longest, s.Rows)
	}
	_, part := divided(a)
	n := part * (multiprocessors*keyTile*float64(longest*a.Heads/a.KVHeads) - read*float64(a.Heads))
	if n > 0 {
		d.work.Costs[AttentionWaiting].FLOPs += 2 * n * float64(3*a.HeadDim+2*a.Values())
		d.work.Costs[ScoresWaiting].FLOPs += n
	}
}

// readable is the most keys that a row reads, of which it may read so many; 0: all up to its own.
func readable(most int, a kernels.Attn) int {
	if a.Window > 0 && (most == 0 || a.Window < most) {
		return a.Window
	}
	return most
}

// divided is how much of backward is dq alone, or dk and dv: each computes scores and dP again, as backward of wide
// heads does.
func divided(a kernels.Attn) (queries, keys float64) {
	h, v := float64(a.HeadDim), float64(a.Values())
	return (2*h + v) / (4*h + 3*v), (2*h + 2*v) / (4*h + 3*v)
}

// attentionPart counts a part of the work of attention.
func (d *Device) attentionPart(part float64, k Kind, kv kernels.KV, l *kernels.Layout, most int, a kernels.Attn,
	tensors ...kernels.Tensor) {
	if d.work == nil {
		return
	}
	most = readable(most, a)
	read, held := keysOf(l, most)
	if most > 0 {
		held = min(held, read)
	}
	d.pairs(k, kv, part*read, held, a, tensors...)
}

// pairs counts so many pairs of a row and a key that it reads, for all heads, and the bytes of so many keys.
func (d *Device) pairs(k Kind, kv kernels.KV, n, keys float64, a kernels.Attn, tensors ...kernels.Tensor) {
	each := a.HeadDim + a.Values()
	if k == AttentionBackward {
		each = 3*a.HeadDim + 2*a.Values()
	}
	switch {
	case a.HeadDim <= wideHead:
		d.scores(k, n*float64(a.Heads))
	case k == AttentionBackward:
		k = LatentBackward
	default:
		k = Latent
	}
	d.count(k, 2*n*float64(a.Heads*each), bytesOf(tensors...)+keys*float64(kv.RowBytes()))
}

// index counts the score of each key that a row sees by heads of so many columns, so many products of it, and an fp32
// number for each that is written and read.
func (d *Device) index(k Kind, products int, l *kernels.Layout, most, heads, dim int, tensors ...kernels.Tensor) {
	if d.work == nil {
		return
	}
	read, _ := keysOf(l, most)
	d.scores(k, read*float64(heads))
	d.count(k, 2*read*float64(products*heads*dim), bytesOf(tensors...)+8*read)
}

// recurrence counts the products within a chunk and with the state of each head, for each row, so many times.
func (d *Device) recurrence(times float64, r kernels.Recurrence, tensors ...kernels.Tensor) {
	if d.work == nil {
		return
	}
	chunk, k, v := float64(d.def.ChunkRows), float64(r.KeyDim), float64(r.ValueDim)
	flops := 2 * float64(tensors[0].Rows) * float64(r.Heads) * (chunk*(k+v) + 2*k*v)
	d.count(Recurrence, times*flops, bytesOf(tensors...))
}

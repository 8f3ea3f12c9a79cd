package meta

import (
	"math"
	"testing"

	"lockstep/kernels"
	"lockstep/quant"
)

// counted is what operations count, on tensors of an arena.
func counted(body func(d *Device, mem *kernels.Arena)) Work {
	d := New(kernels.Default(), 0)
	mem := kernels.NewArena(d)
	d.CountWork(true)
	body(d, mem)
	return d.Work()
}

// near wants a cost by hand.
func near(t *testing.T, what string, got, want Cost) {
	t.Helper()
	for _, x := range [][2]float64{{got.Calls, want.Calls}, {got.FLOPs, want.FLOPs}, {got.Bytes, want.Bytes}} {
		if math.Abs(x[0]-x[1]) > 1e-9*math.Abs(x[1]) {
			t.Errorf("%s: %+v, want %+v", what, got, want)
			return
		}
	}
}

// sorts is a dispatch of some tokens to two experts each.
func sorts(tokens int) func(d *Device, mem *kernels.Arena) {
	return func(d *Device, mem *kernels.Arena) {
		d.Dispatch(kernels.Plan{Source: mem.New(kernels.I32, 1, 2*tokens), RowOf: mem.New(kernels.I32, tokens, 2)},
			mem.New(kernels.I32, tokens, 2), nil)
	}
}

func TestWork(t *testing.T) {
	const bf16, f32 = kernels.BF16, kernels.F32
	attn := kernels.Attn{Heads: 4, KVHeads: 2, HeadDim: 8}
	l := &kernels.Layout{Spans: []kernels.Span{{Rows: 3}, {Row: 3, Rows: 2, Pos: 10}}, Segments: []int32{0, 5}}
	windowed := attn
	windowed.Window = 2
	whole := &kernels.Layout{Spans: []kernels.Span{{Rows: 3}, {Row: 3, Rows: 12}}, Segments: []int32{0, 15}}
	wide := kernels.Attn{Heads: 4, KVHeads: 1, HeadDim: 288, ValueDim: 256}
	for _, c := range []struct {
		name string
		kind Kind
		want Cost
		body func(d *Device, mem *kernels.Arena)
	}{
		{"dense", Dense, Cost{1, 2*10*3*4 + 2*10*3*2, 2 * (10*3 + 10*4 + 3*4 + 10*2 + 3*2)},
			func(d *Device, mem *kernels.Arena) {
				d.MatMul(mem.New(bf16, 10, 3), nil, kernels.Term{X: mem.New(bf16, 10, 4), W: mem.New(bf16, 3, 4)},
					kernels.Term{X: mem.New(bf16, 10, 2), W: mem.New(bf16, 3, 2)})
			}},
		// 15.5 tiles of each multiprocessor, one of which is waited for
		{"large", Dense, Cost{1, 2 * 8192 * 8192 * 8192, 6 * 132 * 128 * 256}, func(d *Device, mem *kernels.Arena) {
			d.MatMul(mem.New(bf16, 8192, 8192), nil, kernels.Term{X: mem.New(bf16, 8192, 8192),
				W: mem.New(bf16, 8192, 8192)})
		}},
		{"few rows of a large matrix", Dense, Cost{1, 2 * 256 * 65536 * 8192,
			2 * (256*8192 + 65536*8192 + 256*65536)}, func(d *Device, mem *kernels.Arena) {
			d.MatMul(mem.New(bf16, 256, 65536), nil, kernels.Term{X: mem.New(bf16, 256, 8192),
				W: mem.New(bf16, 65536, 8192)})
		}},
		{"large weight gradient", Dense, Cost{1, 2 * 8192 * 8192 * 8192, 12 * 132 * 128 * 256},
			func(d *Device, mem *kernels.Arena) {
				d.WeightGrad(mem.New(f32, 8192, 8192), mem.New(bf16, 8192, 8192), mem.New(bf16, 8192, 8192),
					&kernels.Groups{Count: 1, Segments: 1})
			}},
		{"experts", Grouped, Cost{1, 2 * 2 * 3 * 4, 2 * (2*3 + 2*4 + 8*3*4*(1-7./8*7/8))}, // 2 rows read 2 of 8 at most
			func(d *Device, mem *kernels.Arena) {
				d.MatMul(mem.New(bf16, 2, 3), &kernels.Groups{Count: 8, Segments: 1},
					kernels.Term{X: mem.New(bf16, 2, 4), W: mem.NewGrouped(bf16, 8, 3, 4)})
			}},
		{"heads", Grouped, Cost{1, 2 * 8 * 3 * 4, 2 * (8*3 + 8*4 + 4*3*4)},
			func(d *Device, mem *kernels.Arena) {
				d.MatMul(mem.New(bf16, 8, 3), &kernels.Groups{Count: 4, Segments: 1, Interleaved: true},
					kernels.Term{X: mem.New(bf16, 8, 4), W: mem.NewGrouped(bf16, 4, 3, 4)})
			}},
		{"a few rows sorted", Sort, Cost{1, 6, 4 * 3 * 6}, sorts(3)},
		{"rows sorted", Sort, Cost{3, 8194, 4 * 3 * 8194}, sorts(4097)},
		{"codes", Dense, Cost{1, 2 * 2 * 4 * 64, 2*(2*4+2*64) + 4*(32+2*2)},
			func(d *Device, mem *kernels.Arena) {
				q := kernels.NewQuantizedWeight(quant.INT4.Format(), bf16, 1, 4, 64, mem.NewGrouped)
				d.MatMul(mem.New(bf16, 2, 4), nil, kernels.Term{X: mem.New(bf16, 2, 64), Q: &q})
			}},
		{"weight gradient", Dense, Cost{1, 2 * 10 * 3 * 4, 2*4*3*4 + 2*(10*3+10*4)},
			func(d *Device, mem *kernels.Arena) {
				d.WeightGrad(mem.New(f32, 3, 4), mem.New(bf16, 10, 3), mem.New(bf16, 10, 4),
					&kernels.Groups{Count: 1, Segments: 1})
			}},
		// rows read 1, 2, 3 and 11, 12 keys; the spans have 3 and 12
		{"attention", Attention, Cost{1, 2 * 29 * 4 * 16, 2*(5*32+5*32) + 4*5*4 + 15*2*(16+16)},
			func(d *Device, mem *kernels.Arena) {
				d.Attention(mem.New(bf16, 5, 32), mem.New(f32, 5, 4), mem.New(bf16, 5, 32), keys(mem, 16, 16), l, attn)
			}},
		{"window", Attention, Cost{1, 2 * 9 * 4 * 16, 2*(5*32+5*32) + 4*5*4 + 9*2*(16+16)},
			func(d *Device, mem *kernels.Arena) {
				d.Attention(mem.New(bf16, 5, 32), mem.New(f32, 5, 4), mem.New(bf16, 5, 32), keys(mem, 16, 16), l,
					windowed)
			}},
		// dq by 28 pairs on lists, dk and dv by all 84 that rows see
		{"absorbed", LatentBackward, Cost{2, 2. * 4 * (3*288 + 2*256) * (28*832 + 84*1088) / (832 + 1088),
			(15 + 15) * 2 * (288 + 256)},
			func(d *Device, mem *kernels.Arena) {
				none := kernels.Tensor{}
				d.SparseAttendBackward(none, none, none, none, none, none, none, keys(mem, 288, 256),
					kernels.Tensor{Cols: 2}, whole, wide)
			}},
		{"AdamW", Optimizer, Cost{1, 0, 100 * (2 + 8*4)}, func(d *Device, mem *kernels.Arena) {
			x := func() kernels.Tensor { return mem.New(f32, 10, 10) }
			d.AdamW(mem.New(bf16, 10, 10), x(), x(), x(), x(), mem.New(f32, 1, 1), kernels.AdamW{})
		}},
		{"gather", Rows, Cost{1, 0, 2 * 2 * 7 * 5}, func(d *Device, mem *kernels.Arena) {
			d.Gather(mem.New(bf16, 7, 5), mem.New(bf16, 2, 5), mem.New(kernels.I32, 1, 7))
		}},
	} {
		w := counted(c.body)
		near(t, c.name, w.Costs[c.kind], c.want)
		flops := c.want.FLOPs
		if c.kind == Sort {
			flops = 0
		}
		if w.FLOPs() != flops {
			t.Errorf("%s: %g FLOPs of all kinds, want %g", c.name, w.FLOPs(), flops)
		}
	}
}

// Parts of dk and dv have together what one call has, of all pairs and of those on lists.
func TestKeyParts(t *testing.T) {
	l := &kernels.Layout{Spans: []kernels.Span{{Rows: 5000}, {Row: 5000, Rows: 70}}, Segments: []int32{0, 5070}}
	for _, most := range []int{64, l.Rows()} {
		pairs, _ := keysOf(l, 0)
		listed, _ := keysOf(l, most)
		whole, parts := kernels.KeyPart{To: 5070, Keys: [][2]int{{0, 5070}}}.Work(l, most), kernels.KeyWork{}
		cuts := []int{0, 1000, 1001, 4999, 5070}
		for i, from := range cuts[:4] {
			for _, keys := range l.DealKeys(3) {
				w := kernels.KeyPart{From: from, To: cuts[i+1], Keys: keys}.Work(l, most)
				parts.Pairs, parts.Listed = parts.Pairs+w.Pairs, parts.Listed+w.Listed
			}
		}
		for _, w := range []kernels.KeyWork{whole, parts} {
			if math.Abs(w.Pairs/pairs-1) > 1e-9 || math.Abs(w.Listed/listed-1) > 1e-3 {
				t.Errorf("lists of %d: %+v, want %v pairs, %v of them listed", most, w, pairs, listed)
			}
		}
	}
}

// Of a long sequence dk and dv go along lists, of a short one they are of all pairs.
func TestAlongLists(t *testing.T) {
	a := kernels.Attn{Heads: 64, KVHeads: 1, HeadDim: 576, ValueDim: 512, Latent: true}
	flops := func(rows, most int) float64 {
		l := &kernels.Layout{Spans: []kernels.Span{{Rows: rows}}, Segments: []int32{0, int32(rows)}}
		return counted(func(d *Device, _ *kernels.Arena) {
			d.keyGrad(kernels.KV{}, l, most, a, kernels.KeyPart{To: rows, Keys: [][2]int{{0, rows}}})
		}).FLOPs()
	}
	if x, y := flops(4096, 2048), flops(4096, 0); x != y {
		t.Errorf("lists of 4,096 rows: %g FLOPs, want %g", x, y)
	}
	if x, y := flops(262144, 2048), flops(262144, 0); x > y/8 || x < y/16 {
		t.Errorf("lists of 262,144 rows: %g FLOPs of %g", x, y)
	}
}

// Products of weights in codes are counted.
func TestCodes(t *testing.T) {
	w := counted(func(d *Device, mem *kernels.Arena) {
		q := kernels.NewQuantizedWeight(quant.INT4.Format(), kernels.BF16, 1, 4, 64, mem.NewGrouped)
		x, a, b := mem.New(kernels.BF16, 2, 64), mem.New(kernels.BF16, 2, 8), mem.New(kernels.BF16, 4, 8)
		d.MatMul(mem.New(kernels.BF16, 2, 4), nil, kernels.Term{X: x, Q: &q}, kernels.Term{X: a, W: b})
		d.MatMul(mem.New(kernels.BF16, 2, 4), nil, kernels.Term{X: a, W: b})
	})
	near(t, "codes", w.Costs[Codes], Cost{FLOPs: 1})
}

// A gradient waits for the first keys of its longest sequence, which all its queries read: of 8 heads on 2, a tile of
// 128 keys and 4 heads on one of 132 multiprocessors, less what all have to compute. Many sequences wait for none.
func TestWaiting(t *testing.T) {
	a := kernels.Attn{Heads: 8, KVHeads: 2, HeadDim: 32}
	windowed := a
	windowed.Window = 64
	for _, c := range []struct {
		a         kernels.Attn
		sequences int
		want      float64 // scores of all heads that could have been computed, 4 sevenths of them for dk and dv
	}{
		{a, 1, 132*128*1000*4 - 1000*1001/2*8},
		{a, 3, 132*128*1000*4 - 3*1000*1001/2*8},
		{windowed, 1, 132*128*(64+128)*4 - (64*65/2+936*64)*8},
		{a, 17, 0},
	} {
		l := &kernels.Layout{Segments: []int32{0, int32(1000 * c.sequences)}}
		for i := range c.sequences {
			l.Spans = append(l.Spans, kernels.Span{Row: 1000 * i, Rows: 1000})
		}
		none := kernels.Tensor{}
		w := counted(func(d *Device, mem *kernels.Arena) {
			d.AttentionBackward(none, none, none, none, none, none, none, keys(mem, 64, 64), l, c.a)
		})
		scores := c.want * 4 / 7
		near(t, "scores", w.Costs[ScoresWaiting], Cost{FLOPs: scores})
		near(t, "products", w.Costs[AttentionWaiting], Cost{FLOPs: scores * 2 * 5 * 32})
		if w.FLOPs() != w.Costs[AttentionBackward].FLOPs {
			t.Errorf("%g FLOPs of products, want %g", w.FLOPs(), w.Costs[AttentionBackward].FLOPs)
		}
	}
}

// Each key that a row reads has a score in every head, whose FLOPs are none; those of wide heads are not counted.
func TestScores(t *testing.T) {
	l := &kernels.Layout{Spans: []kernels.Span{{Rows: 3}}, Segments: []int32{0, 3}} // 1 + 2 + 3 keys
	none := kernels.Tensor{}
	w := counted(func(d *Device, mem *kernels.Arena) {
		kv, narrow := keys(mem, 16, 16), kernels.Attn{Heads: 4, KVHeads: 2, HeadDim: 8}
		d.Attention(none, none, none, kv, l, narrow)
		d.AttentionBackward(none, none, none, none, none, none, none, kv, l, narrow)
		d.SelectKeys(none, none, none, kv, l, kernels.Index{Heads: 5, Dim: 8})
		d.Attention(none, none, none, keys(mem, 288, 256), l, kernels.Attn{Heads: 4, KVHeads: 1, HeadDim: 288,
			ValueDim: 256})
	})
	near(t, "scores", w.Costs[Scores], Cost{FLOPs: 6*4 + 6*5})
	near(t, "of gradients", w.Costs[ScoresBackward], Cost{FLOPs: 6 * 4})
	if got, want := w.FLOPs(), 2.*6*(4*16+4*40+5*8+4*544); got != want {
		t.Errorf("%g FLOPs, want %g", got, want)
	}
	if w.Costs[Latent].Calls != 1 || w.Costs[Attention].Calls != 2 {
		t.Errorf("%+v", w.Costs)
	}
}

func keys(mem *kernels.Arena, k, v int) kernels.KV {
	return kernels.KV{K: mem.New(kernels.BF16, 1024, k), V: mem.New(kernels.BF16, 1024, v), PageRows: 64}
}

// Rows read as many keys as a loop over them says.
func TestKeysOf(t *testing.T) {
	for _, most := range []int{0, 1, 5, 64} {
		for pos := range 12 {
			for rows := range 12 {
				l := &kernels.Layout{Spans: []kernels.Span{{Rows: rows, Pos: pos}}}
				want := 0
				for i := range rows {
					n := pos + i + 1
					if most > 0 {
						n = min(n, most)
					}
					want += n
				}
				if got, held := keysOf(l, most); got != float64(want) || held != float64(pos+rows) {
					t.Fatalf("%d rows from %d, at most %d keys each: %g of %g, want %d", rows, pos, most, got, held,
						want)
				}
			}
		}
	}
}

// A device that does not count has no work, and exchanges are told to those that do.
func TestCountExchange(t *testing.T) {
	d := New(kernels.Default(), 0)
	kernels.CountExchange(d, kernels.ExchangeRows, 5)
	if kernels.CountsWork(d) {
		t.Error("it counts before it is told to")
	}
	d.CountWork(true)
	kernels.CountExchange(d, kernels.ExchangeRows, 5)
	kernels.CountExchange(d, kernels.ExchangeRows, 6)
	near(t, "rows", d.Work().Exchanged[kernels.ExchangeRows], Cost{Calls: 2, Bytes: 11})
	near(t, "half", d.Work().Times(0.5).Exchanged[kernels.ExchangeRows], Cost{Calls: 1, Bytes: 5.5})
}

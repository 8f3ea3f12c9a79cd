//go:build cuda

package bench

import (
	"fmt"
	"testing"
	"time"

	"lockstep/kernels"
	"lockstep/kernels/cuda"
	"lockstep/kernels/cuda/cudatest"
)

// The operations of a decoding step of 48 layers such as Qwen3-30B-A3B's, with LoRA on attention, for 118 sequences
// that are a position further each time: the launch overhead on the CPU. It does not depend on widths, so they are
// small; a driver whose kernels do nothing is enough.
func BenchmarkLaunchOverhead(b *testing.B) {
	const rows, hidden, heads, kvHeads, dim, rank, experts, topK, inner, layers, pageRows, pages = 118, 128, 8, 1, 128,
		16, 16, 8, 64, 48, 16, 8
	const q, qk, qkv = heads * dim, (heads + kvHeads) * dim, (heads + 2*kvHeads) * dim
	d := cudatest.Card.(*cuda.Device)
	defer d.Release(d.Held())
	mem := kernels.NewArena(d)
	bf16 := func(rows, cols int) kernels.Tensor { return mem.New(kernels.BF16, rows, cols) }
	type layer struct{ norms, heads, down, stacked, up, outA, out, outB, router, gateUp, experts, k, v kernels.Tensor }
	var all []layer
	for range layers {
		all = append(all, layer{bf16(2, hidden), bf16(2, dim), bf16(3*rank, hidden), bf16(qkv, hidden), bf16(qkv, rank),
			bf16(rank, q), bf16(hidden, q), bf16(hidden, rank), bf16(experts, hidden),
			mem.NewGrouped(kernels.BF16, experts, 2*inner, hidden), mem.NewGrouped(kernels.BF16, experts, hidden,
				inner), bf16(rows*pages*pageRows, dim), bf16(rows*pages*pageRows, dim)})
	}
	x, n, u, y, v, z := bf16(rows, hidden), bf16(rows, hidden), bf16(rows, 3*rank), bf16(rows, qkv), bf16(rows, rank),
		bf16(rows, hidden)
	xs, gu, act, ys := bf16(rows*topK, hidden), bf16(rows*topK, 2*inner), bf16(rows*topK, inner),
		bf16(rows*topK, hidden)
	f32 := func(rows, cols int) kernels.Tensor { return mem.New(kernels.F32, rows, cols) }
	rstd, lse, logits, probs, weights, cos, sin := f32(1, rows*heads), f32(rows, heads), f32(rows, experts),
		f32(rows, experts), f32(rows, topK), f32(pages*pageRows, dim/2), f32(pages*pageRows, dim/2)
	positions, expertIDs := mem.New(kernels.I32, 1, rows), mem.New(kernels.I32, rows, topK)
	offsets := mem.New(kernels.I32, 1, experts+1)
	plan := kernels.Plan{Groups: kernels.Groups{Offsets: offsets, Count: experts, Segments: 1},
		Source: mem.New(kernels.I32, 1, rows*topK), RowOf: mem.New(kernels.I32, rows, topK)}
	a, rope, norm := kernels.Attn{Heads: heads, KVHeads: kvHeads, HeadDim: dim, Scale: 0.1},
		kernels.Rope{Cos: cos, Sin: sin, HeadDim: dim}, kernels.Norm{Eps: 1e-6}
	part := func(t kernels.Tensor, i int) kernels.Tensor { return t.ColRange(i*rank, (i+1)*rank) }
	step := func(l *kernels.Layout) {
		d.Write(positions, make([]byte, 4*rows))
		for _, w := range all {
			d.RMSNorm(n, rstd, x, w.norms.RowRange(0, 1), norm)
			d.MatMul(u, nil, kernels.Term{X: n, W: w.down})
			d.Scale(u, u, 1./64)
			d.MatMul(y, nil, kernels.Term{X: n, W: w.stacked}, kernels.Term{X: part(u, 0), W: w.up.RowRange(0, q),
				To: q},
				kernels.Term{X: part(u, 1), W: w.up.RowRange(q, qk), From: q, To: qk}, kernels.Term{X: part(u, 2),
					W: w.up.RowRange(qk, qkv), From: qk, To: qkv})
			queries, keys, kv := y.ColRange(0, q), y.ColRange(q, qk), kernels.KV{K: w.k, V: w.v, PageRows: pageRows}
			d.HeadNormRope(queries, rstd, queries, w.heads.RowRange(0, 1), positions, rope, norm)
			d.HeadNormRope(keys, rstd, keys, w.heads.RowRange(1, 2), positions, rope, norm)
			d.StoreKV(kv, keys, y.ColRange(qk, qkv), l)
			d.Attention(queries, lse, queries, kv, l, a)
			d.MatMul(v, nil, kernels.Term{X: queries, W: w.outA})
			d.Scale(v, v, 1./64)
			d.MatMul(z, nil, kernels.Term{X: queries, W: w.out}, kernels.Term{X: v, W: w.outB})
			d.Add(x, x, z)
			d.RMSNorm(n, rstd, x, w.norms.RowRange(1, 2), norm)
			d.MatMul(logits, nil, kernels.Term{X: n, W: w.router})
			d.Route(weights, expertIDs, probs, logits, kernels.Router{Norm: true, Scale: 1})
			d.Dispatch(plan, expertIDs, l.Segments)
			d.Gather(xs, n, plan.Source)
			d.MatMul(gu, &plan.Groups, kernels.Term{X: xs, W: w.gateUp})
			d.SwiGLU(act, gu)
			d.MatMul(ys, &plan.Groups, kernels.Term{X: act, W: w.experts})
			d.Combine(z, kernels.Tensor{}, ys, weights, plan.RowOf)
			d.Add(x, x, z)
		}
	}
	calls := 0
	b.ReportAllocs()
	for at := 0; b.Loop(); at++ {
		b.StopTimer()
		d.Wait()
		l := cudatest.Decoding(rows, 0, pageRows)
		for i := range l.Spans {
			s := &l.Spans[i]
			s.Pos, s.Pages = (i*pages*pageRows/rows+at)%(pages*pageRows), nil
			for p := range s.Pos/pageRows + 1 {
				s.Pages = append(s.Pages, int32(i*pages+p))
			}
		}
		b.StartTimer()
		d.Repeat("host", func() { step(l) })
		calls = 0
		for _, n := range d.GraphCalls("host") {
			calls += n
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*calls), "ns/call")
	b.ReportMetric(float64(calls), "calls")
}

// The dense operations of a layer of Qwen3-30B-A3B with LoRA for 118 sequences that decode: the time
// on the CPU, on the card, and of both one after the other.
func BenchmarkRepeat(b *testing.B) {
	// of which no cache holds the weights
	const rows, hidden, heads, kv, rank, experts, layers = 118, 2048, 4096, 1024, 16, 128, 12
	d := cudatest.Card.(*cuda.Device)
	defer d.Release(d.Held())
	mem := kernels.NewArena(d)
	random := func(rows, cols int) kernels.Tensor {
		t := mem.New(kernels.BF16, rows, cols)
		FillRandom(d, t)
		return t
	}
	type layer struct{ norm, qkvA, qkv, qkvB, outA, out, outB, router kernels.Tensor }
	var all []layer
	for range layers {
		all = append(all, layer{random(1, hidden), random(2*rank, hidden), random(heads+kv, hidden),
			random(heads+kv, rank), random(rank, heads), random(hidden, heads), random(hidden, rank),
			random(experts, hidden)})
	}
	x, n, u, y, v, z, logits := random(rows, hidden), random(rows, hidden), random(rows, 2*rank),
		random(rows, heads+kv), random(rows, rank), random(rows, hidden), mem.New(kernels.F32, rows, experts)
	rstd := mem.New(kernels.F32, 1, rows)
	body := func() {
		for _, l := range all {
			d.RMSNorm(n, rstd, x, l.norm, kernels.Norm{Eps: 1e-6})
			d.MatMul(u, nil, kernels.Term{X: n, W: l.qkvA})
			d.Scale(u, u, 1./64)
			q, k := u.ColRange(0, rank), u.ColRange(rank, 2*rank)
			d.MatMul(y, nil, kernels.Term{X: n, W: l.qkv}, kernels.Term{X: q, W: l.qkvB.RowRange(0, heads), To: heads},
				kernels.Term{X: k, W: l.qkvB.RowRange(heads, heads+kv), From: heads, To: heads + kv})
			d.MatMul(v, nil, kernels.Term{X: y.ColRange(0, heads), W: l.outA})
			d.Scale(v, v, 1./64)
			d.MatMul(z, nil, kernels.Term{X: y.ColRange(0, heads), W: l.out}, kernels.Term{X: v, W: l.outB})
			d.Add(x, x, z)
			d.RMSNorm(n, rstd, x, l.norm, kernels.Norm{Eps: 1e-6})
			d.MatMul(logits, nil, kernels.Term{X: n, W: l.router})
		}
	}
	const rounds = 50
	host, whole := 0., Time(d, 100*time.Millisecond, func() { d.Repeat("layers", body) })
	for range rounds {
		d.Wait()
		start := time.Now()
		d.Repeat("layers", body)
		host += time.Since(start).Seconds() / rounds
	}
	alone := timeGraph(d, 100*time.Millisecond, body)
	fmt.Printf("a layer of 10 calls: %.1f us, of which the CPU takes %.1f; the card alone %.1f\n", whole/layers*1e6,
		host/layers*1e6, alone/layers*1e6)
}

// What graphs of small kernels cost: launched as they are, with other parameters in every kernel, and captured; and the
// card's memory that one takes.
func BenchmarkGraphs(b *testing.B) {
	const calls, rounds, kept = 400, 20, 64
	d := cudatest.Card.(*cuda.Device)
	defer d.Release(d.Held())
	x := kernels.NewArena(d).New(kernels.F32, calls+rounds, 64)
	body := func(shift int) func() {
		return func() {
			for i := range calls {
				row := x.RowRange(i+shift, i+shift+1)
				d.Scale(row, row, 1)
			}
		}
	}
	run := func(name string, shift func(round int) int, key func(round int) string) {
		var host, whole time.Duration
		for round := range rounds {
			d.Wait()
			start := time.Now()
			d.Repeat(key(round), body(shift(round)))
			host += time.Since(start)
			d.Wait()
			whole += time.Since(start)
		}
		each := func(t time.Duration) float64 { return float64(t.Microseconds()) / rounds / calls }
		fmt.Printf("%s: %.2f us of the host a kernel, %.2f until the card is done\n", name, each(host), each(whole))
	}
	same := func(int) string { return "graph" }
	d.Repeat("graph", body(0))
	run("as it is", func(int) int { return 0 }, same)
	run("other parameters", func(round int) int { return 1 + round%2 }, same)
	before := d.Available()
	run("captured", func(int) int { return 0 }, func(round int) string { return fmt.Sprint("graph ", round) })
	for i := rounds; i < kept; i++ {
		d.Repeat(fmt.Sprint("graph ", i), body(0))
	}
	fmt.Printf("%d graphs of %d kernels: %.2f MiB of the card's memory each\n", kept, calls,
		float64(before-d.Available())/kept/(1<<20))
	for i := range kept {
		d.Forget(fmt.Sprint("graph ", i))
	}
}

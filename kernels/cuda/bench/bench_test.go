//go:build cuda

package bench

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"lockstep/kernels"
	"lockstep/kernels/cuda"
	"lockstep/kernels/cuda/cudatest"
	"lockstep/kernels/cuda/gemm"
	"lockstep/quant"
)

// BenchmarkAttention prints the lines of BenchAttention for both definitions of exp2.
func BenchmarkAttention(b *testing.B) {
	for _, exp2 := range []kernels.Exp2Mode{kernels.Exp2Poly, kernels.Exp2Ex2h} {
		b.Run(string(exp2), func(b *testing.B) {
			def := cudatest.Card.Definition()
			def.Exp2 = exp2
			d, err := cuda.New(def, 0)
			if err != nil {
				b.Fatal(err)
			}
			for _, r := range Attention(d, 200*time.Millisecond, AttentionCases) {
				b.Logf("%s: %.3f ms, %.0f TFLOP/s, %.0f GB/s", r.Case, r.Seconds*1e3, r.Flops/r.Seconds/1e12,
					r.Bytes/r.Seconds/1e9)
			}
			if err := d.Close(); err != nil {
				b.Error(err)
			}
		})
	}
}

// BenchmarkSparse prints the lines of BenchSparse.
func BenchmarkSparse(b *testing.B) {
	for _, r := range Sparse(cudatest.Card.(*cuda.Device), 200*time.Millisecond, SparseCases) {
		b.Logf("%s: %.3f ms, %.0f TFLOP/s, %.0f GB/s", r.Case, r.Seconds*1e3, r.Flops/r.Seconds/1e12,
			r.Bytes/r.Seconds/1e9)
	}
}

// BenchmarkRecurrent prints the lines of Recurrent.
func BenchmarkRecurrent(b *testing.B) {
	for _, r := range Recurrent(cudatest.Card.(*cuda.Device), 200*time.Millisecond, RecurrentCases) {
		b.Logf("%s: %.3f ms", r.Case, r.Seconds*1e3)
	}
}

func BenchmarkMatMul(b *testing.B) {
	for _, r := range MatMul(cudatest.Card.(*cuda.Device), 200*time.Millisecond, MatMulCases) {
		fmt.Printf("%-45s %10.1f us %8.1f TFLOP/s %8.0f GB/s\n", r.Case, r.Seconds*1e6, r.Flops/r.Seconds/1e12,
			r.Bytes/r.Seconds/1e9)
	}
}

// Products of few rows by every small tile, and what is chosen: the shapes of a decoding step, as a graph that finds no
// weights in the cache.
func BenchmarkFew(b *testing.B) {
	d := cudatest.Card.(*cuda.Device)
	defer func() { d.Path = "" }()
	defer d.Release(d.Held())
	const most = 4096
	mem := kernels.NewArena(d)
	weights, x, out := mem.New(kernels.BF16, CacheBytes/2/most, most), mem.New(kernels.BF16, 256, most),
		mem.New(kernels.BF16, 256, 5120)
	FillRandom(d, weights)
	FillRandom(d, x)
	for _, rows := range []int{1, 32, 118, 250} {
		for _, s := range [][2]int{{32, 2048}, {16, 4096}, {128, 2048}, {2048, 4096}, {5120, 2048}} {
			cols, depth := s[0], s[1]
			launches := min(weights.Rows/cols, 400)
			body := func() {
				for i := range launches {
					w := weights.RowRange(i*cols, (i+1)*cols).ColRange(0, depth)
					d.MatMul(out.RowRange(0, rows).ColRange(0, cols), nil,
						kernels.Term{X: x.RowRange(0, rows).ColRange(0, depth), W: w})
				}
			}
			line, best, chosen := fmt.Sprintf("%3d x %4d x %4d:", rows, cols, depth), 1e9, 0.
			for _, s := range append([]string{"", "_deep8", "_deep16", "_deep32"}, gemm.ProductPaths...) {
				if s == "_wide" {
					continue
				}
				d.Path = s
				us := timeGraph(d, 15*time.Millisecond, body) / float64(launches) * 1e6
				if s == "" {
					chosen = us
				} else {
					best = min(best, us)
				}
				line += fmt.Sprintf(" %6.2f%s", us, s)
			}
			fmt.Printf("%s  chosen/best %.2f\n", line, chosen/best)
		}
	}
}

// Products of groups by every larger tile, and what is chosen: experts of Kimi K2 and of Qwen3-30B-A3B from few rows
// each to many.
func BenchmarkGroups(b *testing.B) {
	d := cudatest.Card.(*cuda.Device)
	const most = 256
	for _, s := range [][3]int{{96, 4096, 7168}, {96, 7168, 2048}, {128, 1536, 2048}, {128, 2048, 768}} {
		groups, n, k := s[0], s[1], s[2]
		keep, mem := d.Held(), kernels.NewArena(d)
		w, y, x := mem.NewGrouped(kernels.BF16, groups, n, k), mem.New(kernels.BF16, groups*most, n),
			mem.New(kernels.BF16, groups*most, k)
		for _, t := range []kernels.Tensor{w, y, x} {
			FillRandom(d, t)
		}
		for _, each := range []int{48, 64, 96, 128, 160, 192, most} {
			rows := groups * each
			g, y, x := Groups(d, mem, MatMulCase{Groups: groups}, rows), y.RowRange(0, rows), x.RowRange(0, rows)
			benchTilings(d, fmt.Sprintf("MatMul %d x %d x %d, %d groups", rows, n, k, groups), func() {
				d.MatMul(y, g, kernels.Term{X: x, W: w})
			})
			benchTilings(d, fmt.Sprintf("MatMulT %d x %d x %d, %d groups", rows, k, n, groups), func() {
				d.MatMulT(x, g, kernels.Term{X: y, W: w})
			})
		}
		d.Release(keep)
	}
}

// benchTilings prints the microseconds of a product by what is chosen and by every larger tile.
func benchTilings(d *cuda.Device, name string, product func()) {
	defer func() { d.Path = "" }()
	line := fmt.Sprintf("%-45s", name)
	for _, s := range []string{"", "_wide", "_square", "_few"} {
		d.Path = s
		line += fmt.Sprintf(" %8.1f%s", Time(d, 10*time.Millisecond, product)*1e6, s)
	}
	fmt.Println(line)
}

// timeGraph is the seconds of body as graphs that run again and again, without launch overhead.
func timeGraph(d *cuda.Device, each time.Duration, body func()) float64 {
	const key = "timed"
	d.Repeat(key, body)
	defer d.Forget(key)
	return Time(d, each, func() { d.Replay(key) })
}

// Weight gradients by each variant, of adapters of experts too; the first line of a case is the one in use.
func BenchmarkGradients(b *testing.B) {
	d := cudatest.Card.(*cuda.Device)
	defer func() { d.Path = "" }()
	cases := slices.DeleteFunc(slices.Clone(MatMulCases), func(c MatMulCase) bool { return c.Op != "WeightGrad" })
	for _, size := range [][2]int{{1536, 16}, {16, 2048}} {
		cases = append(cases, MatMulCase{Op: "WeightGrad", Groups: 128, Rows: size[0], Cols: size[1], Depth: 33216})
	}
	for _, c := range cases {
		for _, s := range append([]string{""}, gemm.GradientPaths...) {
			d.Path = s
			r := MatMul(d, 100*time.Millisecond, []MatMulCase{c})[0]
			fmt.Printf("%-45s %-15s %10.1f us %8.1f TFLOP/s %8.0f GB/s\n", r.Case, s, r.Seconds*1e6,
				r.Flops/r.Seconds/1e12, r.Bytes/r.Seconds/1e9)
		}
	}
}

// Products with weights in codes by every kernel, as multiples of the rate of the same in bf16: what is chosen first.
func BenchmarkQuantized(b *testing.B) {
	d := cudatest.Card.(*cuda.Device)
	defer func() { d.Path = "" }()
	const each = 50 * time.Millisecond
	copied := Copy(d, each)
	fmt.Printf("copy %.0f GB/s\n", copied.Bytes/copied.Seconds/1e9)
	for _, f := range QuantizedFormats {
		r := dequantize(d, each, f)
		fmt.Printf("Dequantize %s: %.3f of a copy\n", f, r.Bytes/r.Seconds/(copied.Bytes/copied.Seconds))
	}
	for _, c := range QuantizedCases {
		b.Run(c.String(), func(*testing.B) { quantizedPaths(d, each, c) })
	}
}

// quantizedPaths prints a line for each format of a case.
func quantizedPaths(d *cuda.Device, each time.Duration, c MatMulCase) {
	d.Path = ""
	plain := MatMul(d, each, []MatMulCase{c})[0]
	fmt.Printf("%s: bf16 %.1f us, %.1f TFLOP/s, %.0f GB/s\n", c, plain.Seconds*1e6, plain.Flops/plain.Seconds/1e12,
		plain.Bytes/plain.Seconds/1e9)
	for _, f := range QuantizedFormats {
		line := fmt.Sprintf("  %-26s", f)
		run, w, free := prepareQuantized(d, c, f, false)
		for _, path := range append([]string{""}, gemm.QuantizedPaths...) {
			if few := slices.Contains(gemm.QuantizedPaths[3:], path); few && c.Rows > 10000 {
				continue // far from its shapes
			}
			d.Path = path
			s := Time(d, each, run)
			line += fmt.Sprintf("  %s %.2f (%.0f GB/s)", path, plain.Seconds/s, float64(w.Bytes())/s/1e9)
		}
		free()
		fmt.Println(line)
	}
}

// A product with adapters by one call, next to its parts: U, the weight's product with what U adds, and the weight's
// alone, as graphs whose weights are not in the cache.
func BenchmarkLoRA(b *testing.B) {
	d := cudatest.Card.(*cuda.Device)
	const rows, rank, copies = 256, 16, 8
	for _, s := range [][3]int{{5120, 2048, 3}, {2048, 4096, 1}} {
		n, k, adapters := s[0], s[1], s[2]
		for _, coded := range []bool{false, true} {
			keep, mem := d.Held(), kernels.NewArena(d)
			a, out, u, x := mem.New(kernels.BF16, adapters*rank, k), mem.New(kernels.BF16, rows, n),
				mem.New(kernels.BF16, rows, adapters*rank), mem.New(kernels.BF16, rows, k)
			up := mem.New(kernels.BF16, n, rank)
			for _, t := range []kernels.Tensor{a, u, x, up} {
				FillRandom(d, t)
			}
			var weights []kernels.Term
			for range copies {
				if coded {
					q := randomQuantized(d, mem, quant.FP8x128.Format(), 1, n, k)
					weights = append(weights, kernels.Term{Q: &q})
					continue
				}
				w := mem.New(kernels.BF16, n, k)
				FillRandom(d, w)
				weights = append(weights, kernels.Term{W: w})
			}
			product := func(call func(base kernels.Term)) float64 {
				return timeGraph(d, 30*time.Millisecond, func() {
					for _, w := range weights {
						w.X = x
						call(w)
					}
				}) / copies * 1e6
			}
			adds := kernels.Term{X: u.ColRange(0, rank), W: up}
			fmt.Printf("%d x %d x %d, codes %t: U %.1f us, product %.1f, with what U adds %.1f, by one call %.1f\n",
				rows, n, k, coded, product(func(kernels.Term) { d.MatMul(u, nil, kernels.Term{X: x, W: a}) }),
				product(func(w kernels.Term) { d.MatMul(out, nil, w) }),
				product(func(w kernels.Term) { d.MatMul(out, nil, w, adds) }),
				product(func(w kernels.Term) { d.MatMulLoRA(out, u, x, a, 2, nil, w, adds) }))
			d.Release(keep)
		}
	}
}

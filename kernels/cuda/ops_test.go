//go:build cuda

package cuda

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"

	"lockstep/kernels"
)

func TestElementwise(t *testing.T) {
	for _, dtype := range dtypes {
		for _, s := range [][2]int{{1, 1}, {3, 100}, {257, 513}, {5, 4096}, {65536, 24}} {
			r, c := s[0], s[1]
			both(t, "add", []operand{strided(dtype, r, c, 1), normal(dtype, r, c, 1), strided(dtype, r, c, 1)},
				func(d kernels.Device, x []kernels.Tensor) {
					d.Add(x[0], x[1], x[2])
				})
			both(t, "scale", []operand{normal(dtype, r, c, 1), strided(dtype, r, c, 1)},
				func(d kernels.Device, x []kernels.Tensor) {
					d.Scale(x[0], x[1], 0.37)
				})
			both(t, "zero", []operand{strided(dtype, r, c, 1)}, func(d kernels.Device, x []kernels.Tensor) {
				d.Zero(x[0])
			})
			for _, to := range dtypes {
				both(t, "copy", []operand{strided(to, r, c, 1), normal(dtype, r, c, 1e-3)},
					func(d kernels.Device, x []kernels.Tensor) {
						d.Copy(x[0], x[1])
					})
			}
		}
	}
	both(t, "copy int32", []operand{ints(1, 9, below(9, 100)), ints(1, 9, below(9, 100))},
		func(d kernels.Device, x []kernels.Tensor) {
			d.Copy(x[0], x[1])
		})
}

func TestEmbed(t *testing.T) {
	for _, dtype := range dtypes {
		for _, s := range [][3]int{{1, 1, 8}, {100, 7, 100}, {1000, 50, 513}, {5000, 3000, 1024}, {33, 50, 7168},
			{65536, 400, 16}} {
			tokens, vocab, width := s[0], s[1], s[2]
			ids := ints(1, tokens, below(tokens, vocab))
			both(t, "embed", []operand{normal(dtype, tokens, width, 1), normal(dtype, vocab, width, 1), ids},
				func(d kernels.Device, x []kernels.Tensor) {
					d.Embed(x[0], x[1], x[2])
				})
			both(t, "embed backward", []operand{normal(kernels.F32, vocab, width, 1), strided(dtype, tokens, width, 1),
				ids}, func(d kernels.Device, x []kernels.Tensor) {
				d.EmbedBackward(x[0], x[1], x[2])
			})
		}
	}
}

func TestNorm(t *testing.T) {
	for _, dtype := range dtypes {
		for _, s := range [][2]int{{1, 1}, {3, 100}, {100, 256}, {9, 300}, {200, 513}, {130, 1024}, {1000, 2048},
			{1056, 1024}, {1057, 2048}, {70, 4096}, {1056, 4096}, {70, 7168}, {66, 5001}, {65536, 40}} {
			for _, norm := range []kernels.Norm{{Eps: 1e-6}, {Eps: 1e-5, PlusOne: true}} {
				r, n := s[0], s[1]
				packs := []int32{0, int32(r / 3), int32(r)}
				both(t, "rms norm", []operand{strided(dtype, r, n, 1), normal(kernels.F32, 1, r, 1),
					strided(dtype, r, n, 3), normal(dtype, 1, n, 1)},
					func(d kernels.Device, x []kernels.Tensor) { d.RMSNorm(x[0], x[1], x[2], x[3], norm) })
				both(t, "rms norm backward", []operand{normal(dtype, r, n, 1), normal(kernels.F32, 1, n, 1),
					strided(dtype, r, n, 1), normal(dtype, r, n, 1), positive(1, r), normal(dtype, 1, n, 1)},
					func(d kernels.Device, x []kernels.Tensor) {
						d.RMSNormBackward(x[0], x[1], x[2], x[3], x[4], x[5], norm, packs)
						d.RMSNormBackward(x[0], kernels.Tensor{}, x[2], x[3], x[4], x[5], norm, packs)
					})
			}
		}
	}
}

func TestHeadNormRope(t *testing.T) {
	for _, dtype := range dtypes {
		for _, s := range [][4]int{{1, 1, 8, 4}, {17, 3, 16, 4}, {300, 8, 64, 32}, {17000, 1, 64, 32}, {70, 5, 128, 64},
			{33, 40, 128, 64}, {20, 3, 256, 128}, {500, 4, 128, 32}, {70, 3, 192, 32}, {40, 3, 64, 8}, {33, 5, 96, 12},
			{21, 2, 160, 20}} {
			for _, rope := range []kernels.Rope{{}, {First: s[2] - 2*s[3]}, {First: s[2] - 2*s[3], Interleaved: true}} {
				rope.HeadDim = s[2]
				headNormRope(t, dtype, s[0], s[1], s[3], rope, nil)
				if !rope.Interleaved {
					headNormRope(t, dtype, s[0], s[1], s[3], rope, &kernels.Norm{Eps: 1e-6})
					headNormRope(t, dtype, s[0], s[1], s[3], rope, &kernels.Norm{Eps: 1e-5, PlusOne: true})
				}
			}
		}
	}
}

func headNormRope(t *testing.T, dtype kernels.DType, r, heads, pairs int, rope kernels.Rope, normed *kernels.Norm) {
	t.Helper()
	n, packs, norm := heads*rope.HeadDim, []int32{0, int32(r / 3), int32(r)}, kernels.Norm{}
	if normed != nil {
		norm = *normed
	}
	tables := func(cos, sin kernels.Tensor) kernels.Rope {
		rope.Cos, rope.Sin = cos, sin
		return rope
	}
	at, cos, sin := ints(1, r, below(r, 50)), normal(kernels.F32, 50, pairs, 1), normal(kernels.F32, 50, pairs, 1)
	name := fmt.Sprintf("head norm and rope %d %d %d %+v %v", r, heads, pairs, rope, normed)
	both(t, name, []operand{normal(dtype, r, n, 1), normal(kernels.F32, r, heads, 1), strided(dtype, r, n, 1),
		normal(dtype, 1, rope.HeadDim, 1), at, cos, sin},
		func(d kernels.Device, x []kernels.Tensor) {
			if normed == nil {
				x[3] = kernels.Tensor{}
			}
			d.HeadNormRope(x[0], x[1], x[2], x[3], x[4], tables(x[5], x[6]), norm)
		})
	both(t, name+" backward", []operand{normal(dtype, r, n, 1), normal(kernels.F32, 1, rope.HeadDim, 1),
		strided(dtype, r, n, 1), normal(dtype, r, n, 1), positive(r, heads),
		normal(dtype, 1, rope.HeadDim, 1), at, cos, sin},
		func(d kernels.Device, x []kernels.Tensor) {
			w, dw := x[5], x[1]
			if normed == nil {
				w, dw = kernels.Tensor{}, kernels.Tensor{}
			}
			d.HeadNormRopeBackward(x[0], dw, x[2], x[3], x[4], w, x[6], tables(x[7], x[8]), norm, packs)
			// in place
			d.HeadNormRopeBackward(x[2], kernels.Tensor{}, x[2], x[3], x[4], w, x[6], tables(x[7], x[8]), norm, packs)
		})
}

func TestJoinHeads(t *testing.T) {
	for _, dtype := range dtypes {
		for _, s := range [][4]int{{1, 1, 1, 1}, {33, 3, 5, 2}, {33, 3, 8, 4}, {70, 5, 16, 24}, {300, 64, 128, 64},
			{65536, 2, 3, 1}} {
			rows, heads, n, r := s[0], s[1], s[2], s[3]
			both(t, fmt.Sprint("join heads ", s), []operand{strided(dtype, rows, heads*(n+r), 1),
				normal(dtype, rows, heads*n, 1), strided(dtype, rows, r, 1), strided(dtype, rows, heads*n, 1),
				normal(dtype, rows, r, 1)},
				func(d kernels.Device, x []kernels.Tensor) {
					d.JoinHeads(x[0], x[1], x[2])
					d.JoinHeadsBackward(x[3], x[4], x[0])
				})
		}
	}
}

func TestSwiGLU(t *testing.T) {
	for _, dtype := range dtypes {
		for _, s := range [][2]int{{1, 1}, {33, 77}, {1000, 768}, {65536, 16}} {
			r, n := s[0], s[1]
			both(t, "swiglu", []operand{normal(dtype, r, n, 1), normal(dtype, r, 2*n, 8)},
				func(d kernels.Device, x []kernels.Tensor) {
					d.SwiGLU(x[0], x[1])
				})
			both(t, "swiglu backward", []operand{normal(dtype, r, n, 1), normal(dtype, r, 2*n, 8)},
				func(d kernels.Device, x []kernels.Tensor) {
					d.SwiGLUBackward(x[1], x[0], x[1])
				})
		}
	}
}

func TestClampedSwiGLU(t *testing.T) {
	c := kernels.Clamp{Alpha: 1.702, Limit: 7}
	for _, dtype := range dtypes {
		for _, s := range [][2]int{{1, 1}, {33, 77}, {1000, 768}} {
			r, n := s[0], s[1]
			both(t, "clamped swiglu", []operand{normal(dtype, r, n, 1), normal(dtype, r, 2*n, 8)},
				func(d kernels.Device, x []kernels.Tensor) {
					d.ClampedSwiGLU(x[0], x[1], c)
				})
			both(t, "clamped swiglu backward", []operand{normal(dtype, r, n, 1), normal(dtype, r, 2*n, 8)},
				func(d kernels.Device, x []kernels.Tensor) {
					d.ClampedSwiGLUBackward(x[1], x[0], x[1], c)
				})
		}
	}
}

func TestBias(t *testing.T) {
	for _, dtype := range dtypes {
		for _, bias := range dtypes {
			for _, s := range [][3]int{{1, 1, 1}, {33, 77, 1}, {1000, 640, 1}, {700, 100, 6}} {
				r, n, groups := s[0], s[1], s[2]
				at := []int32{0, int32(r / 3), int32(r)}
				if groups > 1 { // of two packs each; some are empty
					at = []int32{0, 0, 1, 70, 70, 70, 70, 200, 260, 261, 600, 680, int32(r)}
				}
				g := func(t kernels.Tensor) *kernels.Groups {
					return &kernels.Groups{Offsets: t, Count: groups, Packs: 2}
				}
				both(t, fmt.Sprint("bias ", s), []operand{strided(dtype, r, n, 1), strided(dtype, r, n, 1),
					grouped(bias, groups, 1, n, n, 1), ints(1, len(at), at), normal(kernels.F32, groups, n, 1)},
					func(d kernels.Device, x []kernels.Tensor) {
						d.AddBias(x[0], x[1], x[2], g(x[3]))
						if groups == 1 {
							d.AddBias(x[1], x[1], x[2], nil)
						}
						x[4].Groups, x[4].Rows = groups, 1
						d.BiasGrad(x[4], x[0], g(x[3]))
					})
			}
		}
	}
}

func TestSinks(t *testing.T) {
	for _, dtype := range dtypes {
		for _, s := range [][3]int{{1, 1, 8}, {130, 3, 32}, {500, 64, 64}} {
			r, heads, dim := s[0], s[1], s[2]
			packs := []int32{0, int32(r / 3), int32(r)}
			both(t, fmt.Sprint("sinks ", s), []operand{strided(dtype, r, heads*dim, 1), strided(kernels.F32, r, heads,
				6), normal(dtype, 1, heads, 4), normal(kernels.F32, 1, heads, 1), strided(dtype, r, heads*dim, 1)},
				func(d kernels.Device, x []kernels.Tensor) {
					d.Sinks(x[0], x[1], x[2])
					d.SinksBackward(x[3], x[4], x[0], x[1], x[2], packs)
				})
		}
	}
}

// routers are settings of every kind; those with Norm set use the bias given.
func routers(e int) []kernels.Router {
	all := []kernels.Router{{Scale: 1}, {Norm: true, Scale: 1}, {Norm: true, Scale: 2.5}, {Scale: 0.3},
		{Sigmoid: true, Scale: 1.5}, {Sigmoid: true, Norm: true, Epsilon: 1e-20, Scale: 2.5}}
	if e%8 == 0 && e >= 16 {
		all = append(all, kernels.Router{Sigmoid: true, Norm: true, Groups: 8, TopGroups: 3, Scale: 1},
			kernels.Router{Groups: 2, TopGroups: 1, Scale: 1})
	}
	return all
}

func TestRoute(t *testing.T) {
	for _, s := range [][3]int{{1, 4, 2}, {77, 8, 2}, {1000, 128, 8}, {513, 384, 8}, {64, 256, 8}, {300, 3, 3},
		{118, 33, 1}, {9, 40, 10}, {20, 512, 10}, {5, 1024, 32}} {
		tokens, e, k := s[0], s[1], s[2]
		for _, r := range routers(e) {
			name := fmt.Sprintf("route %d of %d by %+v", k, e, r)
			coarse := strided(kernels.F32, tokens, e, 3)
			for i := 0; i < len(coarse.raw); i += 4 { // ties
				coarse.raw[i], coarse.raw[i+1], coarse.raw[i+2] = 0, 0, coarse.raw[i+2]&0xc0
			}
			both(t, name, []operand{normal(kernels.F32, tokens, k, 1), ints(tokens, k, make([]int32, tokens*k)),
				normal(kernels.F32, tokens, e, 1), coarse, normal(kernels.F32, 1, e, 0.5)},
				func(d kernels.Device, x []kernels.Tensor) {
					r := r
					if r.Norm {
						r.Bias = x[4]
					}
					d.Route(x[0], x[1], x[2], x[3], r)
				})
			both(t, name+" backward", []operand{normal(kernels.F32, tokens, e, 1), normal(kernels.F32, tokens, k, 1),
				positive(tokens, k), ints(tokens, k, picked(tokens, e, k)), positive(tokens, e)},
				func(d kernels.Device, x []kernels.Tensor) { d.RouteBackward(x[0], x[1], x[2], x[3], x[4], r) })
		}
	}
}

// picked is k different experts for each token.
func picked(tokens, e, k int) []int32 {
	picks := make([]int32, 0, tokens*k)
	for range tokens {
		for _, p := range rng.Perm(e)[:k] {
			picks = append(picks, int32(p))
		}
	}
	return picks
}

func TestMoE(t *testing.T) {
	for _, s := range [][4]int{{1, 4, 2, 16}, {77, 8, 2, 100}, {1000, 128, 8, 64}, {513, 384, 8, 256}, {300, 3, 3, 32},
		{40, 32, 10, 72}, {3, 64, 16, 52}, {65536, 16, 2, 24}} {
		tokens, e, k, width := s[0], s[1], s[2], s[3]
		for _, weighted := range []bool{true, false} {
			picks := picked(tokens, e, k)
			packs := []int32{0, int32(tokens / 3), int32(tokens / 3), int32(tokens)}
			for _, dtype := range dtypes {
				both(t, "dispatch, gather, combine", []operand{ints(tokens, k, picks),
					ints(1, 3*e+1, make([]int32, 3*e+1)), ints(1, tokens*k, make([]int32, tokens*k)),
					ints(tokens, k, make([]int32, tokens*k)),
					normal(dtype, tokens, width, 1), normal(dtype, tokens*k, width, 1), normal(kernels.F32, tokens, k,
						1), normal(dtype, tokens, width, 1), normal(dtype, tokens*k, width, 1),
					normal(kernels.F32, tokens, k, 1)},
					func(d kernels.Device, x []kernels.Tensor) {
						d.Dispatch(kernels.Plan{Groups: kernels.Groups{Offsets: x[1], Count: e, Packs: 3}, Source: x[2],
							RowOf: x[3]}, x[0], packs)
						d.Gather(x[5], x[4], x[2])
						w := x[6]
						if !weighted {
							w = kernels.Tensor{}
						}
						d.Combine(x[7], x[5], w, x[3])
						d.CombineBackward(x[8], x[9], x[7], x[5], x[6], x[3])
					})
			}
		}
	}
}

func TestLogProb(t *testing.T) {
	// of 3001, rows begin anywhere
	for _, s := range [][2]int{{1, 5}, {40, 480}, {9, 1024}, {6, 3001}, {7, 5000}, {3, 151936}} {
		rows, vocab := s[0], s[1]
		targets := below(rows, vocab)
		if rows > 1 {
			targets[1] = -1
		}
		for _, dtype := range dtypes {
			for _, tempered := range []bool{false, true} {
				both(t, fmt.Sprint("log prob, tempered ", tempered), []operand{normal(kernels.F32, 1, rows, 1),
					normal(kernels.F32, rows, 2, 1), strided(kernels.F32, rows, vocab, 4), ints(1, rows, targets),
					normal(kernels.F32, 1, rows, 1), normal(dtype, rows, vocab, 1), positive(1, rows)},
					func(d kernels.Device, x []kernels.Tensor) {
						var inv kernels.Tensor
						if tempered {
							inv = x[6]
						}
						d.LogProb(x[0], x[1], x[2], x[3], inv)
						d.LogProbBackward(x[5], x[4], x[1], x[2], x[3], inv)
					})
			}
		}
	}
	zeros := normal(kernels.F32, 2, 2048, 1) // -0, whose largest is +0
	for i := range zeros.raw {
		zeros.raw[i] = byte(i % 4 / 3 * 0x80)
	}
	both(t, "log prob of zeros", []operand{normal(kernels.F32, 1, 2, 1), normal(kernels.F32, 2, 2, 1), zeros,
		ints(1, 2, []int32{7, 2047})},
		func(d kernels.Device, x []kernels.Tensor) { d.LogProb(x[0], x[1], x[2], x[3], kernels.Tensor{}) })
}

func TestSample(t *testing.T) {
	for _, vocab := range []int{1, 7, 480, 1024, 3000, 151936} {
		var rows []kernels.Sampling
		for i, s := range []kernels.Sampling{{TopP: 1}, {Temperature: 1, TopP: 1}, {Temperature: 0.7, TopP: 0.5,
			TopK: 20}, {Temperature: 1.3, TopK: 3, TopP: 1}, {Temperature: 0.3, TopP: 0.9},
			{Temperature: 1e-38, TopP: 1}} {
			for j := range 4 {
				s.Seed, s.Request, s.Index = uint64(i), uint64(j), uint64(i+j)
				rows = append(rows, s)
			}
		}
		coarse := strided(kernels.F32, len(rows), vocab, 4)
		for i := range coarse.raw { // ties, and every other logit -Inf
			coarse.raw[i] &= [4]byte{0, 0, 0xc0, 0xff}[i%4]
			if vocab > 1 && i/4%2 == 1 {
				coarse.raw[i] = [4]byte{0, 0, 0x80, 0xff}[i%4]
			}
		}
		for _, logits := range []operand{normal(kernels.F32, len(rows), vocab, 4), coarse} {
			both(t, fmt.Sprint("sample of ", vocab), []operand{ints(1, len(rows), make([]int32, len(rows))), logits},
				func(d kernels.Device, x []kernels.Tensor) {
					d.Sample(x[0], x[1], rows)
				})
		}
	}
}

// A draw of exactly the sum of the first block, by the seed whose number is 1/2.
func TestSampleAtTheEdge(t *testing.T) {
	rows, block := []kernels.Sampling{{Temperature: 1, TopP: 1, Seed: 515707}}, kernels.Default().VocabBlock
	logits := normal(kernels.F32, 1, 2*block, 0)
	both(t, "sample at an edge", []operand{ints(1, 1, []int32{-1}), logits},
		func(d kernels.Device, x []kernels.Tensor) {
			d.Sample(x[0], x[1], rows)
		})
}

func TestSumSquares(t *testing.T) {
	// elements, and where they begin; the last have lanes wait for memory twice
	for _, s := range [][2]int{{1, 0}, {1000, 1}, {4096, 0}, {4096, 2}, {100003, 0}, {100003, 1}, {100003, 4},
		{1<<25 + 1<<20, 0}} {
		n, from := s[0], s[1]
		both(t, fmt.Sprintf("sum of squares of %d from %d", n, from), []operand{normal(kernels.F32, 1, 1, 1),
			normal(kernels.F32, 1, from+n, 1)},
			func(d kernels.Device, x []kernels.Tensor) { d.SumSquares(x[0], x[1].ColRange(from, from+n)) })
	}
}

// sparse makes every other run of 50 elements of an F32 operand zeros, of either sign.
func sparse(o operand) operand {
	for i := range len(o.raw) / 4 {
		if i/50%2 == 1 {
			binary.LittleEndian.PutUint32(o.raw[4*i:], uint32(i%3/2)<<31)
		}
	}
	return o
}

func TestAdamW(t *testing.T) {
	f32 := func(n int) operand { return sparse(normal(kernels.F32, 1, n, 1)) }
	step := kernels.AdamW{LR: 1e-3, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1, Correction1: 0.1,
		Correction2: 0.05}
	for _, dtype := range dtypes {
		for _, n := range []int{1, 1000, 4096, 100003} {
			// where w, master, m, v, grad begin
			for _, from := range [][5]int{{}, {1, 1, 1, 1, 1}, {2, 0, 0, 0, 0}, {0, 0, 0, 2, 0}, {4, 4, 8, 12, 16}} {
				x := []operand{normal(dtype, 1, n+16, 1), f32(n + 16), f32(n + 16), sparse(positive(1, n+16)),
					f32(n + 16), positive(1, 2), positive(1, 50)}
				both(t, fmt.Sprint("adamw of ", n, " from ", from), x, func(d kernels.Device, x []kernels.Tensor) {
					part := func(i int) kernels.Tensor { return x[i].ColRange(from[i], from[i]+n) }
					factor := x[5].ColRange(1, 2)
					d.ClipScale(x[5], x[6], 0.3)
					d.AdamW(part(0), part(1), part(2), part(3), part(4), factor, step)
					if dtype == kernels.F32 {
						// the weights are their own masters
						d.AdamW(part(1), part(1), part(2), part(3), part(4), factor, step)
					}
				})
			}
		}
	}
	nan := operand{dtype: kernels.F32, groups: 1, rows: 1, cols: 1, stride: 1,
		raw: binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(math.NaN())))}
	both(t, "adamw by NaN", []operand{f32(5000), f32(5000), sparse(positive(1, 5000)), f32(5000), nan},
		func(d kernels.Device, x []kernels.Tensor) {
			d.AdamW(x[0], x[0], x[1], x[2], x[3], x[4], step)
		})
}

func TestMatMul(t *testing.T) {
	for _, s := range [][3]int{{1, 1, 1}, {1, 8, 16}, {5, 100, 33}, {130, 129, 200}, {300, 257, 1000}, {64, 480, 2048},
		{513, 128, 24}, {65536, 8, 16}} {
		m, n, k := s[0], s[1], s[2]
		for _, out := range dtypes {
			for _, make := range []func(kernels.DType, int, int, float64) operand{normal, strided} {
				both(t, fmt.Sprint("matmul ", s), []operand{make(out, m, n, 1), make(kernels.BF16, m, k, 1),
					make(kernels.BF16, n, k, 1), make(kernels.BF16, m, 16, 1), make(kernels.BF16, n, 16, 1)},
					func(d kernels.Device, x []kernels.Tensor) {
						d.MatMul(x[0], nil, kernels.Term{X: x[1], W: x[2]}, kernels.Term{X: x[3], W: x[4]})
					})
				both(t, fmt.Sprint("matmul transposed ", s), []operand{make(out, m, n, 1), make(kernels.BF16, m, k, 1),
					make(kernels.BF16, k, n, 1)},
					func(d kernels.Device, x []kernels.Tensor) { d.MatMulT(x[0], nil, kernels.Term{X: x[1], W: x[2]}) })
			}
		}
	}
}

func TestGroupedMatMul(t *testing.T) {
	for _, s := range [][4]int{{3, 17, 40, 33}, {8, 300, 64, 96}, {16, 1000, 256, 128}, {128, 500, 48, 64}} {
		groups, rows, n, k := s[0], s[1], s[2], s[3]
		const packs = 2
		offsets := below(groups*packs+1, rows+1)
		offsets[0] = 0
		for i := range offsets {
			if i > 0 {
				offsets[i] = max(offsets[i-1], min(offsets[i-1]+int32(rng.IntN(3*rows/(groups*packs)+2)), int32(rows)))
			}
		}
		offsets[groups*packs] = int32(rows)
		g := func(t kernels.Tensor) *kernels.Groups {
			return &kernels.Groups{Offsets: t, Count: groups, Packs: packs}
		}
		at := ints(1, len(offsets), offsets)
		for _, pad := range []int{0, 1} {
			both(t, fmt.Sprint("grouped ", s), []operand{normal(kernels.BF16, rows, n, 1), normal(kernels.BF16, rows, k,
				1), grouped(kernels.BF16, groups, n, k, k+pad, 1), at},
				func(d kernels.Device, x []kernels.Tensor) { d.MatMul(x[0], g(x[3]), kernels.Term{X: x[1], W: x[2]}) })
			both(t, fmt.Sprint("grouped transposed ", s), []operand{normal(kernels.BF16, rows, k, 1),
				normal(kernels.BF16, rows, n, 1), grouped(kernels.BF16, groups, n, k, k+pad, 1), at},
				func(d kernels.Device, x []kernels.Tensor) { d.MatMulT(x[0], g(x[3]), kernels.Term{X: x[1], W: x[2]}) })
		}
		both(t, fmt.Sprint("weight gradient ", s), []operand{grouped(kernels.F32, groups, n, k, k, 1),
			normal(kernels.BF16, rows, n, 1), strided(kernels.BF16, rows, k, 1), at},
			func(d kernels.Device, x []kernels.Tensor) { d.WeightGrad(x[0], x[1], x[2], g(x[3])) })
	}
}

// attend makes a random layout with keys in place or in pages.
func attend(rows []int, pageRows int) (l *kernels.Layout, total, pages int) {
	l = &kernels.Layout{}
	for _, n := range rows {
		s := kernels.Span{Row: total, Rows: n}
		if pageRows > 0 {
			s.Pos = rng.IntN(3 * n)
			for range (s.Pos + n + pageRows - 1) / pageRows {
				s.Pages = append(s.Pages, int32(pages))
				pages++
			}
		}
		l.Spans = append(l.Spans, s)
		total += n
	}
	for _, s := range l.Spans { // pages in any order
		rng.Shuffle(len(s.Pages), func(i, j int) { s.Pages[i], s.Pages[j] = s.Pages[j], s.Pages[i] })
	}
	l.Packs = []int32{0, int32(total)}
	return l, total, pages
}

func TestAttention(t *testing.T) {
	for _, dim := range headDims {
		attentionOf(t, dim)
	}
}

// The kernels for cards without wgmma, of the widths that it takes here.
func TestPortableAttention(t *testing.T) {
	d := card.(*Device)
	defer func() { d.Path = "" }()
	d.Path = "portable"
	for _, dims := range headDimsWide {
		if slices.Contains(headDims, dims[0]) {
			attentionOf(t, dims[0])
		} else {
			latentOf(t, dims)
		}
	}
}

// attentionOf compares attention of heads of a width: packed sequences and their gradient, and sequences in pages.
func attentionOf(t *testing.T, dim int) {
	t.Helper()
	for _, heads := range [][2]int{{1, 1}, {4, 2}, {6, 1}} {
		for _, window := range []int{0, 70} {
			a := kernels.Attn{Heads: heads[0], KVHeads: heads[1], HeadDim: dim, Scale: 1 / math.Sqrt(float64(dim)),
				Window: window}
			l, rows, _ := attend([]int{1, 64, 100, 7, 300}, 0)
			q, kv := heads[0]*dim, heads[1]*dim
			x := []operand{normal(kernels.BF16, rows, q, 1), normal(kernels.F32, rows, heads[0], 1),
				strided(kernels.BF16, rows, q, 1), strided(kernels.BF16, rows, kv, 1), normal(kernels.BF16, rows, kv,
					1)}
			both(t, fmt.Sprintf("attention %+v", a), x, func(d kernels.Device, x []kernels.Tensor) {
				d.Attention(x[0], x[1], x[2], kernels.KV{K: x[3], V: x[4]}, l, a)
			})
			x = append(x, strided(kernels.BF16, rows, q, 1), normal(kernels.BF16, rows, q, 1),
				normal(kernels.BF16, rows, kv, 1), normal(kernels.BF16, rows, kv, 1))
			both(t, fmt.Sprintf("attention backward %+v", a), x, func(d kernels.Device, x []kernels.Tensor) {
				d.Attention(x[0], x[1], x[2], kernels.KV{K: x[3], V: x[4]}, l, a)
				d.AttentionBackward(x[6], x[7], x[8], x[5], x[0], x[1], x[2], kernels.KV{K: x[3], V: x[4]}, l, a)
			})
			const pageRows = 16
			l, rows, pages := attend([]int{1, 1, 40, 3}, pageRows)
			both(t, fmt.Sprintf("paged %+v", a), []operand{normal(kernels.BF16, rows, q, 1),
				normal(kernels.F32, rows, heads[0], 1), normal(kernels.BF16, rows, q, 1), normal(kernels.BF16, rows, kv,
					1), strided(kernels.BF16, rows, kv, 1),
				normal(kernels.BF16, pages*pageRows, kv, 1), normal(kernels.BF16, pages*pageRows, kv, 1)},
				func(d kernels.Device, x []kernels.Tensor) {
					cache := kernels.KV{K: x[5], V: x[6], PageRows: pageRows}
					d.StoreKV(cache, x[3], x[4], l)
					d.Attention(x[0], x[1], x[2], cache, l, a)
				})
		}
	}
}

// Latent attention: keys and values of other widths, packed and in pages, across the split too.
func TestLatentAttention(t *testing.T) {
	for _, dims := range headDimsLatent {
		latentOf(t, dims)
	}
}

// latentOf compares latent attention of keys and values of two widths.
func latentOf(t *testing.T, dims [2]int) {
	t.Helper()
	for _, heads := range [][2]int{{3, 3}, {4, 2}} {
		a := kernels.Attn{Heads: heads[0], KVHeads: heads[1], HeadDim: dims[0], ValueDim: dims[1],
			Scale: 1 / math.Sqrt(float64(dims[0]))}
		q, k, v, o := a.Heads*dims[0], a.KVHeads*dims[0], a.KVHeads*dims[1], a.Heads*dims[1]
		l, rows, _ := attend([]int{1, 64, 100, 7, 130}, 0)
		both(t, fmt.Sprintf("latent attention %+v", a), []operand{normal(kernels.BF16, rows, o, 1),
			normal(kernels.F32, rows, a.Heads, 1), strided(kernels.BF16, rows, q, 1), strided(kernels.BF16, rows, k, 1),
			normal(kernels.BF16, rows, v, 1),
			strided(kernels.BF16, rows, o, 1), normal(kernels.BF16, rows, q, 1), normal(kernels.BF16, rows, k, 1),
			normal(kernels.BF16, rows, v, 1)},
			func(d kernels.Device, x []kernels.Tensor) {
				kv := kernels.KV{K: x[3], V: x[4]}
				d.Attention(x[0], x[1], x[2], kv, l, a)
				d.AttentionBackward(x[6], x[7], x[8], x[5], x[0], x[1], x[2], kv, l, a)
			})
		const pageRows = 16
		l, rows, pages := attend([]int{1, 1, 40, 2100}, pageRows)
		both(t, fmt.Sprintf("latent, paged %+v", a), []operand{normal(kernels.BF16, rows, o, 1),
			normal(kernels.F32, rows, a.Heads, 1), normal(kernels.BF16, rows, q, 1), normal(kernels.BF16, rows, k, 1),
			strided(kernels.BF16, rows, v, 1),
			normal(kernels.BF16, pages*pageRows, k, 1), normal(kernels.BF16, pages*pageRows, v, 1)},
			func(d kernels.Device, x []kernels.Tensor) {
				cache := kernels.KV{K: x[5], V: x[6], PageRows: pageRows}
				d.StoreKV(cache, x[3], x[4], l)
				d.Attention(x[0], x[1], x[2], cache, l, a)
			})
	}
}

// Sequences that cross the split of 2048 keys.
func TestAttentionSplits(t *testing.T) {
	for _, window := range []int{0, 3000} {
		a := kernels.Attn{Heads: 2, KVHeads: 1, HeadDim: 32, Scale: 0.2, Window: window}
		l, rows, _ := attend([]int{2048, 2049, 4200}, 0)
		both(t, "splits", []operand{normal(kernels.BF16, rows, 64, 1), normal(kernels.F32, rows, 2, 1),
			normal(kernels.BF16, rows, 64, 1), normal(kernels.BF16, rows, 32, 1), normal(kernels.BF16, rows, 32, 1),
			normal(kernels.BF16, rows, 64, 1), normal(kernels.BF16, rows, 64, 1), normal(kernels.BF16, rows, 32, 1),
			normal(kernels.BF16, rows, 32, 1)},
			func(d kernels.Device, x []kernels.Tensor) {
				kv := kernels.KV{K: x[3], V: x[4]}
				d.Attention(x[0], x[1], x[2], kv, l, a)
				d.AttentionBackward(x[6], x[7], x[8], x[5], x[0], x[1], x[2], kv, l, a)
			})
	}
}

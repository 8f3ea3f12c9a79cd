//go:build cuda

package rows_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"lockstep/kernels"
	"lockstep/kernels/cuda"
	"lockstep/kernels/cuda/bench"
	"lockstep/kernels/cuda/cudatest"
	"lockstep/kernels/cuda/rows"
)

// variant is a source compiled with another choice of its shapes, and what the host has to know of it.
type variant struct {
	source, macro string
	use           func()
	swap          func() (undo func()) // to its kernels
}

// normVariants are other teams for rows of 2048 columns, of the norm and of its gradient; a macro's last number is the
// blocks of a processor.
func normVariants() (forward, backward []variant) {
	for _, v := range [][4]int{{8, 8, 8, 1}, {8, 8, 8, 4}, {8, 8, 4, 1}, {8, 8, 4, 8}, {8, 8, 1, 1}, {4, 8, 4, 1},
		{4, 8, 2, 1}} {
		forward = append(forward, variant{"norm.cu", fmt.Sprintf("FORWARD(%d, %d, %d, %d)", v[0], v[1], v[2], v[3]),
			func() {
				rows.SetNormShape(v[0], v[1], v[2])
			}, nil})
	}
	for _, v := range [][4]int{{4, 8, 4, 2}, {4, 8, 4, 3}, {4, 8, 2, 4}, {8, 8, 8, 1}, {8, 8, 4, 2}, {2, 8, 4, 1},
		{2, 8, 4, 2}, {2, 8, 2, 4}} {
		backward = append(backward, variant{"norm.cu", fmt.Sprintf("BACKWARD(%d, %d, %d, %d)", v[0], v[1], v[2], v[3]),
			func() {
				rows.SetNormGradShape(v[0], v[1], v[2])
			}, nil})
	}
	return forward, backward
}

// ropeVariants are other numbers of heads of 128 columns that threads have at a time, forward and backward, and of
// blocks of a processor.
func ropeVariants() (all []variant) {
	for _, v := range [][3]int{{4, 2, 2}, {2, 2, 3}, {1, 1, 4}, {4, 1, 3}, {2, 4, 1}, {4, 4, 2}} {
		all = append(all, variant{"rope.cu", fmt.Sprintf("ROPES_FULL(16, %d, %d, %d)", v[0], v[1], v[2]), func() {
			rows.SetRopeShape(v[0], v[1])
		}, nil})
	}
	return all
}

// compileVariants compiles and loads them all at once.
func compileVariants(d *cuda.Device, all []variant) error {
	errs := make([]error, len(all))
	var done sync.WaitGroup
	for i, v := range all {
		name := map[string]string{"norm.cu": "NORM_SHAPES", "rope.cu": "ROPE_SHAPES"}[v.source]
		done.Go(func() { all[i].swap, errs[i] = d.Variant(v.source, name+"="+v.macro) })
	}
	done.Wait()
	return errors.Join(errs...)
}

// contest is a case of BenchRows whose name begins so, other shapes of its kernels, and operands that show that they
// give the same bits.
type contest struct {
	prefix   string
	variants []variant
	operands []cudatest.Operand
	op       func(d kernels.Device, x []kernels.Tensor)
}

func contests() []contest {
	const length, n, heads, dim = 150, 2048, 40, 128
	segments := []int32{0, 70, length}
	bf16 := func(length, cols int) cudatest.Operand { return cudatest.Normal(kernels.BF16, length, cols, 1) }
	rope := func(x []kernels.Tensor) kernels.Rope { return kernels.Rope{Cos: x[0], Sin: x[1], HeadDim: dim} }
	forward, backward := normVariants()
	ropes := ropeVariants()
	table := func() cudatest.Operand { return cudatest.Normal(kernels.F32, 9, dim/2, 1) }
	return []contest{
		{"RMSNorm, ", forward, []cudatest.Operand{bf16(length, n), cudatest.Positive(1, length), bf16(length, n),
			bf16(1, n)},
			func(d kernels.Device, x []kernels.Tensor) { d.RMSNorm(x[0], x[1], x[2], x[3], kernels.Norm{Eps: 1e-6}) }},
		{"RMSNorm backward", backward, []cudatest.Operand{bf16(length, n), cudatest.Normal(kernels.F32, 1, n, 1),
			bf16(length, n),
			bf16(length, n), cudatest.Positive(1, length), bf16(1, n)},
			func(d kernels.Device, x []kernels.Tensor) {
				d.RMSNormBackward(x[0], x[1], x[2], x[3], x[4], x[5], kernels.Norm{}, segments)
			}},
		{"head norm and rope, ", ropes, []cudatest.Operand{table(), table(), bf16(length, heads*dim),
			cudatest.Positive(length, heads),
			bf16(length, heads*dim), bf16(1, dim), cudatest.Ints(1, length, cudatest.Below(length, 9))},
			func(d kernels.Device, x []kernels.Tensor) {
				d.HeadNormRope(x[2], x[3], x[4], x[5], x[6], rope(x), kernels.Norm{Eps: 1e-6})
			}},
		{"head norm and rope backward", ropes, []cudatest.Operand{table(), table(), bf16(length, heads*dim),
			cudatest.Normal(kernels.F32, 1, dim, 1), bf16(length, heads*dim), bf16(length, heads*dim),
			cudatest.Positive(length, heads),
			bf16(1, dim), cudatest.Ints(1, length, cudatest.Below(length, 9))},
			func(d kernels.Device, x []kernels.Tensor) {
				d.HeadNormRopeBackward(x[2], x[3], x[4], x[5], x[6], x[7], x[8], rope(x), kernels.Norm{}, segments)
			}},
	}
}

// BenchmarkVariants holds other shapes of the kernels of norms against the definition and reports their times and their
// share of a copy's bandwidth; the first line of a case is the shape in use. It is for -benchtime 1x.
func BenchmarkVariants(b *testing.B) {
	const each = 30 * time.Millisecond
	d, all := cudatest.Card.(*cuda.Device), contests()
	for i := range all {
		if err := compileVariants(d, all[i].variants); err != nil {
			b.Fatal(err)
		}
	}
	reset := rows.KeepShapes()
	defer reset()
	copied := bench.Copy(d, each)
	for _, cases := range []func(d *cuda.Device, mem *kernels.Arena) []bench.RowsCase{bench.Hidden, bench.Heads} {
		keep := d.Held()
		for _, c := range cases(d, kernels.NewArena(d)) {
			at := slices.IndexFunc(all, func(x contest) bool { return strings.HasPrefix(c.Name, x.prefix) })
			if at < 0 {
				continue
			}
			bytes := 0
			for _, t := range c.Moved {
				bytes += t.Bytes()
			}
			for _, v := range append([]variant{{macro: "in use", use: func() {}, swap: func() func() {
				return func() {}
			}}}, all[at].variants...) {
				b.Run(c.Name+"/"+v.macro, func(b *testing.B) {
					reset()
					defer v.swap()()
					v.use()
					if n, first := cudatest.Differences(b, all[at].operands, all[at].op, all[at].op); n > 0 {
						b.Errorf("%d bytes differ, first %s", n, first)
					}
					seconds := bench.Time(d, each, c.Run)
					b.ReportMetric(seconds*1e6, "us")
					b.ReportMetric(100*float64(bytes)/seconds*copied.Seconds/copied.Bytes, "%-of-a-copy")
				})
			}
		}
		reset()
		d.Release(keep)
	}
}

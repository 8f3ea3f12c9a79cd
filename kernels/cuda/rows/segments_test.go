//go:build cuda

package rows

import (
	"fmt"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
)

// Sums over rows by every operation that has one, of one segment and of several.
func TestSegments(t *testing.T) {
	const rows, heads, dim, n = 300, 3, 16, 3 * 16
	f32 := func(rows, cols int) cudatest.Operand { return cudatest.Normal(kernels.F32, rows, cols, 1) }
	for _, dtype := range cudatest.DTypes {
		batch := func() cudatest.Operand { return cudatest.Normal(dtype, rows, n, 1) }
		weight := func(cols int) cudatest.Operand { return cudatest.Normal(dtype, 1, cols, 1) }
		// dw and what multiplies it, three activations, a number for each row and head
		norm := []cudatest.Operand{f32(1, n), weight(n), batch(), batch(), batch(), cudatest.Positive(rows, heads)}
		head := []cudatest.Operand{f32(1, dim), weight(dim), batch(), batch(), batch(), cudatest.Positive(rows, heads)}
		for _, c := range []struct {
			name string
			x    []cudatest.Operand
			op   func(d kernels.Device, x []kernels.Tensor, p cudatest.Part, segments []int32)
		}{
			{"rms norm backward", append(norm[:5:5], cudatest.Positive(1, rows)),
				func(d kernels.Device, x []kernels.Tensor, p cudatest.Part, segments []int32) {
					d.RMSNormBackward(p.Rows(x[2]), x[0], p.Rows(x[3]), p.Rows(x[4]), p.Columns(x[5]), x[1],
						kernels.Norm{}, segments)
				}},
			{"head norm and rope backward", append(head[:6:6], f32(50, dim/2), f32(50, dim/2), cudatest.Ints(1, rows,
				cudatest.Below(rows, 50))),
				func(d kernels.Device, x []kernels.Tensor, p cudatest.Part, segments []int32) {
					d.HeadNormRopeBackward(p.Rows(x[2]), x[0], p.Rows(x[3]), p.Rows(x[4]), p.Rows(x[5]), x[1],
						p.Columns(x[8]), kernels.Rope{Cos: x[6], Sin: x[7], HeadDim: dim}, kernels.Norm{}, segments)
				}},
			{"layer norm backward", append(norm[:5:5], f32(1, n)),
				func(d kernels.Device, x []kernels.Tensor, p cudatest.Part, segments []int32) {
					d.(kernels.IndexerLoss).LayerNormBackward(p.Rows(x[2]), x[0], x[5], p.Rows(x[3]), p.Rows(x[4]),
						x[1], 1e-6, segments)
				}},
			{"norm then gate backward", append(head[:6:6], batch(), batch(), f32(1, dim)),
				func(d kernels.Device, x []kernels.Tensor, p cudatest.Part, segments []int32) {
					d.(kernels.DeltaNet).NormThenGateBackward(p.Rows(x[2]), p.Rows(x[3]), x[0], p.Rows(x[4]),
						p.Rows(x[6]), p.Rows(x[7]), p.Rows(x[5]), x[8], segments)
				}},
			{"gate then norm backward", append(norm[:6:6], batch(), batch()),
				func(d kernels.Device, x []kernels.Tensor, p cudatest.Part, segments []int32) {
					d.(kernels.Mamba).GateThenNormBackward(p.Rows(x[2]), p.Rows(x[3]), x[0], p.Rows(x[4]), p.Rows(x[6]),
						p.Rows(x[7]), p.Rows(x[5]), x[1], heads, segments)
				}},
			{"bias gradient", []cudatest.Operand{f32(1, n), batch(), cudatest.Ints(1, rows+1, make([]int32, rows+1))},
				func(d kernels.Device, x []kernels.Tensor, p cudatest.Part, segments []int32) {
					at := x[2].ColRange(0, len(segments))
					d.Write(at, cudatest.Ints(1, len(segments), segments).Raw)
					d.BiasGrad(x[0], p.Rows(x[1]), &kernels.Groups{Offsets: at, Count: 1, Segments: len(segments) - 1})
					d.Zero(x[2])
				}},
			{"embed backward", []cudatest.Operand{f32(20, n), batch(),
				cudatest.Ints(1, rows, cudatest.Below(rows, 20))},
				func(d kernels.Device, x []kernels.Tensor, p cudatest.Part, segments []int32) {
					d.EmbedBackward(x[0], p.Rows(x[1]), p.Columns(x[2]), segments)
				}},
		} {
			for _, segments := range cudatest.Segmentations(rows) {
				cudatest.BySegment(t, fmt.Sprint(dtype, " ", c.name), c.x, segments, c.op)
			}
		}
	}
}

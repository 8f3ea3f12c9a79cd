//go:build cuda

package bench

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"time"

	"lockstep/kernels"
	"lockstep/kernels/cuda"
)

// MatMulCase is a matrix product of a benchmark, bf16: MatMul [Rows, Depth] x [Cols, Depth]^T, MatMulT [Rows, Depth] x
// [Depth, Cols], or WeightGrad [Rows, Cols] over Depth rows. With groups, MatMul's Rows and WeightGrad's Depth are
// those of all groups together; with heads, of which each row has one, likewise.
type MatMulCase struct {
	Op                string
	Groups            int  // 0: dense
	Heads             bool // groups are heads, interleaved in the rows
	Rows, Cols, Depth int
}

// MatMulCases are the shapes of the project's tables; configs/peers/cuda_matmul.py times the same.
var MatMulCases = []MatMulCase{
	{Op: "MatMul", Rows: 4096, Cols: 4096, Depth: 4096},
	{Op: "MatMul", Rows: 8192, Cols: 8192, Depth: 8192},
	{Op: "MatMulT", Rows: 8192, Cols: 8192, Depth: 8192},
	{Op: "WeightGrad", Rows: 8192, Cols: 8192, Depth: 8192},
	{Op: "MatMul", Groups: 32, Rows: 32864, Cols: 7168, Depth: 4096},
	{Op: "MatMul", Groups: 32, Rows: 32864, Cols: 2048, Depth: 7168},
	{Op: "MatMul", Groups: 128, Rows: 33216, Cols: 2048, Depth: 1536},
	{Op: "MatMul", Groups: 128, Rows: 33216, Cols: 768, Depth: 2048},
	{Op: "MatMulT", Groups: 32, Rows: 32864, Cols: 4096, Depth: 7168},
	{Op: "MatMulT", Groups: 128, Rows: 33216, Cols: 1536, Depth: 2048},
	{Op: "WeightGrad", Groups: 32, Rows: 7168, Cols: 4096, Depth: 32864},
	{Op: "WeightGrad", Groups: 32, Rows: 2048, Cols: 7168, Depth: 32864},
	{Op: "WeightGrad", Groups: 128, Rows: 2048, Cols: 1536, Depth: 33216},
	{Op: "WeightGrad", Groups: 128, Rows: 768, Cols: 2048, Depth: 33216},
	{Op: "MatMul", Groups: 64, Heads: true, Rows: 524288, Cols: 256, Depth: 512},
	{Op: "MatMulT", Groups: 64, Heads: true, Rows: 524288, Cols: 512, Depth: 192},
	{Op: "WeightGrad", Groups: 64, Heads: true, Rows: 256, Cols: 512, Depth: 524288},
	{Op: "MatMul", Rows: 1, Cols: 4096, Depth: 2048},
	{Op: "MatMul", Rows: 32, Cols: 48, Depth: 2048},
	{Op: "MatMul", Rows: 32, Cols: 16, Depth: 4096},
	{Op: "MatMul", Rows: 32, Cols: 5120, Depth: 2048},
	{Op: "MatMul", Rows: 32, Cols: 2048, Depth: 4096},
	{Op: "MatMul", Rows: 32, Cols: 151936, Depth: 2048},
	{Op: "MatMul", Rows: 64, Cols: 14336, Depth: 4096},
	{Op: "MatMul", Groups: 128, Rows: 256, Cols: 1536, Depth: 2048},
}

func (c MatMulCase) String() string {
	s := fmt.Sprintf("%s %d x %d x %d", c.Op, c.Rows, c.Cols, c.Depth)
	switch {
	case c.Heads:
		s = fmt.Sprintf("%s, %d heads", s, c.Groups)
	case c.Groups > 0:
		s = fmt.Sprintf("%s, %d groups", s, c.Groups)
	}
	return s
}

// Bytes is what one product reads and writes at least.
func (c MatMulCase) Bytes() float64 {
	rows, cols, depth, groups := float64(c.Rows), float64(c.Cols), float64(c.Depth), float64(max(c.Groups, 1))
	if c.Op == "WeightGrad" {
		return 2*depth*(rows+cols) + 8*groups*rows*cols
	}
	return 2 * (rows*depth + groups*cols*depth + rows*cols)
}

// MatMul times matrix products, about `each` for every case. Small ones walk through copies of their weights, so
// that none is found in the cache.
func MatMul(d *cuda.Device, each time.Duration, cases []MatMulCase) []Result {
	var results []Result
	for _, c := range cases {
		run, free := prepareMatMul(d, c)
		results = append(results, Result{Case: c.String(), Seconds: Time(d, each, run), Flops: 2 * float64(c.Rows) *
			float64(c.Cols) * float64(c.Depth), Bytes: c.Bytes()})
		free()
	}
	return results
}

// CacheBytes is bytes of weights that no cache holds.
const CacheBytes = 256 << 20

// prepareMatMul makes the operands of a case and what runs it once.
func prepareMatMul(d *cuda.Device, c MatMulCase) (run, free func()) {
	keep, mem := d.Held(), kernels.NewArena(d)
	random := func(groups, rows, cols int) kernels.Tensor {
		t := mem.NewGrouped(kernels.BF16, groups, rows, cols)
		FillRandom(d, t)
		return t
	}
	free = func() { d.Release(keep) }
	groups := max(c.Groups, 1)
	if c.Op == "WeightGrad" {
		dy, x, dw := random(1, c.Depth, c.Rows), random(1, c.Depth, c.Cols), mem.NewGrouped(kernels.F32, groups, c.Rows,
			c.Cols)
		g := Groups(d, mem, c, c.Depth)
		return func() { d.WeightGrad(dw, dy, x, g) }, free
	}
	x, out := random(1, c.Rows, c.Depth), mem.New(kernels.BF16, c.Rows, c.Cols)
	var g *kernels.Groups
	if c.Groups > 0 {
		g = Groups(d, mem, c, c.Rows)
	}
	op, height, width := d.MatMul, c.Cols, c.Depth
	if c.Op == "MatMulT" {
		op, height, width = d.MatMulT, c.Depth, c.Cols
	}
	var weights []kernels.Tensor
	for bytes := 0; bytes < CacheBytes; bytes += weights[0].Bytes() {
		weights = append(weights, random(groups, height, width))
	}
	round := 0
	return func() {
		op(out, g, kernels.Term{X: x, W: weights[round%len(weights)]})
		round++
	}, free
}

// Groups are groups of uneven sizes, or heads.
func Groups(d *cuda.Device, mem *kernels.Arena, c MatMulCase, rows int) *kernels.Groups {
	groups := max(c.Groups, 1)
	if c.Heads {
		at := mem.New(kernels.I32, 1, 2)
		d.Write(at, binary.LittleEndian.AppendUint32(make([]byte, 4), uint32(rows/groups)))
		return &kernels.Groups{Offsets: at, Count: groups, Segments: 1, Interleaved: true}
	}
	share := func(g int) int { return 40 + g*7919%61 }
	sum := 0
	for g := range groups {
		sum += share(g)
	}
	at, raw, before := mem.New(kernels.I32, 1, groups+1), make([]byte, 4), 0
	for g := range groups {
		before += share(g)
		raw = binary.LittleEndian.AppendUint32(raw, uint32(rows*before/sum))
	}
	d.Write(at, raw)
	return &kernels.Groups{Offsets: at, Count: groups, Segments: 1}
}

// FillRandom writes normal values, in pieces that repeat.
func FillRandom(d *cuda.Device, t kernels.Tensor) {
	const piece = 4 << 20
	r := rand.New(rand.NewPCG(1, uint64(t.Len())))
	raw := make([]byte, 0, 2*piece)
	for range min(piece, t.Len()) {
		v := kernels.RoundBF16(float32(r.NormFloat64()))
		raw = append(raw, byte(v), byte(v>>8))
	}
	repeat(d, t, raw)
}

// repeat fills a tensor with copies of a piece.
func repeat(d *cuda.Device, t kernels.Tensor, piece []byte) {
	t = t.Reshape(1, t.Len())
	n := len(piece) / t.DType.Size()
	for at := 0; at < t.Cols; at += n {
		to := t.ColRange(at, min(at+n, t.Cols))
		d.Write(to, piece[:to.Bytes()])
	}
}

//go:build cuda

package bench

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"time"

	"lockstep/kernels"
	"lockstep/kernels/cuda"
	"lockstep/quant"
)

// CodesCases are products of FP8 codes on both sides (kernels.Term.XQ); configs/peers/cuda_codes.py times the same.
var CodesCases = []MatMulCase{
	{Op: "MatMul", Rows: 4096, Cols: 4096, Depth: 4096}, {Op: "MatMul", Rows: 8192, Cols: 8192, Depth: 8192},
	{Op: "MatMul", Rows: 8192, Cols: 4096, Depth: 7168}, {Op: "MatMul", Rows: 64, Cols: 4096, Depth: 7168},
	{Op: "MatMul", Groups: 32, Rows: 32864, Cols: 7168, Depth: 4096},
	{Op: "MatMul", Groups: 32, Rows: 32864, Cols: 2048, Depth: 7168},
	{Op: "MatMul", Groups: 128, Rows: 33216, Cols: 1536, Depth: 2048},
	{Op: "MatMul", Groups: 128, Rows: 1024, Cols: 1536, Depth: 2048},
}

// Codes times products of codes, each after the same one in bf16, and QuantizeRows.
func Codes(d *cuda.Device, each time.Duration, cases []MatMulCase) []Result {
	results := []Result{quantizeRows(d, each)}
	for _, c := range cases {
		plain := MatMul(d, each, []MatMulCase{c})[0]
		run, weight, free := prepareCodes(d, c)
		r := Result{Case: plain.Case + ", FP8 codes", Seconds: Time(d, each, run), Flops: plain.Flops,
			Bytes: float64(c.Rows)*(float64(c.Depth)+2*float64(c.Cols)) + float64(weight.Bytes())}
		free()
		r.Note = ratio(plain, r)
		results = append(results, r)
	}
	return results
}

// quantizeRows times QuantizeRows of 64 million numbers.
func quantizeRows(d *cuda.Device, each time.Duration) Result {
	defer d.Release(d.Held())
	const rows, cols = 8192, 8192
	mem := kernels.NewArena(d)
	x, q := mem.New(kernels.BF16, rows, cols), newCodes(mem, 1, rows, cols)
	FillRandom(d, x)
	return Result{Case: "QuantizeRows to FP8 in 1 x 128", Bytes: float64(x.Bytes() + q.Bytes()),
		Seconds: Time(d, each, func() { d.QuantizeRows(q, x) })}
}

func newCodes(mem *kernels.Arena, groups, rows, cols int) kernels.QuantizedWeight {
	return kernels.NewQuantizedWeight(quant.FP8x128.Format(), kernels.BF16, groups, rows, cols, mem.NewGrouped)
}

// prepareCodes makes the operands of a case and what runs it once.
func prepareCodes(d *cuda.Device, c MatMulCase) (run func(), w kernels.QuantizedWeight, free func()) {
	keep, mem := d.Held(), kernels.NewArena(d)
	out, x := mem.New(kernels.BF16, c.Rows, c.Cols), newCodes(mem, 1, c.Rows, c.Depth)
	drawCodes(d, x, 1, 1)
	var g *kernels.Groups
	if c.Groups > 0 {
		g = Groups(d, mem, c, c.Rows)
	}
	var weights []kernels.QuantizedWeight
	for bytes := 0; bytes < CacheBytes; bytes += weights[0].Bytes() {
		w := newCodes(mem, max(c.Groups, 1), c.Cols, c.Depth)
		drawCodes(d, w, 2, 128)
		weights = append(weights, w)
	}
	round := 0
	return func() {
		d.MatMul(out, g, kernels.Term{X: x.Shape(), XQ: &x, Q: &weights[round%len(weights)]})
		round++
	}, weights[0], func() { d.Release(keep) }
}

// hashed is a number drawn for an index; cuda_codes.py has the same.
func hashed(i, seed uint32) uint32 {
	v := i*2654435761 + seed
	v ^= v >> 15
	v *= 2246822519
	return v ^ v>>13
}

// drawCodes fills codes that are numbers, and scales that `high` rows share, from 2^-7 to 2: the first elements, over
// and over.
func drawCodes(d *cuda.Device, w kernels.QuantizedWeight, seed uint32, high int) {
	codes := make([]byte, min(w.Codes.Len(), 64<<20))
	for i := range codes {
		if codes[i] = byte(hashed(uint32(i), seed) >> 24); quant.IsNaNE4M3(codes[i]) {
			codes[i]--
		}
	}
	repeat(d, w.Codes, codes)
	blocks := w.Scales.Rows
	scales := make([]byte, 0, 4*blocks*w.Rows)
	for b := range blocks {
		for row := range w.Rows {
			scales = binary.LittleEndian.AppendUint32(scales,
				0x3c000000+hashed(uint32(row/high*blocks+b), seed+1)>>6)
		}
	}
	repeat(d, w.Scales, scales)
}

// The product whose bits a peer compares, and how many rows have a digest together.
const codesRows, codesCols, codesDepth, digestRows = 4096, 4096, 2048, 64

// CodesDigests are SHA-256 of fp32 outputs of a product of codes, 64 rows each.
func CodesDigests(d *cuda.Device) (digests []string) {
	defer d.Release(d.Held())
	mem := kernels.NewArena(d)
	x, w := newCodes(mem, 1, codesRows, codesDepth), newCodes(mem, 1, codesCols, codesDepth)
	drawCodes(d, x, 1, 1)
	drawCodes(d, w, 2, 128)
	out := mem.New(kernels.F32, codesRows, codesCols)
	d.MatMul(out, nil, kernels.Term{X: x.Shape(), XQ: &x, Q: &w})
	raw := make([]byte, out.Bytes())
	d.Read(raw, out)
	for band := digestRows * codesCols * 4; len(raw) > 0; raw = raw[band:] {
		sum := sha256.Sum256(raw[:band])
		digests = append(digests, hex.EncodeToString(sum[:]))
	}
	return digests
}

//go:build cuda

package bench

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"lockstep/kernels"
	"lockstep/kernels/cuda"
	"lockstep/quant"
)

// QuantizedFormats are those of releases that products read in codes: W4A16, MXFP4, MXFP8 and FP8 with blocks. NF4 is
// opened for a product.
var QuantizedFormats = []quant.Format{
	{Code: quant.CodeINT4, Scale: quant.ScaleBF16, Wide: 32}, {Code: quant.CodeE2M1, Scale: quant.ScaleE8M0, Wide: 32},
	{Code: quant.CodeE4M3, Scale: quant.ScaleE8M0, Wide: 32}, {Code: quant.CodeE4M3, Scale: quant.ScaleF32, Wide: 128},
	quant.FormatNF4(64),
}

// QuantizedCases are products of experts, in training with many rows a group, in training with few, in decoding, and
// projections of decoding's sequences.
var QuantizedCases = []MatMulCase{
	{Op: "MatMul", Groups: 32, Rows: 32864, Cols: 7168, Depth: 4096},
	{Op: "MatMul", Groups: 32, Rows: 32864, Cols: 2048, Depth: 7168},
	{Op: "MatMulT", Groups: 32, Rows: 32864, Cols: 4096, Depth: 7168},
	{Op: "MatMulT", Groups: 32, Rows: 32864, Cols: 7168, Depth: 2048},
	{Op: "MatMul", Groups: 128, Rows: 33216, Cols: 1536, Depth: 2048},
	{Op: "MatMul", Groups: 128, Rows: 33216, Cols: 2048, Depth: 768},
	{Op: "MatMulT", Groups: 128, Rows: 33216, Cols: 2048, Depth: 1536},
	{Op: "MatMulT", Groups: 128, Rows: 33216, Cols: 768, Depth: 2048},
	{Op: "MatMul", Groups: 128, Rows: 1024, Cols: 1536, Depth: 2048},
	{Op: "MatMul", Groups: 128, Rows: 2048, Cols: 1536, Depth: 2048},
	{Op: "MatMul", Groups: 128, Rows: 8192, Cols: 1536, Depth: 2048},
	{Op: "MatMul", Groups: 128, Rows: 1024, Cols: 2048, Depth: 768},
	{Op: "MatMul", Groups: 128, Rows: 2048, Cols: 2048, Depth: 768},
	{Op: "MatMul", Groups: 128, Rows: 8192, Cols: 2048, Depth: 768},
	{Op: "MatMul", Rows: 128, Cols: 4096, Depth: 2048},
	{Op: "MatMul", Rows: 128, Cols: 2048, Depth: 4096},
	{Op: "MatMul", Rows: 250, Cols: 4096, Depth: 2048},
	{Op: "MatMul", Rows: 250, Cols: 2048, Depth: 4096},
	{Op: "MatMul", Rows: 250, Cols: 512, Depth: 2048},
	{Op: "MatMul", Rows: 512, Cols: 4096, Depth: 2048},
	{Op: "MatMul", Rows: 512, Cols: 2048, Depth: 4096},
}

// Quantized times products with weights in codes, each after the same one in bf16, and Dequantize. Those in MXFP8 are
// timed a second time with inputs that are rounded to it, as definition.acts has it, and gradients as grads has it.
func Quantized(d *cuda.Device, each time.Duration, cases []MatMulCase) (results []Result) {
	for _, f := range QuantizedFormats {
		results = append(results, dequantize(d, each, f))
	}
	for _, c := range cases {
		plain := MatMul(d, each, []MatMulCase{c})[0]
		for _, f := range QuantizedFormats {
			run, weight, free := prepareQuantized(d, c, f, false)
			r := Result{Case: fmt.Sprintf("%s, %s", c, f), Seconds: Time(d, each, run), Flops: plain.Flops,
				Bytes: 2*float64(c.Rows)*float64(c.Depth+c.Cols) + float64(weight.Bytes()), Peer: peerOf(c.String(), f)}
			r.Note = ratio(plain, r)
			results = append(results, r)
			free()
			if f == quant.MXFP8.Format() {
				run, _, free := prepareQuantized(d, c, f, true)
				r.Case, r.Seconds, r.Bytes = r.Case+", inputs rounded to mxfp8", Time(d, each, run),
					r.Bytes+4*float64(c.Rows)*float64(c.Depth)
				r.Note = ratio(plain, r)
				results = append(results, r)
				free()
			}
		}
	}
	return results
}

// ratio compares a product of codes with the one in bf16.
func ratio(plain, r Result) string {
	return fmt.Sprintf(": %.2f times bf16's rate", plain.Seconds/r.Seconds)
}

// peerOf is what bitsandbytes has next to a case: NF4, for all formats of 4 bits.
func peerOf(what string, f quant.Format) string {
	if f.Code.Bits() == 4 {
		return what + ", NF4 of bitsandbytes"
	}
	return ""
}

// dequantize times Dequantize of 256 million numbers.
func dequantize(d *cuda.Device, each time.Duration, f quant.Format) Result {
	defer d.Release(d.Held())
	const groups, rows, cols = 32, 4096, 2048
	mem := kernels.NewArena(d)
	out, w := mem.NewGrouped(kernels.BF16, groups, rows, cols), randomQuantized(d, mem, f, groups, rows, cols)
	return Result{Case: fmt.Sprint("Dequantize ", f), Bytes: float64(out.Bytes() + w.Bytes()),
		Seconds: Time(d, each, func() { d.Dequantize(out, w) }), Peer: peerOf("Dequantize", f)}
}

// prepareQuantized makes the operands of a case with weights in codes and what runs it once, with inputs that are
// rounded to MXFP8 first.
func prepareQuantized(d *cuda.Device, c MatMulCase, f quant.Format, rounded bool) (run func(),
	w kernels.QuantizedWeight, free func()) {
	keep, mem := d.Held(), kernels.NewArena(d)
	x, out := mem.New(kernels.BF16, c.Rows, c.Depth), mem.New(kernels.BF16, c.Rows, c.Cols)
	FillRandom(d, x)
	read := x
	if rounded {
		read = mem.New(kernels.BF16, c.Rows, c.Depth)
	}
	g := Groups(d, mem, c, c.Rows)
	op, height, width := d.MatMul, c.Cols, c.Depth
	if c.Op == "MatMulT" {
		op, height, width = d.MatMulT, c.Depth, c.Cols
	}
	var weights []kernels.QuantizedWeight
	for bytes := 0; bytes < CacheBytes; bytes += weights[0].Bytes() {
		weights = append(weights, randomQuantized(d, mem, f, max(c.Groups, 1), height, width))
	}
	round := 0
	return func() {
		if rounded {
			d.FakeQuantize(read, x, quant.MXFP8)
		}
		op(out, g, kernels.Term{X: read, Q: &weights[round%len(weights)]})
		round++
	}, weights[0], func() { d.Release(keep) }
}

// randomQuantized is a weight of random codes that are numbers, and scales of several sizes.
func randomQuantized(d *cuda.Device, mem *kernels.Arena, f quant.Format, groups, rows,
	cols int) kernels.QuantizedWeight {
	w := kernels.NewQuantizedWeight(f, kernels.BF16, groups, rows, cols, mem.NewGrouped)
	codes, scales := randomCodes(f)
	repeat(d, w.Codes, codes)
	repeat(d, w.Scales, scales)
	return w
}

// randomCodes is remembered: small weights are many.
var randomCodes = remembered(func(f quant.Format) (codes, scales []byte) {
	r := rand.New(rand.NewPCG(1, 2))
	codes = make([]byte, 4<<20)
	for i := range codes {
		if codes[i] = byte(r.Uint32()); f.Code == quant.CodeE4M3 && codes[i]&0x7f == 0x7f {
			codes[i]--
		}
	}
	for range 1 << 20 {
		s := float32(math.Ldexp(1+r.Float64(), r.IntN(8)-12))
		switch f.Scale {
		case quant.ScaleE8M0:
			scales = append(scales, byte(115+r.IntN(8)))
		case quant.ScaleBF16:
			scales = binary.LittleEndian.AppendUint16(scales, kernels.RoundBF16(s))
		default:
			scales = binary.LittleEndian.AppendUint32(scales, math.Float32bits(s))
		}
	}
	return codes, scales
})

// remembered computes what f gives once for each format.
func remembered(f func(quant.Format) (codes, scales []byte)) func(quant.Format) (codes, scales []byte) {
	all := map[quant.Format][2][]byte{}
	return func(format quant.Format) (codes, scales []byte) {
		if _, ok := all[format]; !ok {
			codes, scales = f(format)
			all[format] = [2][]byte{codes, scales}
		}
		return all[format][0], all[format][1]
	}
}

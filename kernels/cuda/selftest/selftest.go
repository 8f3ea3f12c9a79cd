//go:build cuda

package selftest

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"unsafe"

	"gorgonia.org/cu"

	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/kernels/cuda/attention"
	"lockstep/kernels/cuda/driver"
	"lockstep/kernels/cuda/gemm"
	"lockstep/kernels/cuda/recurrent"
)

// Sources are the kernels.
//
//go:embed *.cu
var Sources embed.FS

// Checks compare one GPU with the CPU reference, bit for bit: [Checks.CheckCard] what every model needs, and the other
// methods what only some need, the first time they are asked.
type Checks struct {
	c      *driver.Context
	card   kernels.Device   // the same GPU
	passed []string         // units that equal the definition
	shapes map[string]error // of shapes that were checked: nil where they equal the definition
}

// New returns checks of a GPU, by its context and with its operations; none has run yet.
func New(c *driver.Context, card kernels.Device) *Checks {
	return &Checks{c: c, card: card, shapes: map[string]error{}}
}

// Passed is the units of the card that equal the definition.
func (d *Checks) Passed() []string { return d.passed }

// check is a small operation that both devices run. Together the checks use every unit of the card whose arithmetic is
// the vendor's: its tensor cores by each instruction, its 2^x, its division and its square root.
type check struct {
	unit string
	path string // of matrix products
	run  func(d kernels.Device, mem *kernels.Arena, r *rand.Rand) kernels.Tensor
}

func (d *Checks) cardChecks() []check {
	all := []check{{"mma.sync", "portable", runProduct}, {"mma.sync", "portable", runWeightGrad}}
	if gemm.HasWgmma(d.c) {
		for _, path := range gemm.ProductPaths {
			all = append(all, check{"wgmma", path, runProduct})
		}
		for _, path := range gemm.GradientPaths {
			all = append(all, check{"wgmma", path, runWeightGrad})
		}
	}
	keys := 70
	if d.c.Def.KeySplit != kernels.Default().KeySplit { // then across a split too
		keys += d.c.Def.KeySplit
	}
	attention := func(d kernels.Device, mem *kernels.Arena, r *rand.Rand) kernels.Tensor {
		return runAttention(d, mem, r, keys)
	}
	return append(all, check{"attention", "", attention}, check{"norm", "", runNorm}, check{"mixture", "", runMixture},
		check{"exp2 " + string(d.c.Def.Exp2), "", runSwiGLU})
}

// CheckAttention runs the kernels of a shape of latent attention, absorbed or not, forward and backward, once. Of other
// attention, CheckCard has run one shape.
func (d *Checks) CheckAttention(a kernels.Attn) error {
	what := fmt.Sprintf("attention of %d heads on %d, keys of %d columns and values of %d", a.Heads, a.KVHeads,
		a.HeadDim, a.Values())
	if !attention.Supports(a) {
		return fmt.Errorf("does not compute %s yet: this model needs another one", what)
	}
	if !attention.Latent(a) && !attention.Absorbed(a) {
		return nil
	}
	a.Heads, a.KVHeads, a.Window = min(a.Heads/a.KVHeads, checkHeads), 1, 0
	return d.checkOnce(what, func(d kernels.Device, mem *kernels.Arena, r *rand.Rand) kernels.Tensor {
		return runLatentAttention(d, mem, r, a)
	})
}

// CheckRecurrence runs the kernels of a layer with a recurrent state, forward and backward, once.
func (d *Checks) CheckRecurrence(shape kernels.Recurrence, delta bool) error {
	kind := "a state space"
	if delta {
		kind = "a delta rule"
	}
	what := fmt.Sprintf("%s of %d heads on %d, keys of %d columns and values of %d", kind, shape.Heads, shape.KeyHeads,
		shape.KeyDim, shape.ValueDim)
	if shape.KeyDim > recurrent.MaxKeyDim {
		return fmt.Errorf("does not compute %s yet: this model needs another one", what)
	}
	shape.Heads, shape.KeyHeads = shape.Heads/shape.KeyHeads, 1
	return d.checkOnce(what, func(d kernels.Device, mem *kernels.Arena, r *rand.Rand) kernels.Tensor {
		if delta {
			return runDeltaNet(d.(kernels.DeltaNet), newRecurrentCheck(d, mem, r, shape))
		}
		return runMamba(d.(kernels.Mamba), newRecurrentCheck(d, mem, r, shape))
	})
}

// checkOnce compares an operation's output with the CPU's, the first time it is asked.
func (d *Checks) checkOnce(what string, run func(d kernels.Device, mem *kernels.Arena,
	r *rand.Rand) kernels.Tensor) error {
	if equal, known := d.shapes[what]; known {
		return equal
	}
	ref, err := cpu.New(d.c.Def, cpu.Options{Threads: min(4, runtime.NumCPU())})
	if err != nil {
		return err
	}
	t := check{run: run}
	if !bytes.Equal(t.result(d.card, 1), t.result(ref, 1)) {
		err = fmt.Errorf("computes %s otherwise than the definition: this model needs another one", what)
	}
	d.shapes[what] = err
	return errors.Join(err, ref.Close())
}

// checkHeads is enough of a layer's for a check of attention: a tile of 16 of them and a part of another.
const checkHeads = 20

// runLatentAttention is the results of attention and its gradient on one sequence.
func runLatentAttention(d kernels.Device, mem *kernels.Arena, r *rand.Rand, a kernels.Attn) kernels.Tensor {
	const rows = 70
	queries, width, values := a.Heads*a.HeadDim, a.HeadDim, a.Values()
	all := mem.Zeros(kernels.BF16, rows, a.Heads*values+queries+width+values)
	at := 0
	next := func(cols int) kernels.Tensor {
		at += cols
		return all.ColRange(at-cols, at)
	}
	l := &kernels.Layout{Spans: []kernels.Span{{Rows: rows}}, Segments: []int32{0, rows}}
	out, lse, q := mem.New(kernels.BF16, rows, a.Heads*values), mem.New(kernels.F32, rows, a.Heads),
		random(d, mem, r, kernels.BF16, rows, queries, 0)
	kv := kernels.KV{K: random(d, mem, r, kernels.BF16, rows, width, 0), V: random(d, mem, r, kernels.BF16, rows,
		values, 0)}
	if attention.Absorbed(a) {
		kv.V = kv.K.ColRange(0, values)
	}
	dout := random(d, mem, r, kernels.BF16, rows, a.Heads*values, 0)
	dq, dk, dv := mem.New(kernels.BF16, rows, queries), mem.New(kernels.BF16, rows, width), mem.New(kernels.BF16, rows,
		values)
	d.Attention(out, lse, q, kv, l, a)
	d.AttentionBackward(dq, dk, dv, dout, out, lse, q, kv, l, a)
	for _, t := range []kernels.Tensor{out, dq, dk, dv} {
		d.Copy(next(t.Cols), t)
	}
	return all
}

// CheckCard compares the card with the CPU reference, bit for bit, which takes milliseconds, and refuses it where they
// differ.
func (d *Checks) CheckCard() (err error) {
	if err := d.checkExp2(); err != nil {
		return err
	}
	ref, err := cpu.New(d.c.Def, cpu.Options{Threads: min(4, runtime.NumCPU())})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ref.Close()) }()
	for i, t := range d.cardChecks() {
		d.c.Path = t.path
		want, got := t.result(ref, uint64(i)), t.result(d.card, uint64(i))
		d.c.Path = ""
		if !bytes.Equal(got, want) {
			return fmt.Errorf("its %s is not the definition's: the card %s is refused", t.unit, d.c.CardName())
		}
		if n := len(d.passed); n == 0 || d.passed[n-1] != t.unit {
			d.passed = append(d.passed, t.unit)
		}
	}
	return nil
}

// result is the bytes of a check's output. What it takes of the card's memory is given back.
func (t check) result(dev kernels.Device, seed uint64) []byte {
	if c, ok := dev.(interface {
		Held() int
		Release(keep int)
	}); ok {
		before := c.Held()
		defer func() { c.Release(before) }()
	}
	out := t.run(dev, kernels.NewArena(dev), rand.New(rand.NewPCG(seed, 1)))
	raw := make([]byte, out.Bytes())
	dev.Read(raw, out)
	return raw
}

// random is a tensor of normal values, magnified by up to 2^spread.
func random(dev kernels.Device, mem *kernels.Arena, r *rand.Rand, dtype kernels.DType, rows, cols,
	spread int) kernels.Tensor {
	values := make([]float32, rows*cols)
	for i := range values {
		values[i] = float32(r.NormFloat64()) * float32(uint64(1)<<r.IntN(spread+1))
	}
	wide := mem.New(kernels.F32, rows, cols)
	dev.Write(wide, kernels.Wrap(values, rows, cols).Raw())
	if dtype == kernels.F32 {
		return wide
	}
	t := mem.New(dtype, rows, cols)
	dev.Copy(t, wide)
	return t
}

func runProduct(d kernels.Device, mem *kernels.Arena, r *rand.Rand) kernels.Tensor {
	out := mem.New(kernels.F32, 24, 72)
	d.MatMul(out, nil, kernels.Term{X: random(d, mem, r, kernels.BF16, 24, 112, 16), W: random(d, mem, r, kernels.BF16,
		72, 112, 16)})
	return out
}

func runWeightGrad(d kernels.Device, mem *kernels.Arena, r *rand.Rand) kernels.Tensor {
	const rows = 24
	dw, offsets := mem.Zeros(kernels.F32, 72, 64), mem.New(kernels.I32, 1, 2)
	d.Write(offsets, []byte{0, 0, 0, 0, rows, 0, 0, 0})
	d.WeightGrad(dw, random(d, mem, r, kernels.BF16, rows, 72, 16), random(d, mem, r, kernels.BF16, rows, 64, 16),
		&kernels.Groups{Offsets: offsets, Count: 1, Segments: 1})
	return dw
}

func runAttention(d kernels.Device, mem *kernels.Arena, r *rand.Rand, rows int) kernels.Tensor {
	const heads, width = 1, 64
	lse := mem.New(kernels.F32, rows, heads)
	kv := kernels.KV{K: random(d, mem, r, kernels.BF16, rows, width, 0), V: random(d, mem, r, kernels.BF16, rows, width,
		0)}
	l := &kernels.Layout{Spans: []kernels.Span{{Rows: rows}}, Segments: []int32{0, int32(rows)}}
	d.Attention(mem.New(kernels.BF16, rows, heads*width), lse, random(d, mem, r, kernels.BF16, rows, heads*width, 0),
		kv, l, kernels.Attn{Heads: heads, KVHeads: 1, HeadDim: width, Scale: 0.125})
	return lse
}

// runMixture is a router's choice of two of three experts and what they add up to.
func runMixture(d kernels.Device, mem *kernels.Arena, r *rand.Rand) kernels.Tensor {
	const rows, experts, k, width = 24, 3, 2, 520
	weights, expertIDs, probs := mem.New(kernels.F32, rows, k), mem.New(kernels.I32, rows, k),
		mem.New(kernels.F32, rows,
			experts)
	d.Route(weights, expertIDs, probs, random(d, mem, r, kernels.F32, rows, experts, 0), kernels.Router{Norm: true,
		Scale: 1})
	p := kernels.Plan{
		Groups: kernels.Groups{Offsets: mem.New(kernels.I32, 1, experts+1), Count: experts, Segments: 1},
		Source: mem.New(kernels.I32, 1, rows*k), RowOf: mem.New(kernels.I32, rows, k),
	}
	d.Dispatch(p, expertIDs, []int32{0, rows})
	out := mem.New(kernels.F32, rows, width)
	d.Combine(out, kernels.Tensor{}, random(d, mem, r, kernels.F32, rows*k, width, 0), weights, p.RowOf)
	d.Combine(out, out, random(d, mem, r, kernels.F32, rows*k, width, 0), weights, p.RowOf)
	return out
}

func runNorm(d kernels.Device, mem *kernels.Arena, r *rand.Rand) kernels.Tensor {
	out := mem.New(kernels.F32, 40, 520)
	d.RMSNorm(out, mem.New(kernels.F32, 1, 40), random(d, mem, r, kernels.F32, 40, 520, 16),
		random(d, mem, r, kernels.F32, 1, 520, 0), kernels.Norm{Eps: 1e-6})
	return out
}

func runSwiGLU(d kernels.Device, mem *kernels.Arena, r *rand.Rand) kernels.Tensor {
	out := mem.New(kernels.F32, 40, 256)
	d.SwiGLU(out, random(d, mem, r, kernels.F32, 40, 512, 4))
	return out
}

// checkExp2 compares the instruction for 2^x on its whole grid.
func (d *Checks) checkExp2() error {
	if d.c.Def.Exp2 != kernels.Exp2Ex2h {
		return nil
	}
	got, err := d.exp2Checksum()
	if err != nil {
		return err
	}
	if got != kernels.Exp2HChecksum {
		return fmt.Errorf("its instruction ex2.approx.ftz.f32 is not exp2 %q (checksum %#x, want %#x): set "+
			"definition.exp2 = %q", kernels.Exp2Ex2h, got, kernels.Exp2HChecksum, kernels.Exp2Poly)
	}
	return nil
}

// exp2Checksum is kernels.Exp2HChecksum by the card's instruction.
func (d *Checks) exp2Checksum() (sum uint64, err error) {
	at := d.c.Scratch(int(unsafe.Sizeof(sum)))
	err = d.c.Attempt(func() error {
		if err := cu.MemsetD8(at, 0, int64(unsafe.Sizeof(sum))); err != nil {
			return err
		}
		launchEx2hChecksum(d.c, [3]int{8 * d.c.Processors, 1, 1}, 256, 0, at)
		return cu.MemcpyDtoH(unsafe.Pointer(&sum), at, int64(unsafe.Sizeof(sum)))
	})
	return sum, err
}

package model

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/quant"
)

// The bits of drawn weights, in every storage format, are what they were when a host drew them one by one, in one piece
// or cut over ranks.
func TestInitialise(t *testing.T) {
	projections := func(e quant.Encoding) Encode { return Encode{As: e, Projections: true} }
	for _, c := range []struct {
		family, want string
		o            Options
	}{
		{"qwen3_5_moe", "6204b57ed6cdebbb", Options{DType: kernels.F32}},
		{"qwen3_5_moe", "7195402455bb0b06", Options{DType: kernels.BF16}},
		{"nemotron_h", "42c290cca9b1407a", Options{DType: kernels.BF16}},
		{"gpt_oss", "868331b8b1948aef", Options{DType: kernels.BF16}},
		{"gpt_oss", "a0fb22f6f8274d10", Options{DType: kernels.BF16, Encode: projections(quant.INT4)}},
		{"glm5", "5de6d1470a381c1f", Options{DType: kernels.BF16, Encode: projections(quant.MXFP4)}},
		{"qwen3_moe", "1be7bf20da8c5c53", Options{DType: kernels.BF16, Encode: projections(quant.FP8)}},
		{"qwen3_moe", "cb09c612f83b2a36", Options{DType: kernels.F32, Encode: projections(quant.MXFP8)}},
	} {
		config, err := os.ReadFile(filepath.Join("testdata", c.family, "config.json"))
		if err != nil {
			t.Fatal(err)
		}
		for _, cut := range []Options{{}, {Experts: true}, {Blocks: true}, {Experts: true, Blocks: true}} {
			o := c.o
			if o.Experts, o.Blocks = cut.Experts, cut.Blocks; o.Experts || o.Blocks {
				o.Ranks = []kernels.Device{nil, newCPU(t)}
			}
			name := fmt.Sprintf("%s in %s %s, experts cut: %t, blocks cut: %t", c.family, o.DType, o.Encode.As,
				o.Experts, o.Blocks)
			if got := drawnSHA256(t, config, o); got != c.want {
				t.Errorf("%s: SHA-256 %q, want %q", name, got, c.want)
			}
		}
	}
}

func newCPU(t *testing.T) kernels.Device {
	dev, err := cpu.New(kernels.Default(), cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	return dev
}

// drawnSHA256 is the start of that of all weights that a model draws, with adapters.
func drawnSHA256(t *testing.T, config []byte, o Options) string {
	dev := newCPU(t)
	if len(o.Ranks) > 0 {
		o.Ranks = slices.Concat([]kernels.Device{dev}, o.Ranks[1:])
	}
	m, err := Build(dev, config, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range m.Params { // what was there before does not matter
		if p.Q == nil {
			w := p.weight(dev)
			w.write(0, slices.Repeat([]byte{0xff}, w.len()*p.W.DType.Size()))
		}
	}
	m.Initialise(1<<63 + 11)
	sum := sha256.New()
	for _, p := range m.Params {
		fmt.Fprintln(sum, p.Name)
		if p.Q == nil {
			if err := p.weight(dev).writeTo(sum); err != nil {
				t.Fatal(err)
			}
			continue
		}
		p.eachHome(dev, func(home kernels.Device, q kernels.QuantizedWeight, _ int) {
			for g := range q.Groups {
				sum.Write(q.Codes.Group(g).Raw())
				sum.Write(q.Scales.Group(g).Raw())
			}
		})
	}
	return hex.EncodeToString(sum.Sum(nil))[:16]
}

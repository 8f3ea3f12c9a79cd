package model

import (
	"os"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cpu"
)

// What a step reads is, with every expert, all weights but the embedding's rows; a cache is read whole but for windows,
// choices and what is shared.
func TestReads(t *testing.T) {
	for _, c := range []struct {
		family string
		window int // of every other layer
	}{{"qwen3_moe", 0}, {"gpt_oss", 8}, {"deepseek_v3_grouped", 0}, {"nemotron_h", 0}} {
		text, err := os.ReadFile("testdata/" + c.family + "/config.json")
		if err != nil {
			t.Fatal(err)
		}
		dev, err := cpu.New(kernels.Default(), cpu.Options{})
		if err != nil {
			t.Fatal(err)
		}
		m, err := Build(dev, text, Options{DType: kernels.BF16})
		if err != nil {
			t.Fatal(err)
		}
		n := m.Reads()
		all := n.Dense + n.Head
		if m.Embed.Param != m.Head.W {
			all += m.Embed.W.Bytes()
		}
		mixtures := 0
		for _, bl := range m.Blocks {
			for _, sub := range bl {
				if mix, ok := sub.Layer.(*MoE); ok {
					all += n.Experts[mixtures] * mix.Router.W.W.Rows
					mixtures++
				}
			}
		}
		if mixtures == 0 || mixtures != len(n.Experts) || all != m.Memory().Weights {
			t.Errorf("%s: %d bytes in all with %d of %d mixtures, want %d", c.family, all, len(n.Experts), mixtures,
				m.Memory().Weights)
		}
		mem := m.Memory()
		if got, want := m.CacheReads([]int{5, 7}, 0), 12*mem.Token+2*mem.Sequence; got != want {
			t.Errorf("%s: two sequences of 5 and 7 positions are %d bytes, want %d", c.family, got, want)
		}
		if got, want := m.CacheReads([]int{5, 7}, 4), 8*mem.Token+2*mem.Sequence; got != want {
			t.Errorf("%s: with 4 positions in common %d bytes, want %d", c.family, got, want)
		}
		long := m.CacheReads([]int{100}, 0) - mem.Sequence
		if (c.window == 0) != (long == 100*mem.Token) || long > 100*mem.Token {
			t.Errorf("%s: 100 positions are %d bytes, %d for each", c.family, long, mem.Token)
		}
		dev.Close()
	}
}

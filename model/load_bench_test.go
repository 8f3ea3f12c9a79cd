package model_test

import (
	"os"
	"path/filepath"
	"testing"

	"lockstep/data/safetensors"
	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/model"
)

// BenchmarkLoad fills weights from a checkpoint of 2 layers of Llama 3's shape, 268 MB in bf16 of which the second read
// and those after it find all in memory.
func BenchmarkLoad(b *testing.B) {
	text, err := os.ReadFile(filepath.Join("testdata", "llama3", "config.json"))
	if err != nil {
		b.Fatal(err)
	}
	for key, value := range map[string]int{"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 2,
		"num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 64} {
		text = withField(b, text, key, value)
	}
	dir := b.TempDir()
	dev, err := cpu.New(kernels.Default(), cpu.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer dev.Close()
	build := func(d kernels.DType) *model.Model {
		m, err := model.Build(dev, text, model.Options{DType: d})
		if err != nil {
			b.Fatal(err)
		}
		return m
	}
	m := build(kernels.BF16)
	m.Initialise(1)
	if err := m.SaveFolder(dir, ""); err != nil {
		b.Fatal(err)
	}
	c, err := safetensors.OpenCheckpoint(dir)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	total, _ := m.Parameters()
	for _, d := range []kernels.DType{kernels.F32, kernels.BF16} {
		b.Run("bf16 as "+d.String(), func(b *testing.B) {
			m := build(d)
			b.SetBytes(int64(2 * total))
			for b.Loop() {
				if err := m.Load(c); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

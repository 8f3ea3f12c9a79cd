package model

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cpu"
)

// wide is a network whose embedding goes to the device in two pieces, and its tables of positions in three.
const wide = `{"model_type": "qwen3",
"hidden_size": 64, "num_hidden_layers": 1, "vocab_size": 20000, "num_attention_heads": 1,
"num_key_value_heads": 1, "head_dim": 8,
"intermediate_size": 8, "hidden_act": "silu", "rms_norm_eps": 1e-6,
"rope_theta": 10000.0, "max_position_embeddings": 4100,
"tie_word_embeddings": true, "attention_bias": false}`

// What goes between host and device in pieces is what it is as a whole: drawn, saved, loaded and copied.
func TestPieces(t *testing.T) {
	dev, err := cpu.New(kernels.Default(), cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	build := func() *Model {
		m, err := Build(dev, []byte(wide), Options{})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	drawn := build()
	drawn.Initialise(5)
	values := func(m *Model) []float32 { return ReadValues(dev, m.Embed.W.Reshape(1, m.Embed.W.Len())) }
	want := values(drawn)
	if len(want) <= pieceElements {
		t.Fatalf("%d elements are one piece", len(want))
	}
	if slices.Equal(want[:100], want[pieceElements:][:100]) {
		t.Error("the second piece repeats the first")
	}
	dir := t.TempDir()
	if err := drawn.SaveFolder(dir, ""); err != nil {
		t.Fatal(err)
	}
	loaded, err := LoadFolder(dev, dir, "", Options{})
	if err != nil {
		t.Fatal(err)
	}
	copied := build()
	if err := copied.CopyWeights(drawn, Encode{}); err != nil {
		t.Fatal(err)
	}
	for name, m := range map[string]*Model{"loaded": loaded, "copied": copied} {
		if !slices.Equal(values(m), want) {
			t.Errorf("an embedding that was %s is another", name)
		}
	}
	rope := drawn.Blocks[0].mixer().(*Attention).Rope
	for _, p := range []int{0, 1, tablePiece - 1, tablePiece, tablePiece + 1, 2*tablePiece + 3} {
		cos, sin := ReadValues(dev, rope.Cos.RowRange(p, p+1)), ReadValues(dev, rope.Sin.RowRange(p, p+1))
		for i := range cos {
			s, c := math.Sincos(float64(p) * math.Pow(10000, -2*float64(i)/8))
			near64(t, fmt.Sprintf("the cosine of pair %d at position %d", i, p), float64(cos[i]), c, 1e-6)
			near64(t, fmt.Sprintf("the sine of pair %d at position %d", i, p), float64(sin[i]), s, 1e-6)
		}
	}
}

//go:build cuda

package attention

import (
	"testing"

	"lockstep/kernels/cuda/cudatest"
)

// By the card's instruction for 2^x.
func TestEx2h(t *testing.T) {
	cudatest.Ex2h(t, map[string]func(*testing.T){
		"Attention":       TestAttention,
		"AttentionSplits": func(t *testing.T) { attentionSplits(t, 2200, 4200) },
		"AbsorbedCached":  TestAbsorbedCached,
		"AbsorbedAllKeys": TestAbsorbedAllKeys,
	}, func() {})
}

// By the roundings and splits that other stacks have.
func TestRoundings(t *testing.T) {
	cudatest.Roundings(t, map[string]func(*testing.T){
		"Attention":       TestAttention,
		"AttentionSplits": TestAttentionSplits,
		"LatentAttention": TestLatentAttention,
	}, func() {})
}

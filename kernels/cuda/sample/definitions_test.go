//go:build cuda

package sample

import (
	"testing"

	"lockstep/kernels/cuda/cudatest"
)

// By the card's instruction for 2^x.
func TestEx2h(t *testing.T) {
	cudatest.Ex2h(t, map[string]func(*testing.T){
		"LogProb": TestLogProb,
		"Sample":  TestSample,
		"Adjust":  TestAdjustLogits,
	}, func() {})
}

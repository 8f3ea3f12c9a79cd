//go:build cuda

package selftest

import (
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/recurrent"
)

// What model.Build asks before it uses a shape.
func TestCheckRecurrence(t *testing.T) {
	d := unchecked(t)
	for _, r := range []kernels.Recurrence{{KeyHeads: 2, Heads: 4, KeyDim: 16, ValueDim: 32},
		{KeyHeads: 1, Heads: 3, KeyDim: 32, ValueDim: 16}, {KeyHeads: 1, Heads: 1, KeyDim: 64, ValueDim: 64},
		{KeyHeads: 1, Heads: 2, KeyDim: 128, ValueDim: 128}, {KeyHeads: 1, Heads: 2, KeyDim: 128, ValueDim: 64},
		{KeyHeads: 2, Heads: 2, KeyDim: 5, ValueDim: 70}} {
		for _, delta := range []bool{true, false} {
			if err := d.CheckRecurrence(r, delta); err != nil {
				t.Errorf("%+v: %v", r, err)
			}
		}
	}
	if err := d.CheckRecurrence(kernels.Recurrence{KeyHeads: 1, Heads: 1, KeyDim: recurrent.MaxKeyDim + 1, ValueDim: 8},
		true); err == nil {
		t.Error("keys are wider than a block's memory")
	}
}

package data

import (
	"fmt"
	"testing"
)

func TestOverlong(t *testing.T) {
	for tokens, want := range map[int]float64{0: 0, 15: 0, 16: 0, 17: -0.25, 18: -0.5, 19: -0.75, 20: -1, 21: -1,
		1 << 30: -1} {
		if got := Overlong(tokens, 20, 4); got != want {
			t.Errorf("%d tokens: %v, want %v", tokens, got, want)
		}
	}
	if got := Overlong(1, 4, 4); got != -0.25 {
		t.Errorf("%v", got)
	}
	// The paper's own setting: 16384 tokens are expected, and 4096 more are penalised.
	if got := Overlong(16384+2048, 16384+4096, 4096); got != -0.5 {
		t.Errorf("%v", got)
	}
	for _, buffer := range []int{-1, 0, 21} {
		t.Run(fmt.Sprint(buffer), func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			Overlong(1, 20, buffer)
		})
	}
}

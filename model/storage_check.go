package model

import (
	"fmt"
	"slices"
	"sync/atomic"

	"lockstep/data/safetensors"
)

// readScales reads scales, none of which may be NaN or infinite.
func readScales(t safetensors.TensorInfo) ([]float32, error) {
	s := make([]float32, t.Len())
	if err := safetensors.ToF32(s, t); err != nil {
		return nil, err
	}
	for i, x := range s {
		if x-x != 0 {
			return nil, fmt.Errorf("%s: tensor %s: scale %v is %v: fetch the checkpoint again", t.File, t.Name,
				place(t.Shape, i), x)
		}
	}
	return s, nil
}

// finite is an error where codes decode to NaN or to more than fp32 holds.
func finite(values []float32, codes safetensors.TensorInfo) error {
	var isNaN, isInf atomic.Bool
	inParallel(len(values), 1, func(from, to int) {
		for _, x := range values[from:to] {
			if x-x == 0 {
				continue
			}
			if x != x {
				isNaN.Store(true)
			} else {
				isInf.Store(true)
			}
			return
		}
	})
	switch {
	case isNaN.Load():
		return fmt.Errorf("%s: tensor %s: codes decode to NaN: fetch the checkpoint again", codes.File, codes.Name)
	case isInf.Load():
		return fmt.Errorf("%s: tensor %s: codes decode to more than fp32 holds: fetch the checkpoint again", codes.File,
			codes.Name)
	}
	return nil
}

// place is where element i of a tensor lies.
func place(shape []int, i int) []int {
	at := make([]int, len(shape))
	for d := len(shape) - 1; d >= 0; d-- {
		at[d], i = i%shape[d], i/shape[d]
	}
	return at
}

func misfit(t safetensors.TensorInfo, want string) error {
	return fmt.Errorf("%s: tensor %s has shape %v, want %s", t.File, t.Name, t.Shape, want)
}

func wantType(t safetensors.TensorInfo, types ...string) error {
	if slices.Contains(types, t.DType) {
		return nil
	}
	return fmt.Errorf("%s: tensor %s is %s, want %v", t.File, t.Name, t.DType, types)
}

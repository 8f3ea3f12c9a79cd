package quant

import (
	"fmt"
	"math"
)

// Rounding is how a copy of a model stores the weights of its projections.
type Rounding string

const (
	AsTrained Rounding = ""     // unchanged
	FP8       Rounding = "fp8"  // rounded by [RoundFP8Blocks]
	INT4      Rounding = "int4" // rounded by [RoundINT4Groups]
)

// Validate returns an error for an unknown format.
func (f Rounding) Validate() error {
	if f != AsTrained && f != FP8 && f != INT4 {
		return fmt.Errorf("weights %q: want %q, %q or nothing", f, FP8, INT4)
	}
	return nil
}

// nan is the one NaN that rounding writes, whatever NaN the weight was and whatever 0 times infinity gives on a
// machine.
var nan = math.Float32frombits(0x7fc00000)

// Round rounds a matrix w [rows, cols] in place to the numbers that the format can store. Bands of [FP8Block] rows may
// be rounded one by one.
func (f Rounding) Round(w []float32, rows, cols int) {
	switch f {
	case FP8:
		RoundFP8Blocks(w, rows, cols)
	case INT4:
		RoundINT4Groups(w, rows, cols)
	}
}

package quant

import (
	"fmt"
	"math"
)

// Format is how a copy of a model stores the weights of its projections.
type Format string

const (
	AsTrained Format = ""     // as they are
	FP8       Format = "fp8"  // as [RoundFP8Blocks] leaves them
	INT4      Format = "int4" // as [RoundINT4Groups] leaves them
)

// Validate reports a format that is not one of these.
func (f Format) Validate() error {
	if f != AsTrained && f != FP8 && f != INT4 {
		return fmt.Errorf("weights %q: want %q, %q or nothing", f, FP8, INT4)
	}
	return nil
}

// nan is what a weight becomes of which a format leaves no number: one NaN, whatever it was and whatever the machine
// makes of 0 times infinity.
var nan = math.Float32frombits(0x7fc00000)

// Round is what storing a matrix w [rows, cols] leaves of it. Bands of [FP8Block] rows may be rounded one by one.
func (f Format) Round(w []float32, rows, cols int) {
	switch f {
	case FP8:
		RoundFP8Blocks(w, rows, cols)
	case INT4:
		RoundINT4Groups(w, rows, cols)
	}
}

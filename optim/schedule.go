package optim

import (
	"fmt"
	"math"
)

// Schedule is the learning rate over a run: linear warm-up over Warmup steps, then Kind down to Final*Peak at the last
// step.
type Schedule struct {
	Kind   string // "constant", "linear" or "cosine"
	Peak   float64
	Final  float64 // fraction of Peak
	Warmup int
	Steps  int
}

// Validate returns an error that names what is wrong.
func (s Schedule) Validate() error {
	switch s.Kind {
	case "constant", "linear", "cosine":
	default:
		return fmt.Errorf("schedule %q: want constant, linear or cosine", s.Kind)
	}
	if s.Peak < 0 || s.Final < 0 || s.Final > 1 || s.Warmup < 0 || s.Steps <= 0 {
		return fmt.Errorf("schedule: want lr >= 0, final_lr in [0, 1], warmup_steps >= 0 and steps > 0")
	}
	return nil
}

// WarmupSteps is the number of warm-up steps of a run: given, or where that is 0, ratio*steps rounded up, as in
// transformers. Rounding errors of the product add no step (0.07 of 100 is 7).
func WarmupSteps(given int, ratio float64, steps int) int {
	if given > 0 {
		return given
	}
	return int(math.Ceil(float64(ratio*float64(steps)) - 1e-9))
}

// At is the rate of step (counted from 1).
func (s Schedule) At(step int) float64 {
	if step <= s.Warmup {
		return s.Peak * float64(step) / float64(s.Warmup)
	}
	progress := float64(step-s.Warmup) / float64(max(s.Steps-s.Warmup, 1))
	switch s.Kind {
	case "linear":
		return s.Peak * (1 - float64((1-s.Final)*progress))
	case "cosine":
		return s.Peak * (s.Final + float64((1-s.Final)*(1+math.Cos(math.Pi*progress))/2))
	}
	return s.Peak
}

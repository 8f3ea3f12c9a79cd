package train

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"
)

// Record is one line of metrics.jsonl: an optimizer step, an evaluation, or both. Step 0 is before the first step.
type Record struct {
	Step            int       `json:"step"`
	Time            time.Time `json:"time"`                        // UTC, milliseconds
	Loss            *Number   `json:"loss,omitempty"`              // nats per target, before the update
	LR              *Number   `json:"lr,omitempty"`                // learning rate of the step
	GradNorm        *Number   `json:"grad_norm,omitempty"`         // before clipping
	Tokens          int       `json:"tokens,omitempty"`            // computed since the run's start
	TokensPerSecond *Number   `json:"tokens_per_second,omitempty"` // of the step
	Memory          int64     `json:"memory,omitempty"`            // largest size of the process on the host so far, bytes
	GPUBusy         *Number   `json:"gpu_busy,omitempty"`          // share of the last second, 0 to 1
	GPUMemory       int64     `json:"gpu_memory,omitempty"`        // bytes taken on the card
	GPUWatts        *Number   `json:"gpu_watts,omitempty"`         // power drawn
	Launches        int       `json:"launches,omitempty"`          // kernels and graphs that the step gave the GPU
	Waits           int       `json:"waits,omitempty"`             // of the step for the GPU
	Allocations     int       `json:"allocations,omitempty"`       // of the step on the GPU
	EvalLoss        *Number   `json:"eval_loss,omitempty"`         // nats per target, held out
	EvalAccuracy    *Number   `json:"eval_accuracy,omitempty"`     // fraction of held-out samples answered right
	EvalSamples     int       `json:"eval_samples,omitempty"`      // samples generated for it
}

// Number is a float64 that JSON can hold: "NaN", "+Inf" and "-Inf" are strings, the rest is written as short as reads back the same.
type Number float64

// Num is a number of a record.
func Num(x float64) *Number { n := Number(x); return &n }

// MarshalJSON writes the number, or the name of one that JSON lacks.
func (n Number) MarshalJSON() ([]byte, error) {
	x := float64(n)
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return strconv.AppendQuote(nil, strconv.FormatFloat(x, 'g', -1, 64)), nil
	}
	return json.Marshal(x)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (n *Number) UnmarshalJSON(text []byte) error {
	switch s := string(text); s {
	case `"NaN"`, `"+Inf"`, `"-Inf"`:
		x, err := strconv.ParseFloat(s[1:len(s)-1], 64)
		*n = Number(x)
		return err
	}
	var x float64
	if err := json.Unmarshal(text, &x); err != nil {
		return fmt.Errorf("%s is not a number", text)
	}
	*n = Number(x)
	return nil
}

// scalar is a named value of a record.
type scalar struct {
	tag   string
	value float64
}

// scalars lists the values that a record has, by their names in TensorBoard.
func (r Record) scalars() []scalar {
	var list []scalar
	for _, s := range []struct {
		tag   string
		value *Number
	}{
		{"train/loss", r.Loss}, {"train/lr", r.LR}, {"train/grad_norm", r.GradNorm}, {"train/tokens_per_second", r.TokensPerSecond},
		{"eval/loss", r.EvalLoss}, {"eval/accuracy", r.EvalAccuracy},
		{"gpu/busy", r.GPUBusy}, {"gpu/watts", r.GPUWatts},
	} {
		if s.value != nil {
			list = append(list, scalar{s.tag, float64(*s.value)})
		}
	}
	for _, s := range []struct {
		tag   string
		value int64
	}{
		{"train/memory_bytes", r.Memory}, {"gpu/memory_bytes", r.GPUMemory}, {"gpu/launches", int64(r.Launches)}, {"gpu/waits", int64(r.Waits)}, {"gpu/allocations", int64(r.Allocations)},
	} {
		if s.value > 0 {
			list = append(list, scalar{s.tag, float64(s.value)})
		}
	}
	return list
}

package serve

import (
	"fmt"
	"slices"

	"lockstep/kernels"
)

// Adjust changes what is drawn, and no log-probability that is told. The zero value changes nothing.
type Adjust struct {
	Bias       map[int32]float32 `json:",omitempty"` // is added to the logits of these ids
	Frequency  float32           `json:",omitempty"` // is taken from the logit of an id for each time it was generated
	Presence   float32           `json:",omitempty"` // likewise, once
	Repetition float32           `json:",omitempty"` // divides logits above 0 of ids so far, prompt included; 0: 1
	MinP       float32           `json:",omitempty"` // least probability, relative to the likeliest id's
}

func (a *Adjust) active() bool {
	return len(a.Bias) > 0 || a.penalises() || a.MinP > 0
}

func (a *Adjust) penalises() bool { return a.Frequency != 0 || a.Presence != 0 || a.repetition() != 1 }

func (a *Adjust) repetition() float32 {
	if a.Repetition == 0 {
		return 1
	}
	return a.Repetition
}

// Bounds of adjustments: those of OpenAI's interface.
const MostBias, MostPenalty = 100, 2

func (a *Adjust) validate(vocab int) error {
	within := func(x, low, high float32) bool { return x >= low && x <= high } // nor is it NaN
	switch {
	case !within(a.Frequency, -MostPenalty, MostPenalty) || !within(a.Presence, -MostPenalty, MostPenalty):
		return fmt.Errorf("frequency penalty %g, presence penalty %g: want -%d to %d", a.Frequency, a.Presence,
			MostPenalty, MostPenalty)
	case !within(a.repetition(), kernels.LeastRepetition, kernels.MostRepetition):
		return fmt.Errorf("repetition penalty %g: want %g to %d", a.Repetition, kernels.LeastRepetition,
			kernels.MostRepetition)
	case !within(a.MinP, 0, 1):
		return fmt.Errorf("min-p %g: want 0 to 1", a.MinP)
	}
	for id, x := range a.Bias {
		if id < 0 || int(id) >= vocab || !within(x, -MostBias, MostBias) {
			return fmt.Errorf("bias %g of token %d: want -%d to %d, and the vocabulary has %d tokens", x, id, MostBias,
				MostBias, vocab)
		}
	}
	return nil
}

// adjusted tells whether any of the sequences adjusts its logits.
func adjusted(ready []*sequence) bool {
	return slices.ContainsFunc(ready, func(s *sequence) bool { return s.req.Adjust.active() })
}

// adjust returns the logits [n, V] to draw from: a copy, where any of the ready sequences changes its row.
func (e *Engine) adjust(logits kernels.Tensor, ready []*sequence) kernels.Tensor {
	if !adjusted(ready) {
		return logits
	}
	rows := make([]kernels.Adjustment, len(ready))
	for i, s := range ready {
		a := &s.req.Adjust
		rows[i] = kernels.Adjustment{Logits: s.logitAdjustments(), MinP: a.MinP, Temperature: s.req.Temperature}
	}
	changed := e.r.Stack.New(kernels.F32, logits.Rows, logits.Cols)
	e.r.Dev.Copy(changed, logits)
	e.r.Dev.AdjustLogits(changed, rows)
	return changed
}

// logitAdjustments are those of the sequence's next row, in any order.
func (s *sequence) logitAdjustments() (list []kernels.LogitAdjustment) {
	a := &s.req.Adjust
	s.count()
	for id, n := range s.counts {
		l := kernels.LogitAdjustment{ID: id, Bias: a.Bias[id], Repetition: a.repetition()}
		if n > 0 {
			l.Penalty = float32(a.Frequency*float32(n)) + a.Presence
		}
		list = append(list, l)
	}
	for id, bias := range a.Bias {
		if _, ok := s.counts[id]; !ok {
			list = append(list, kernels.LogitAdjustment{ID: id, Bias: bias, Repetition: 1})
		}
	}
	return list
}

// count brings counts up to date.
func (s *sequence) count() {
	if !s.req.Adjust.penalises() {
		return
	}
	if s.counts == nil {
		s.counts = map[int32]int{}
		if s.req.Adjust.repetition() != 1 {
			for _, id := range s.req.Prompt {
				s.counts[id] = 0
			}
		}
	}
	for _, id := range s.result.IDs[s.counted:] {
		s.counts[id]++
	}
	s.counted = len(s.result.IDs)
}

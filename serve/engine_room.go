package serve

import (
	"fmt"

	"lockstep/model"
)

// longest is the most positions of a sequence.
func (o Options) longest(m *model.Model) int {
	if o.MaxLength > 0 {
		return min(o.MaxLength, m.MaxLength)
	}
	return m.MaxLength
}

// perSequence is the pages of the longest sequence.
func (o Options) perSequence(m *model.Model) int { return (o.longest(m) + o.PageRows - 1) / o.PageRows }

// enough is the pages with which admit fills all slots with the longest sequences.
func (o Options) enough(m *model.Model) int { return o.Slots*o.perSequence(m) + o.Slots/admissionShare }

// Shortage says that the pages hold fewer sequences of the longest length than there are slots, and what to raise.
// Empty: they hold as many.
func (e *Engine) Shortage() string {
	o, fits := e.options, 0
	for fits < o.Slots && (fits+1)*o.perSequence(e.m)+fits/admissionShare <= o.Pages {
		fits++
	}
	if fits == o.Slots {
		return ""
	}
	return fmt.Sprintf("rollout: %d slots, but %d pages of %d positions hold %d sequences of %d positions, the "+
		"longest: set rollout.pages to %d for all slots", o.Slots, o.Pages, o.PageRows, fits, o.longest(e.m),
		o.enough(e.m))
}

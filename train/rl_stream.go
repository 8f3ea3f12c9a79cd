package train

import (
	"time"

	"lockstep/data"
	"lockstep/train/trainer"
)

// openStep is an optimizer step that has begun. With rl.stream it computes packs of answers while others are sampled:
// engine and trainer alternate, and the weights are the same until the step is closed. Packs are those of a step that
// begins when it has all answers, so its bits are too.
type openStep struct {
	feed    *trainer.Feed
	update  update
	samples []trainer.Sample // of the groups that are complete, in order
	put     int              // packs of them
}

// openStep is the step that has begun, or begins one.
func (l *learner) openStep(res *learningResult) *openStep {
	if l.opened != nil {
		return l.opened
	}
	s := &openStep{feed: l.trainer.Feed(l.updates+1, nil)}
	l.trainer.Observe = func(b *trainer.Batch) {
		if len(res.updates) == 0 && !l.rl.Proximal {
			res.divergence.Add(b.Fresh())
		}
		rows := b.Rows
		if rows.Old != nil {
			rows.Rollout = rows.Old
		}
		s.update.drift.Add(rows)
	}
	l.opened = s
	return s
}

// learnEarly adds a group to the step, and computes the packs that no answer of at least so many rows joins any more.
func (l *learner) learnEarly(g *group, least int, res *learningResult) error {
	began := time.Now()
	s, from := l.openStep(res), 0
	l.advantages([]*group{g})
	from = len(s.samples)
	for i := range g.Episodes {
		s.samples = append(s.samples, sampleOf(&g.Episodes[i], l.updates))
	}
	l.compare(s.samples[from:])
	packs := l.pack(s.samples).Packs
	rows := make([]int, len(packs))
	for i := range packs {
		rows[i] = trainer.CountRows(packs[i : i+1])
	}
	final := data.FinalPacks(rows, l.packRows, least)
	err := s.feed.Put(packs[s.put:final]...)
	s.put = final
	res.trainSeconds += time.Since(began).Seconds()
	return err
}

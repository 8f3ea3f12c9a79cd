package data

import (
	"errors"
	"fmt"
	"slices"
)

// Preferences are pairs of samples for one prompt, of which the first is preferred, in the order of their source.
type Preferences struct {
	pairs     [][2]Sample
	Dropped   int // pairs left out because they were too long
	Truncated int // pairs cut
	Rows      int // of all samples
	Targets   int // of all samples

	Ignored []string // fields that nothing reads: "FILE:LINE: field X is ignored"

	chat bool // the first pair was made of messages
}

// Len is the number of pairs.
func (p *Preferences) Len() int { return len(p.pairs) }

// Pair is pair i; not to be changed.
func (p *Preferences) Pair(i int) (chosen, rejected Sample) { return p.pairs[i][0], p.pairs[i][1] }

// Conversation is the chosen answer of the first pair, where that was made of messages.
func (p *Preferences) Conversation() (Sample, bool) {
	if !p.chat {
		return Sample{}, false
	}
	return p.pairs[0][0], true
}

func (p *Preferences) group(i int) []Sample { return p.pairs[i][:] }

// Digest identifies the pairs and their order.
func (p *Preferences) Digest() uint64 {
	h := hashOf(uint64(len(p.pairs)), 2)
	for _, pair := range p.pairs {
		h = pair[1].digest(pair[0].digest(h))
	}
	return h
}

// pair is a preference before it is cut.
type pair struct {
	chosen, rejected sequence
	chat             bool // made of messages
}

func (q *pair) rows() int { return q.chosen.rows() + q.rejected.rows() }

func (q *pair) fits(o Options) bool {
	return q.chosen.rows() <= o.MaxRows && q.rejected.rows() <= o.MaxRows && q.rows() <= o.PairRows
}

func (q *pair) same() bool {
	return slices.Equal(q.chosen.ids, q.rejected.ids) && slices.Equal(q.chosen.labels, q.rejected.labels)
}

// add makes a pair of samples, by the rule for long ones: each has at most MaxRows rows, and both have at most
// PairRows.
func (p *Preferences) add(q pair, o Options) error {
	if err := o.check(q.chosen); err != nil {
		return fmt.Errorf("chosen: %w", err)
	}
	if err := o.check(q.rejected); err != nil {
		return fmt.Errorf("rejected: %w", err)
	}
	if q.same() {
		return errors.New("chosen and rejected are the same, leave the line out")
	}
	if !q.fits(o) {
		if o.Long == LongError {
			return fmt.Errorf(`the pair has %d and %d tokens, and %d fit, both together %d, raise data.pack_rows or `+
				`set data.long to "drop" or "truncate"`,
				q.chosen.rows(), q.rejected.rows(), o.MaxRows, o.PairRows)
		}
		if o.Long == LongDrop || !q.truncate(o) {
			p.Dropped++
			return nil
		}
		p.Truncated++
	}
	p.chat = p.chat || len(p.pairs) == 0 && q.chat
	both := [2]Sample{q.chosen.sample(), q.rejected.sample()}
	p.pairs = append(p.pairs, both)
	p.Rows += rowsOf(both[:])
	p.Targets += both[0].Learned() + both[1].Learned()
	return nil
}

// truncate cuts both answers at the same position, the last at which the pair fits. It fails if one has no label before
// that position, or if the two become equal.
func (q *pair) truncate(o Options) bool {
	c, r := q.chosen.rows(), q.rejected.rows()
	most := min(o.MaxRows, max(o.PairRows/2, o.PairRows-min(c, r)))
	if c > most {
		q.chosen = q.chosen.cut(most)
	}
	if r > most {
		q.rejected = q.rejected.cut(most)
	}
	return q.chosen.rows() > 0 && q.rejected.rows() > 0 && !q.same()
}

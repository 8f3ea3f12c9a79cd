package serve

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"text/tabwriter"

	"lockstep/data"
	"lockstep/data/ordered"
	"lockstep/model"
)

// SequencesOf are the sequences of a JSONL file ({"ids": [...]}); "": four of random ids, the same for every model of a
// vocabulary.
func SequencesOf(path string, m *model.Model) (seqs [][]int32, err error) {
	if path != "" {
		err = data.EachLine(path, func(_ int, line *ordered.Dict) error {
			ids, err := data.IDs(line, 2, m.Vocab)
			if len(ids) > m.MaxLength {
				return fmt.Errorf("%d tokens, but the model has %d positions", len(ids), m.MaxLength)
			}
			seqs = append(seqs, ids)
			return err
		})
		return seqs, err
	}
	rng := rand.New(rand.NewPCG(1, 0))
	for range 4 {
		ids := make([]int32, min(64, m.MaxLength))
		for i := range ids {
			ids[i] = rng.Int32N(int32(m.Vocab))
		}
		seqs = append(seqs, ids)
	}
	return seqs, nil
}

// CompareScores is a table of the log-probabilities of sequences before a merge and after it, with a line of what that
// means.
func CompareScores(before, after [][]float32) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "sequence\ttokens\tmean log-prob before\tafter\tlargest difference\t")
	var most float64
	for i := range before {
		var sums [2]float64
		var largest float64
		for k, x := range before[i] {
			y := after[i][k]
			sums[0], sums[1] = sums[0]+float64(x), sums[1]+float64(y)
			largest = max(largest, math.Abs(float64(x)-float64(y)))
		}
		n := float64(len(before[i]))
		fmt.Fprintf(w, "%d\t%d\t%.6f\t%.6f\t%.3g\t\n", i+1, len(before[i]), sums[0]/n, sums[1]/n, largest)
		most = max(most, largest)
	}
	if err := w.Flush(); err != nil {
		panic(err) // a strings.Builder does not fail
	}
	fmt.Fprintf(&b, "a merge changes bits: it rounds W + scale*B*A, which the base with the adapter does not; "+
		"log-probabilities differ by %.3g at most\n", most)
	return b.String()
}

package serve

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"text/tabwriter"

	"lockstep/data"
	"lockstep/data/ordered"
	"lockstep/kernels"
	"lockstep/model"
	"lockstep/parallel"
)

// ParityOptions configure Parity.
type ParityOptions struct {
	Rollout     string  // file of recorded completions
	Temperature float64 // of the recorded log-probabilities; 0: that of each line, 1 if it has none
	Bounds      Bounds
	// Against, if set, is a device with another definition. The tokens go through the model on it as well.
	Against     kernels.Device
	Alternative Alternative
}

// ParityReport compares recorded log-probabilities with those of the training forward.
type ParityReport struct {
	Sequences  int               `json:"sequences"`
	Definition string            `json:"definition"` // digest
	Bounds     Bounds            `json:"bounds"`
	Recorded   Mismatch          `json:"recorded"`
	Worst      []TokenDifference `json:"worst,omitempty"`

	// With --against: the model by the other definition takes the place of the training forward, and the training
	// forward that of the recording.
	Against         string            `json:"against_definition,omitempty"`
	Weights         string            `json:"against_weights,omitempty"` // format of its linear layers
	AgainstMismatch *Mismatch         `json:"against,omitempty"`
	Search          *DivergenceSearch `json:"divergence,omitempty"`
}

// TokenDifference is a recorded token whose log-probability differs from that of the training forward.
type TokenDifference struct {
	Line     int     `json:"line"`  // of the file, from 1
	Token    int     `json:"token"` // of the completion, from 0
	ID       int32   `json:"id"`
	Text     string  `json:"text,omitempty"`
	Recorded float32 `json:"recorded"`
	Training float32 `json:"training"`
}

func (b TokenDifference) difference() float64 {
	return math.Abs(float64(b.Training) - float64(b.Recorded))
}

const (
	worstTokens = 10
	parityRows  = 4096 // most rows of a batch, unless one sequence has more
)

// recording is a line of the rollout file.
type recording struct {
	line int
	data.Recorded
}

// Parity computes the log-probabilities of recorded completions by the training forward, in packed batches, and
// compares.
func Parity(ctx context.Context, s *ServedModel, o ParityOptions) (*ParityReport, error) {
	if err := o.Bounds.Validate(); err != nil {
		return nil, err
	}
	if err := validTemperature(float32(o.Temperature)); err != nil {
		return nil, err
	}
	batches, err := readRecordings(o.Rollout, s.Model, float32(o.Temperature))
	if err != nil {
		return nil, err
	}
	rep := &ParityReport{Bounds: o.Bounds, Definition: s.Rank.Dev.Definition().Digest()}
	of := make([][]float32, len(batches))
	if err := s.deal(len(batches), func(r *parallel.Rank, m *model.Model, i int) error {
		of[i] = rescoreBatch(r, m, batches[i])
		return ctx.Err()
	}); err != nil {
		return nil, err
	}
	training := slices.Concat(of...)
	var recorded []float32
	for _, rec := range slices.Concat(batches...) {
		rep.Sequences++
		for i, q := range rec.LogProbs {
			p := training[len(recorded)]
			if p-p != 0 {
				return nil, fmt.Errorf("%s:%d: the log-probability of token %d is %v: check the weights",
					o.Rollout, rec.line, i, p)
			}
			rep.addWorst(TokenDifference{Line: rec.line, Token: i, ID: rec.IDs[i], Recorded: q, Training: p})
			recorded = append(recorded, q)
		}
	}
	rep.Recorded = NewMismatch(training, recorded, o.Bounds)
	if s.Tokenizer != nil {
		for i := range rep.Worst {
			rep.Worst[i].Text = s.Tokenizer.Decode([]int32{rep.Worst[i].ID})
		}
	}
	if o.Against == nil {
		return rep, nil
	}
	v, other, err := searchDivergence(s.Rank, s.Model, o.Against, o.Alternative.Weights, batches)
	if err != nil {
		return nil, err
	}
	m := NewMismatch(other, training, o.Bounds)
	rep.Against, rep.Weights, rep.AgainstMismatch, rep.Search = o.Against.Definition().Digest(),
		string(o.Alternative.Weights.As), &m, v
	return rep, nil
}

// addWorst keeps the tokens with the largest differences, earlier ones first among equals.
func (v *ParityReport) addWorst(b TokenDifference) {
	if b.difference() == 0 {
		return
	}
	at := len(v.Worst)
	for at > 0 && v.Worst[at-1].difference() < b.difference() {
		at--
	}
	v.Worst = slices.Insert(v.Worst, at, b)
	v.Worst = v.Worst[:min(len(v.Worst), worstTokens)]
}

// readRecordings reads a rollout file into batches of about parityRows rows. A temperature other than 0 overrides those
// of the lines.
func readRecordings(path string, m *model.Model, temperature float32) (batches [][]recording, err error) {
	rows := parityRows
	err = data.EachLine(path, func(n int, line *ordered.Dict) error {
		rec, err := data.ReadRecorded(line, m.Vocab, m.MaxLength)
		if err != nil {
			return err
		}
		if temperature != 0 {
			rec.Temperature = temperature
		}
		if err := validTemperature(rec.Temperature); err != nil {
			return err
		}
		if rows += len(rec.Prompt) + len(rec.IDs); rows > parityRows {
			batches, rows = append(batches, nil), len(rec.Prompt)+len(rec.IDs)
		}
		last := &batches[len(batches)-1]
		*last = append(*last, recording{line: n + 1, Recorded: rec})
		return nil
	})
	return batches, err
}

// rescore computes the log-probabilities of all completion tokens, in order, by the training forward.
func rescore(r *parallel.Rank, m *model.Model, batches [][]recording) (all []float32) {
	for _, batch := range batches {
		all = append(all, rescoreBatch(r, m, batch)...)
	}
	return all
}

func rescoreBatch(r *parallel.Rank, m *model.Model, batch []recording) (out []float32) {
	defer r.Stack.Release(r.Stack.Mark())
	seqs := make([][]int32, len(batch))
	var inv []float32
	for i, rec := range batch {
		seqs[i] = slices.Concat(rec.Prompt, rec.IDs)
		inv = append(inv, slices.Repeat([]float32{kernels.Inverse(rec.Temperature)}, len(seqs[i]))...)
	}
	ids, targets, l := packSequences(seqs)
	b := model.NewBatch(r, ids, l, nil)
	logprob := r.Stack.New(kernels.F32, 1, len(ids))
	m.Head.LogProb(r, logprob, m.Forward(r, b, nil), model.Targets{IDs: parallel.Upload(r, targets),
		Inverse: parallel.Upload(r, inv)}, b)
	rows := parallel.Download[float32](r, logprob)
	for i, rec := range batch {
		first := l.Spans[i].Row + len(rec.Prompt) - 1 // its target is the first token of the completion
		out = append(out, rows[first:first+len(rec.IDs)]...)
	}
	return out
}

// JSON is the report as JSON.
func (v *ParityReport) JSON() ([]byte, error) { return json.MarshalIndent(v, "", "  ") }

func (v *ParityReport) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "%d sequences, the recording compared with the training forward by definition %s\n", v.Sequences,
		v.Definition[:12])
	v.Recorded.write(w, v.Bounds)
	if len(v.Worst) > 0 {
		fmt.Fprintln(w, "line\ttoken\tid\trecorded\ttraining\tdifference\t  largest differences\t")
		for _, t := range v.Worst {
			fmt.Fprintf(w, "%d\t%d\t%d\t%.6f\t%.6f\t%.3g\t  %q\t\n", t.Line, t.Token, t.ID, t.Recorded, t.Training,
				t.difference(), t.Text)
		}
	}
	if v.AgainstMismatch != nil {
		weights := ""
		if v.Weights != "" {
			weights = " with weights in " + v.Weights
		}
		fmt.Fprintf(w, "\nthe training forward compared with the model by definition %s%s\n", v.Against[:12], weights)
		v.AgainstMismatch.write(w, v.Bounds)
		v.Search.write(w)
	}
	if err := w.Flush(); err != nil {
		panic(err) // a strings.Builder does not fail
	}
	return b.String()
}

func (m *Mismatch) write(w *tabwriter.Writer, b Bounds) {
	if m.Equal == m.Tokens {
		fmt.Fprintf(w, "bit-identical: %d log-probabilities, KL 0\n", m.Tokens)
		return
	}
	fmt.Fprintf(w, "%d of %d log-probabilities are equal on every bit\n", m.Equal, m.Tokens)
	fmt.Fprintf(w, "KL estimates: k1 %.3g, k3 %.3g\n", m.K1, m.K3)
	fmt.Fprintf(w, "difference: mean %.3g, 50%% %.3g, 90%% %.3g, 99%% %.3g, 99.9%% %.3g, largest %.3g\n", m.Mean,
		m.Percentiles[0], m.Percentiles[1], m.Percentiles[2], m.Percentiles[3], m.Max)
	fmt.Fprintf(w, "PPO can clip %.2f%% of tokens: %.2f%% have a ratio above %g, %.2f%% below %g; truncated "+
		"importance sampling caps the ratio at %g for %.2f%%\n",
		100*(m.ClippedAbove+m.ClippedBelow), 100*m.ClippedAbove, 1+b.ClipHigh, 100*m.ClippedBelow, 1-b.ClipLow, b.Cap,
		100*m.Capped)
}

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

// ParityOptions say what to compare.
type ParityOptions struct {
	Rollout     string  // file of recorded completions
	Temperature float64 // of the recorded log-probabilities; 0: what each line says, 1 where it says nothing
	Bounds      Bounds
	// Against, where set, is the device of another definition; the same tokens go through the model by both.
	Against kernels.Device
	Other   Other
}

// ParityReport is how far recorded log-probabilities are from those of the training forward.
type ParityReport struct {
	Sequences  int        `json:"sequences"`
	Definition string     `json:"definition"` // digest
	Bounds     Bounds     `json:"bounds"`
	Recorded   Mismatch   `json:"recorded"`
	Worst      []BadToken `json:"worst,omitempty"`

	// Of --against: the model by the other definition in place of the training forward, whose tokens the recording's
	// are taken for.
	Against string    `json:"against_definition,omitempty"`
	Weights string    `json:"against_weights,omitempty"` // format of its projections
	Other   *Mismatch `json:"against,omitempty"`
	Walk    *Walk     `json:"walk,omitempty"`
}

// BadToken is a recorded token whose log-probability is far from that of the training forward.
type BadToken struct {
	Line     int     `json:"line"`  // of the file, from 1
	Token    int     `json:"token"` // of the completion, from 0
	ID       int32   `json:"id"`
	Text     string  `json:"text,omitempty"`
	Recorded float32 `json:"recorded"`
	Training float32 `json:"training"`
}

func (b BadToken) difference() float64 {
	return math.Abs(float64(b.Training) - float64(b.Recorded))
}

const (
	worstTokens = 10
	parityRows  = 4096 // of a batch, unless one sequence has more
)

// recording is a line of the file.
type recording struct {
	line int
	data.Recorded
}

// Parity scores recorded completions by the training forward, in packed batches, and compares.
func Parity(ctx context.Context, r *parallel.Rank, s *ServedModel, o ParityOptions) (*ParityReport, error) {
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
	rep := &ParityReport{Bounds: o.Bounds, Definition: r.Dev.Definition().Digest()}
	var training []float32
	for i := range batches {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		training = append(training, rescore(r, s.Model, batches[i:i+1])...)
	}
	var recorded []float32
	for _, rec := range slices.Concat(batches...) {
		rep.Sequences++
		for i, q := range rec.LogProbs {
			p := training[len(recorded)]
			if p-p != 0 {
				return nil, fmt.Errorf("%s:%d: the model gives token %d the log-probability %v: are the weights whole?",
					o.Rollout, rec.line, i, p)
			}
			rep.note(BadToken{Line: rec.line, Token: i, ID: rec.IDs[i], Recorded: q, Training: p})
			recorded = append(recorded, q)
		}
	}
	rep.Recorded = NewMismatch(training, recorded, o.Bounds)
	if s.Language != nil {
		for i := range rep.Worst {
			rep.Worst[i].Text = s.Language.Decode([]int32{rep.Worst[i].ID})
		}
	}
	if o.Against == nil {
		return rep, nil
	}
	v, other, err := walk(r, s.Model, o.Against, o.Other.Weights, batches)
	if err != nil {
		return nil, err
	}
	m := NewMismatch(other, training, o.Bounds)
	rep.Against, rep.Weights, rep.Other, rep.Walk = o.Against.Definition().Digest(), string(o.Other.Weights), &m, v
	return rep, nil
}

// note keeps the worst tokens, earlier ones first among equals.
func (v *ParityReport) note(b BadToken) {
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

// readRecordings reads the file into batches of about parityRows rows. A temperature that is not 0 takes the place of
// what the lines say.
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

// rescore is the log-probabilities of all completions' tokens, in order, by the training forward.
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
	ids, targets, l := packed(seqs)
	b := model.NewBatch(r, ids, l, nil)
	logprob := r.Stack.New(kernels.F32, 1, len(ids))
	m.Head.LogProb(r, logprob, m.Forward(r, b, nil), model.Targets{IDs: parallel.Upload(r, targets),
		Inverse: parallel.Upload(r, inv)}, b)
	rows := parallel.Download[float32](r, logprob)
	for i, rec := range batch {
		first := l.Spans[i].Row + len(rec.Prompt) - 1 // whose target is the first token of the completion
		out = append(out, rows[first:first+len(rec.IDs)]...)
	}
	return out
}

// JSON is the report for machines.
func (v *ParityReport) JSON() ([]byte, error) { return json.MarshalIndent(v, "", "  ") }

func (v *ParityReport) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "%d sequences, the recording against the training forward by definition %s\n", v.Sequences,
		v.Definition[:12])
	v.Recorded.write(w, v.Bounds)
	if len(v.Worst) > 0 {
		fmt.Fprintln(w, "line\ttoken\tid\trecorded\ttraining\tdifference\t  the worst\t")
		for _, t := range v.Worst {
			fmt.Fprintf(w, "%d\t%d\t%d\t%.6f\t%.6f\t%.3g\t  %q\t\n", t.Line, t.Token, t.ID, t.Recorded, t.Training,
				t.difference(), t.Text)
		}
	}
	if v.Other != nil {
		weights := ""
		if v.Weights != "" {
			weights = " with weights in " + v.Weights
		}
		fmt.Fprintf(w, "\nthe training forward against the model by definition %s%s\n", v.Against[:12], weights)
		v.Other.write(w, v.Bounds)
		v.Walk.write(w)
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
	fmt.Fprintf(w, "%d of %d log-probabilities equal on every bit\n", m.Equal, m.Tokens)
	fmt.Fprintf(w, "KL by these tokens: k1 %.3g, k3 %.3g\n", m.K1, m.K3)
	fmt.Fprintf(w, "difference: mean %.3g, 50%% %.3g, 90%% %.3g, 99%% %.3g, 99.9%% %.3g, largest %.3g\n", m.Mean,
		m.Tails[0], m.Tails[1], m.Tails[2], m.Tails[3], m.Max)
	fmt.Fprintf(w, "PPO clips %.2f%% of tokens: %.2f%% above %g where the advantage is above 0, %.2f%% below %g "+
		"where it is below; importance weights are capped at %g for %.2f%%\n",
		100*(m.Above+m.Below), 100*m.Above, 1+b.ClipHigh, 100*m.Below, 1-b.ClipLow, b.Cap, 100*m.Capped)
}

package serve

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"text/tabwriter"

	"lockstep/kernels"
	"lockstep/model"
	"lockstep/parallel"
)

// VerifyOptions configure Verify.
type VerifyOptions struct {
	Tokens    int // least number of positions to compare, each a full vocabulary of logits
	Seed      uint64
	MaxLength int // if above 0, each round has a sequence of this length
	// Corpus are token sequences to use besides random ones. It may be empty.
	Corpus [][]int32
	// Progress, if set, receives the number of positions compared so far.
	Progress func(done int)
}

// Comparison compares one path of computing with the training forward.
type Comparison struct {
	Name       string
	Tokens     int     // positions
	Logits     int     // compared
	LogProbs   int     // compared, of next tokens
	Mismatches int     // logits and log-probabilities with different bits
	KL         float64 // mean over positions of KL(training || this path), in nats
}

// VerifyReport is the result of Verify.
type VerifyReport struct {
	Comparisons []Comparison
	Rounds      int
	Preempted   int
	Reused      int    // rows that sequences found in the prefix cache
	Digest      string // of the definition
	First       string // describes the first mismatch; "": there is none
}

// Totals adds the comparisons. KL is the mean over all positions, exactly 0 if every bit agrees.
func (v *VerifyReport) Totals() Comparison {
	t := Comparison{Name: "all"}
	sum := 0.0
	for _, c := range v.Comparisons {
		t.Tokens += c.Tokens
		t.Logits += c.Logits
		t.LogProbs += c.LogProbs
		t.Mismatches += c.Mismatches
		sum += c.KL * float64(c.Tokens)
	}
	if t.Tokens > 0 {
		t.KL = sum / float64(t.Tokens)
	}
	return t
}

func (v *VerifyReport) String() string {
	t := v.Totals()
	return fmt.Sprintf("zero-KLD: %d mismatched of %d logits and %d log-probs over %d tokens, KL %g, definition %s",
		t.Mismatches, t.Logits, t.LogProbs, t.Tokens, t.KL, v.Digest[:12])
}

// Table prints a line for each path. It marks a path that was never compared.
func (v *VerifyReport) Table() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "tokens\tlogits\tlog-probs\tmismatches\tKL\t  compared with the training forward\t")
	for _, c := range append(slices.Clone(v.Comparisons), v.Totals()) {
		if c.Tokens == 0 {
			c.Name += ": not compared"
		}
		fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%g\t  %s\t\n", c.Tokens, c.Logits, c.LogProbs, c.Mismatches, c.KL, c.Name)
	}
	if err := w.Flush(); err != nil {
		panic(err) // a strings.Builder does not fail
	}
	fmt.Fprintf(&b, "%d rounds of random traffic, %d sequences preempted and resumed, %d rows found in the cache\n%s\n",
		v.Rounds, v.Preempted, v.Reused, v)
	return b.String()
}

// Err is nil if every bit agrees and every path was compared.
func (v *VerifyReport) Err() error {
	if t := v.Totals(); t.Mismatches > 0 {
		return fmt.Errorf("zero-KLD: %d of %d numbers differ: %s", t.Mismatches, t.Logits+t.LogProbs, v.First)
	}
	for _, c := range v.Comparisons {
		if c.Tokens == 0 {
			return fmt.Errorf("zero-KLD: not compared: %s: raise the number of tokens", c.Name)
		}
	}
	return nil
}

const (
	roundTokens     = 1536     // most positions of a round, so that the reference logits fit in memory
	comparisonsEach = 3        // of each position: in packed training, in prefill, and in a run that decodes
	roundLogits     = 64 << 20 // most reference logits of a round
	// Longest sequence of a round unless VerifyOptions say otherwise, and most decoded tokens of a sequence.
	defaultMaxLength = 1024
	// least tokens of a sequence with a decoded row: its prompt, that row, and the token sampled from it
	minDecoded = 3
)

// Verify compares the bits of full-vocabulary logits and of next-token log-probabilities on random traffic. The
// reference is the training forward of each sequence by itself. It is compared with training forwards of random packs,
// with and without recomputation of blocks, and with the rollout engine in prefill and decode. The engine has random
// batch compositions, arrival orders, chunks of prompts, page sizes, shared prefixes and preemption. Sequences have
// temperature 1, 0.6 or 1.3. Every round compares every path. It is an error if the device breaks a rule that this
// model does not use.
func Verify(ctx context.Context, r *parallel.Rank, m *model.Model, o VerifyOptions) (*VerifyReport, error) {
	if o.Tokens < 1 || o.MaxLength < 0 {
		return nil, fmt.Errorf("%d tokens, longest sequence %d: want at least 1 token, and a length of 0 (up to "+
			"%d) or more", o.Tokens, o.MaxLength, defaultMaxLength)
	}
	if b := r.Dev.Definition().Break; b != kernels.BreakNone && !slices.Contains(m.Breaks(), b) {
		return nil, fmt.Errorf("rule %q does not apply to this %s model: want one of %q", b, m.Family, m.Breaks())
	}
	p := &verifier{
		r: r, m: m, tokens: o.Tokens, maxLength: min(o.MaxLength, m.MaxLength),
		rng:    rand.New(rand.NewPCG(o.Seed, 0x6c6f636b73746570)),
		report: &VerifyReport{Digest: r.Dev.Definition().Digest()},
	}
	for _, name := range paths {
		p.report.Comparisons = append(p.report.Comparisons, Comparison{Name: name})
	}
	for p.report.Totals().Tokens < o.Tokens {
		if err := p.round(ctx, o.Corpus); err != nil {
			return nil, err
		}
		p.report.Rounds++
		if o.Progress != nil {
			o.Progress(p.report.Totals().Tokens)
		}
	}
	return p.report, nil
}

// ways are what is compared with the training forward of one sequence by itself, at these places of the report.
var paths = []string{
	pathPacked: "packed training", pathRecomputed: "recomputed training",
	pathPrefill: "chunked prefill", pathDecode: "decode",
}

const (
	pathPacked = iota
	pathRecomputed
	pathPrefill
	pathDecode
)

type verifier struct {
	r         *parallel.Rank
	m         *model.Model
	tokens    int // positions to compare
	maxLength int
	rng       *rand.Rand
	report    *VerifyReport
	// Of the current round: sequences, and the results of the training forward of each by itself.
	seqs     [][]int32
	logits   [][]float32 // [T, V]
	logprobs [][]float32 // of the next token, [T-1]
}

func (p *verifier) round(ctx context.Context, corpus [][]int32) error {
	p.drawSequences(corpus)
	p.logits, p.logprobs = nil, nil
	for i := range p.seqs {
		logits, logprobs := p.trainForward([]int{i}, false)
		p.logits, p.logprobs = append(p.logits, logits...), append(p.logprobs, logprobs...)
	}
	p.packedForwards()
	if err := p.engineForward(ctx, pathPrefill); err != nil {
		return err
	}
	return p.engineForward(ctx, pathDecode)
}

// roundSize returns how many positions a round has, and the length of its longest sequence, to compare so many tokens.
// A sequence of length asked is part of the round, if above 0. Few tokens have short rounds.
func roundSize(m *model.Model, tokens, asked int) (budget, longest int) {
	budget = max(64, min(tokens/comparisonsEach, roundTokens, roundLogits/m.Vocab)) + asked
	return budget, min(max(defaultMaxLength, asked), m.MaxLength, budget)
}

// drawSequences makes 1 to 64 sequences of skewed lengths from random ids and parts of the corpus. Some share a prefix.
// If a sequence of maxLength is asked for, the round has others too.
func (p *verifier) drawSequences(corpus [][]int32) {
	p.seqs = nil
	budget, longest := roundSize(p.m, p.tokens, p.maxLength)
	count := []int{1, 2, 3, 4, 7, 16, 33, 64}[p.rng.IntN(8)]
	if p.maxLength > 0 {
		count = max(count, 4)
	}
	for len(p.seqs) < count && budget > 0 {
		n := min(1+int(float64(longest)*math.Pow(p.rng.Float64(), 2)), budget)
		if len(p.seqs) == 0 {
			n = max(n, min(minDecoded, longest)) // at least one row is decoded
		}
		if len(p.seqs) == 0 && p.maxLength > 0 {
			n = longest
		}
		budget -= n
		if len(corpus) > 0 && p.rng.IntN(2) == 0 {
			if s := corpus[p.rng.IntN(len(corpus))]; len(p.seqs) > 0 || len(s) >= minDecoded {
				p.seqs = append(p.seqs, slices.Clone(s[:min(n, len(s))]))
				continue
			}
		}
		s := make([]int32, n)
		for i := range s {
			s[i] = p.rng.Int32N(int32(p.m.Vocab))
		}
		if len(p.seqs) > 0 && p.rng.IntN(2) == 0 {
			copy(s[:p.rng.IntN(n+1)], p.seqs[p.rng.IntN(len(p.seqs))])
		}
		p.seqs = append(p.seqs, s)
	}
}

// temperature is that of sequence i.
func (p *verifier) temperature(i int) float32 {
	return []float32{1, 0.6, 1.3}[(p.report.Rounds+i)%3]
}

// trainForward runs the training forward of some sequences as one packed batch. It returns the logits and the
// next-token log-probabilities of each.
func (p *verifier) trainForward(sequences []int, recompute bool) (logits, logprobs [][]float32) {
	r := p.r
	defer r.Stack.Release(r.Stack.Mark())
	var seqs [][]int32
	var inv []float32
	for _, i := range sequences {
		seqs = append(seqs, p.seqs[i])
		inv = append(inv, slices.Repeat([]float32{kernels.Inverse(p.temperature(i))}, len(p.seqs[i]))...)
	}
	ids, targets, l := packSequences(seqs)
	b := model.NewBatch(r, ids, l, nil)
	x := p.m.TrainForward(r, b, recompute)
	logprob := r.Stack.New(kernels.F32, 1, len(ids))
	p.m.Head.LogProb(r, logprob, x, model.Targets{IDs: parallel.Upload(r, targets), Inverse: parallel.Upload(r, inv)},
		b)
	all := parallel.Download[float32](r, logprob)
	for _, s := range l.Spans {
		mark := r.Stack.Mark()
		logits = append(logits, parallel.Download[float32](r, p.m.Head.Logits(r, x.RowRange(s.Row, s.Row+s.Rows))))
		r.Stack.Release(mark)
		logprobs = append(logprobs, all[s.Row:s.Row+s.Rows-1])
	}
	return logits, logprobs
}

// packedForwards compares training forwards of random packs of the sequences. Every second pack recomputes blocks. A
// round of one pack runs it with and without recomputation.
func (p *verifier) packedForwards() {
	order := p.rng.Perm(len(p.seqs))
	path, packs := pathPacked+p.rng.IntN(2), 0
	for rest := order; len(rest) > 0; packs++ {
		n := 1 + p.rng.IntN(len(rest))
		p.packedForward(path, rest[:n])
		path, rest = pathPacked+pathRecomputed-path, rest[n:]
	}
	if packs == 1 {
		p.packedForward(path, order)
	}
}

// packedForward compares the training forward of some sequences as one batch.
func (p *verifier) packedForward(path int, sequences []int) {
	logits, logprobs := p.trainForward(sequences, path == pathRecomputed)
	for j, i := range sequences {
		p.compare(path, i, 0, logits[j])
		p.compareLogProbs(path, i, 0, logprobs[j])
	}
}

// engineForward runs the sequences through a rollout engine of random sizes. For pathPrefill they are prompts. For
// pathDecode they are short prompts followed by forced tokens.
func (p *verifier) engineForward(ctx context.Context, path int) error {
	defer p.r.Stack.Release(p.r.Stack.Mark())
	e, err := NewEngine(p.r, p.m, p.r.Stack, p.engineOptions())
	if err != nil {
		return err
	}
	order := p.rng.Perm(len(p.seqs))
	reqs := make([]Request, len(order))
	for j, i := range order {
		s := p.seqs[i]
		cut := p.promptLength(len(s), path)
		reqs[j] = Request{
			ID: uint64(i), Prompt: s[:cut], Forced: s[cut:], MaxTokens: max(len(s)-cut, 1),
			Temperature: p.temperature(i), TopP: 1,
		}
	}
	e.onLogits = func(s *sequence, position int, logits []float32) {
		switch i := order[s.index]; {
		case position < len(reqs[s.index].Prompt):
			p.compare(pathPrefill, i, position, logits)
		case position < len(p.seqs[i]):
			p.compare(pathDecode, i, position, logits)
		}
	}
	results, err := e.Run(ctx, reqs)
	if err != nil {
		return err
	}
	for j, i := range order {
		n := len(reqs[j].Forced)
		p.compareLogProbs(path, i, len(p.seqs[i])-1-n, results[j].LogProbs[:n])
	}
	p.report.Preempted += e.Preempted
	p.report.Reused += e.Reused
	return nil
}

// engineOptions are random sizes of an engine for the sequences of the round. Pages are often too few for all sequences
// at once, so some are preempted.
func (p *verifier) engineOptions() Options {
	total, longest := 0, 0
	for _, s := range p.seqs {
		total, longest = total+len(s), max(longest, len(s))
	}
	page := []int{1, 3, 8, 16, 64, 100, 256}[p.rng.IntN(7)]
	prefill := []int{1 + p.rng.IntN(8), 1 + p.rng.IntN(64), 64, 512}[p.rng.IntN(4)]
	return Options{
		Slots: 1 + p.rng.IntN(64), PageRows: page, PrefillRows: prefill,
		Pages: (longest+1+page-1)/page + 1 + p.rng.IntN(max(((total+page-1)/page+len(p.seqs))/(1+p.rng.IntN(8)), 1)),
	}
}

// promptLength is how many of the n tokens of a sequence are its prompt. For pathDecode at least two of three are not.
func (p *verifier) promptLength(n, path int) int {
	cut := n
	if path == pathDecode {
		cut = max(1+p.rng.IntN(min(max(n+1-minDecoded, 1), 16)), n-defaultMaxLength)
	}
	if cut == p.m.MaxLength {
		cut--
	}
	return cut
}

// compare compares logits of consecutive positions of sequence i with the reference.
func (p *verifier) compare(path, i, position int, logits []float32) {
	v := p.m.Vocab
	c := &p.report.Comparisons[path]
	for ; len(logits) > 0; logits, position = logits[v:], position+1 {
		want := p.logits[i][position*v : (position+1)*v]
		bad := mismatches(logits[:v], want)
		kl := 0.0
		if bad > 0 {
			kl = divergence(want, logits[:v], kernels.Inverse(p.temperature(i)))
			p.recordMismatch(c.Name, "logits", i, position, bad)
		}
		c.KL = (c.KL*float64(c.Tokens) + kl) / float64(c.Tokens+1)
		c.Tokens++
		c.Logits += v
		c.Mismatches += bad
	}
}

func (p *verifier) compareLogProbs(path, i, position int, logprobs []float32) {
	c := &p.report.Comparisons[path]
	bad := mismatches(logprobs, p.logprobs[i][position:position+len(logprobs)])
	if bad > 0 {
		p.recordMismatch(c.Name, "log-probs", i, position, bad)
	}
	c.LogProbs += len(logprobs)
	c.Mismatches += bad
}

func (p *verifier) recordMismatch(name, what string, i, position, bad int) {
	if p.report.First == "" {
		p.report.First = fmt.Sprintf("round %d, %s: %d %s differ at position %d of a sequence of %d among %d",
			p.report.Rounds, name, bad, what, position, len(p.seqs[i]), len(p.seqs))
	}
}

// mismatches counts elements with different bits.
func mismatches(got, want []float32) (n int) {
	for i := range got {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			n++
		}
	}
	return n
}

// divergence is KL(p || q) in nats of two rows of logits, multiplied by the inverse temperature inv, in float64.
func divergence(p, q []float32, inv float32) float64 {
	lp, lq := logSoftmax(p, float64(inv)), logSoftmax(q, float64(inv))
	sum := 0.0
	for i := range lp {
		sum += math.Exp(lp[i]) * (lp[i] - lq[i])
	}
	return sum
}

func logSoftmax(x []float32, inv float64) []float64 {
	m := float64(slices.Max(x))
	sum := 0.0
	for _, v := range x {
		sum += math.Exp(inv * (float64(v) - m))
	}
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = float64(inv*(float64(v)-m)) - math.Log(sum)
	}
	return out
}

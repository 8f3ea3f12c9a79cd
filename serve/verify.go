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

// VerifyOptions size the proof.
type VerifyOptions struct {
	Tokens  int // positions compared, at least; each compares a full vocabulary of logits
	Seed    uint64
	Longest int // where above 0, each round has a sequence of so many tokens
	// Corpus, where given, are token sequences to use besides random ones.
	Corpus [][]int32
	// Progress, where set, is told how many positions are done.
	Progress func(done int)
}

// Comparison is one way of computing that was held against the training forward.
type Comparison struct {
	Name       string
	Tokens     int // positions
	Logits     int // numbers compared bit for bit
	LogProbs   int // likewise, of next tokens
	Mismatches int // of both kinds
	KL         float64
}

// Report is the outcome of a proof.
type Report struct {
	Comparisons []Comparison
	Rounds      int
	Preempted   int
	Reused      int    // rows that sequences found in the cache
	Digest      string // of the definition
	First       string // where the first mismatch was, "" if there was none
}

// Totals adds the comparisons; KL is the mean over positions of KL(training || rollout), exactly 0 where every bit
// agrees.
func (v *Report) Totals() Comparison {
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

func (v *Report) String() string {
	t := v.Totals()
	return fmt.Sprintf("zero-KLD: %d mismatched of %d logits and %d log-probs over %d tokens, KL %g, definition %s",
		t.Mismatches, t.Logits, t.LogProbs, t.Tokens, t.KL, v.Digest[:12])
}

// Table is the report for people, a line for each way of computing. One that was never computed says so.
func (v *Report) Table() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "tokens\tlogits\tlog-probs\tmismatches\tKL\t  held against the training forward\t")
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

// Err is nil where every bit agrees and every way of computing was compared.
func (v *Report) Err() error {
	if t := v.Totals(); t.Mismatches > 0 {
		return fmt.Errorf("zero-KLD: %d of %d numbers differ: %s", t.Mismatches, t.Logits+t.LogProbs, v.First)
	}
	for _, c := range v.Comparisons {
		if c.Tokens == 0 {
			return fmt.Errorf("zero-KLD: not compared: %s: give the proof more tokens", c.Name)
		}
	}
	return nil
}

const (
	roundTokens  = 1536 // positions of one round, bounded so that the reference's logits fit in memory
	comparedEach = 3    // times that each is compared: in a pack of training, in prefill, and in a run that decodes
	roundLogits  = 64 << 20
	// longest sequence drawn, unless longer ones are asked for, and most tokens of one that are decoded
	longestProof = 1024
	decoded      = 3 // tokens of a sequence with a decoded row: its prompt, that row, and the token chosen by it
)

// Verify draws random traffic and compares the bits of full-vocabulary logits and of next-token log-probs: the training
// forward of one sequence by itself is held against training forwards of random packings (with and without recomputing
// blocks), and against the rollout engine with random batch compositions, arrival orders, prefill cuts, page sizes,
// shared prefixes and preemption, where tokens arrive in prompts or one by one. Log-probs are taken at temperature 1,
// 0.6 or 1.3, whatever their neighbours' is. Every way has its share of every round. A device that breaks a rule
// without a place in the model is an error: there is nothing to catch.
func Verify(ctx context.Context, r *parallel.Rank, m *model.Model, o VerifyOptions) (*Report, error) {
	if o.Tokens < 1 || o.Longest < 0 {
		return nil, fmt.Errorf("to prove: %d tokens, the longest sequence of %d: want at least 1, and 0 (up to "+
			"%d) or more", o.Tokens, o.Longest, longestProof)
	}
	if b := r.Dev.Definition().Break; b != kernels.BreakNone && !slices.Contains(m.Breaks(), b) {
		return nil, fmt.Errorf("rule %q has no place in this %s model: want one of %q", b, m.Family, m.Breaks())
	}
	p := &proof{
		r: r, m: m, tokens: o.Tokens, longest: min(o.Longest, m.MaxLength),
		rng:    rand.New(rand.NewPCG(o.Seed, 0x6c6f636b73746570)),
		report: &Report{Digest: r.Dev.Definition().Digest()},
	}
	for _, name := range ways {
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

// ways are what is held against the training forward of one sequence by itself, at these places of the report.
var ways = []string{
	wayPacked: "packed training", wayRecomputed: "recomputed training",
	wayPrefill: "chunked prefill", wayDecode: "decode",
}

const (
	wayPacked = iota
	wayRecomputed
	wayPrefill
	wayDecode
)

type proof struct {
	r       *parallel.Rank
	m       *model.Model
	tokens  int // to compare
	longest int
	rng     *rand.Rand
	report  *Report
	// Of the present round: sequences and what the training forward of each alone gave.
	seqs     [][]int32
	logits   [][]float32 // [T*V]
	logprobs [][]float32 // of the next token, [T-1]
}

func (p *proof) round(ctx context.Context, corpus [][]int32) error {
	p.draw(corpus)
	p.logits, p.logprobs = nil, nil
	for i := range p.seqs {
		logits, logprobs := p.train([]int{i}, false)
		p.logits, p.logprobs = append(p.logits, logits...), append(p.logprobs, logprobs...)
	}
	p.packings()
	if err := p.engine(ctx, wayPrefill); err != nil {
		return err
	}
	return p.engine(ctx, wayDecode)
}

// proofSize is how many positions a round of a proof of so many tokens has, and the longest sequence that it may have,
// where one of so many tokens is asked for. A short proof has short rounds.
func proofSize(m *model.Model, tokens, asked int) (budget, longest int) {
	budget = max(64, min(tokens/comparedEach, roundTokens, roundLogits/m.Vocab)) + asked
	return budget, min(max(longestProof, asked), m.MaxLength, budget)
}

// draw makes sequences of skewed lengths, 1 to 64 of them, from random ids and pieces of the corpus; some begin like
// another. One that is long by request has company.
func (p *proof) draw(corpus [][]int32) {
	p.seqs = nil
	budget, longest := proofSize(p.m, p.tokens, p.longest)
	count := []int{1, 2, 3, 4, 7, 16, 33, 64}[p.rng.IntN(8)]
	if p.longest > 0 {
		count = max(count, 4)
	}
	for len(p.seqs) < count && budget > 0 {
		n := min(1+int(float64(longest)*math.Pow(p.rng.Float64(), 2)), budget)
		if len(p.seqs) == 0 {
			n = max(n, min(decoded, longest)) // one row at least is decoded
		}
		if len(p.seqs) == 0 && p.longest > 0 {
			n = longest
		}
		budget -= n
		if len(corpus) > 0 && p.rng.IntN(2) == 0 {
			if s := corpus[p.rng.IntN(len(corpus))]; len(p.seqs) > 0 || len(s) >= decoded {
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

// temperature is that at which sequence i has its log-probs.
func (p *proof) temperature(i int) float32 {
	return []float32{1, 0.6, 1.3}[(p.report.Rounds+i)%3]
}

// train runs the training forward of some sequences as one packed batch and returns each one's logits and next-token
// log-probs.
func (p *proof) train(which []int, recompute bool) (logits, logprobs [][]float32) {
	r := p.r
	defer r.Stack.Release(r.Stack.Mark())
	var seqs [][]int32
	var inv []float32
	for _, i := range which {
		seqs = append(seqs, p.seqs[i])
		inv = append(inv, slices.Repeat([]float32{kernels.Inverse(p.temperature(i))}, len(p.seqs[i]))...)
	}
	ids, targets, l := packed(seqs)
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

// packings compares training forwards of the sequences in another order and in random packs, every second pack with
// blocks recomputed. A round of one pack has it both ways.
func (p *proof) packings() {
	order := p.rng.Perm(len(p.seqs))
	way, packs := wayPacked+p.rng.IntN(2), 0
	for rest := order; len(rest) > 0; packs++ {
		n := 1 + p.rng.IntN(len(rest))
		p.pack(way, rest[:n])
		way, rest = wayPacked+wayRecomputed-way, rest[n:]
	}
	if packs == 1 {
		p.pack(way, order)
	}
}

// pack compares the training forward of some sequences as one batch.
func (p *proof) pack(way int, which []int) {
	logits, logprobs := p.train(which, way == wayRecomputed)
	for j, i := range which {
		p.compare(way, i, 0, logits[j])
		p.compareLogProbs(way, i, 0, logprobs[j])
	}
}

// engine runs the sequences through a rollout engine of random sizes: as prompts, or from a short prompt on by forced
// tokens. Rows of prompts are prefill either way.
func (p *proof) engine(ctx context.Context, way int) error {
	defer p.r.Stack.Release(p.r.Stack.Mark())
	e, err := NewEngine(p.r, p.m, p.r.Stack, p.options())
	if err != nil {
		return err
	}
	order := p.rng.Perm(len(p.seqs))
	reqs := make([]Request, len(order))
	for j, i := range order {
		s := p.seqs[i]
		cut := p.cut(len(s), way)
		reqs[j] = Request{
			ID: uint64(i), Prompt: s[:cut], Forced: s[cut:], MaxTokens: max(len(s)-cut, 1),
			Temperature: p.temperature(i), TopP: 1,
		}
	}
	e.observe = func(s *sequence, position int, logits []float32) {
		switch i := order[s.index]; {
		case position < len(reqs[s.index].Prompt):
			p.compare(wayPrefill, i, position, logits)
		case position < len(p.seqs[i]):
			p.compare(wayDecode, i, position, logits)
		}
	}
	results, err := e.Run(ctx, reqs)
	if err != nil {
		return err
	}
	for j, i := range order {
		n := len(reqs[j].Forced)
		p.compareLogProbs(way, i, len(p.seqs[i])-1-n, results[j].LogProbs[:n])
	}
	p.report.Preempted += e.Preempted
	p.report.Reused += e.Reused
	return nil
}

// options are random sizes of an engine for the round's sequences. Pages are often too few for all at once: some are
// preempted.
func (p *proof) options() Options {
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

// cut is how many tokens of a sequence of n are its prompt. In decoding at least two are not, where there are three.
func (p *proof) cut(n, way int) int {
	cut := n
	if way == wayDecode {
		cut = max(1+p.rng.IntN(min(max(n+1-decoded, 1), 16)), n-longestProof)
	}
	if cut == p.m.MaxLength {
		cut--
	}
	return cut
}

// compare holds logits of consecutive positions of sequence i against the reference.
func (p *proof) compare(which, i, position int, logits []float32) {
	v := p.m.Vocab
	c := &p.report.Comparisons[which]
	for ; len(logits) > 0; logits, position = logits[v:], position+1 {
		want := p.logits[i][position*v : (position+1)*v]
		bad := mismatches(logits[:v], want)
		kl := 0.0
		if bad > 0 {
			kl = divergence(want, logits[:v], kernels.Inverse(p.temperature(i)))
			p.note(c.Name, "logits", i, position, bad)
		}
		c.KL = (c.KL*float64(c.Tokens) + kl) / float64(c.Tokens+1)
		c.Tokens++
		c.Logits += v
		c.Mismatches += bad
	}
}

func (p *proof) compareLogProbs(which, i, position int, logprobs []float32) {
	c := &p.report.Comparisons[which]
	bad := mismatches(logprobs, p.logprobs[i][position:position+len(logprobs)])
	if bad > 0 {
		p.note(c.Name, "log-probs", i, position, bad)
	}
	c.LogProbs += len(logprobs)
	c.Mismatches += bad
}

func (p *proof) note(name, what string, i, position, bad int) {
	if p.report.First == "" {
		p.report.First = fmt.Sprintf("round %d, %s: %d %s differ at position %d of a sequence of %d among %d",
			p.report.Rounds, name, bad, what, position, len(p.seqs[i]), len(p.seqs))
	}
}

func mismatches(got, want []float32) (n int) {
	for i := range got {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			n++
		}
	}
	return n
}

// divergence is KL(p || q) of two rows of logits times inv, in float64.
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

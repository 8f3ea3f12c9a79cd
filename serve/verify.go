package serve

import (
	"context"
	"fmt"
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
	// Reference, on the first rank, computes what everything is compared with. nil: the first rank's replica.
	Reference *model.Model
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
	Compared    []int  // positions, by rank
	Missing     string // a path that one of several ranks did not compare; "": none
	Mesh        string // how ranks divide the model, and what they are compared with; "": there is one rank
	Rounds      int
	Preempted   int
	Reused      int    // rows that sequences found in the prefix cache
	Digest      string // of the definition
	First       string // describes the first mismatch; "": there is none
}

// add adds what another rank or path has compared. KL is the mean over all positions, exactly 0 if every bit agrees.
func (c *Comparison) add(o Comparison) {
	if n := c.Tokens + o.Tokens; n > 0 {
		c.KL = (c.KL*float64(c.Tokens) + o.KL*float64(o.Tokens)) / float64(n)
	}
	c.Tokens += o.Tokens
	c.Logits += o.Logits
	c.LogProbs += o.LogProbs
	c.Mismatches += o.Mismatches
}

// Totals adds the comparisons.
func (v *VerifyReport) Totals() Comparison {
	t := Comparison{Name: "all"}
	for _, c := range v.Comparisons {
		t.add(c)
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
	if v.Mesh != "" {
		fmt.Fprintf(&b, "%s; positions by rank: %d\n", v.Mesh, v.Compared)
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
	if v.Missing != "" {
		return fmt.Errorf("zero-KLD: not compared: %s: raise the number of tokens", v.Missing)
	}
	return nil
}

// Verify compares the bits of full-vocabulary logits and of next-token log-probabilities on random traffic. The
// reference is the training forward of each sequence by itself, on the first rank. It is compared with training
// forwards of random packs, with and without recomputation of blocks, and with the rollout engine in prefill and
// decode, on every rank. The engine has random batch compositions, arrival orders, chunks of prompts, page sizes,
// shared prefixes and preemption. Sequences have temperature 1, 0.6 or 1.3. Every round compares every path. It is an
// error if the device breaks a rule that this model does not use.
func Verify(ctx context.Context, s Ranks, o VerifyOptions) (*VerifyReport, error) {
	if o.Tokens < 1 || o.Tokens > mostTokens || o.MaxLength < 0 {
		return nil, fmt.Errorf("%d tokens, longest sequence %d: want 1 to %d tokens, and a length of 0 (up to "+
			"%d) or more", o.Tokens, o.MaxLength, mostTokens, defaultMaxLength)
	}
	if b := s.Rank.Dev.Definition().Break; b != kernels.BreakNone && !slices.Contains(s.Model.Breaks(), b) {
		return nil, fmt.Errorf("rule %q does not apply to this %s model: want one of %q", b, s.Model.Family,
			s.Model.Breaks())
	}
	if o.MaxLength = min(o.MaxLength, s.Model.MaxLength); o.Reference == nil {
		o.Reference = s.Model
	}
	p := &verifier{Ranks: s, VerifyOptions: o, ranks: make([]*comparer, len(s.Replicas))}
	if err := s.each(func(r *parallel.Rank, m *model.Model) error {
		p.ranks[r.ID] = newComparer(r, m, o.Seed)
		return nil
	}); err != nil {
		return nil, err
	}
	rep := p.report()
	for rep.Totals().Tokens < o.Tokens {
		if err := p.round(ctx); err != nil {
			return nil, err
		}
		p.rounds++
		if rep = p.report(); o.Progress != nil {
			o.Progress(rep.Totals().Tokens)
		}
	}
	return rep, nil
}

// verifier compares what all ranks compute.
type verifier struct {
	Ranks
	VerifyOptions
	rounds int
	ranks  []*comparer // by rank
}

// round compares every path on random traffic of each rank.
func (p *verifier) round(ctx context.Context) error {
	budget, longest := roundSize(p.Model, p.Tokens, p.MaxLength, len(p.ranks))
	for _, v := range p.ranks {
		v.traffic = &traffic{round: p.rounds}
		v.drawSequences(p.Corpus, budget, longest, p.MaxLength)
		v.drawPacks()
		for i := range v.seqs {
			logits, logprobs := v.trainForward(p.Rank, p.Reference, []int{i}, false)
			v.logits, v.logprobs = append(v.logits, logits...), append(v.logprobs, logprobs...)
		}
	}
	for path := pathPacked; path <= pathRecomputed; path++ {
		if err := p.packedForwards(path); err != nil {
			return err
		}
	}
	for path := pathPrefill; path <= pathDecode; path++ {
		if err := p.engineForwards(ctx, path); err != nil {
			return err
		}
	}
	return nil
}

// packedForwards compares training forwards of the packs of all ranks.
func (p *verifier) packedForwards(path int) error {
	most := 0
	for _, v := range p.ranks {
		most = max(most, len(v.packs[path]))
	}
	return p.each(func(r *parallel.Rank, _ *model.Model) error {
		packs := p.ranks[r.ID].packs[path]
		for i := range most {
			if i < len(packs) || p.together() { // a rank with fewer packs is there for the others, with some again
				p.ranks[r.ID].packedForward(path, packs[i%len(packs)])
			}
		}
		return nil
	})
}

// engineForwards runs the sequences of all ranks through rollout engines of random sizes. For pathPrefill they are
// prompts. For pathDecode they are short prompts followed by forced tokens.
func (p *verifier) engineForwards(ctx context.Context, path int) error {
	engines, n := make([]*Engine, len(p.ranks)), 0
	for _, v := range p.ranks {
		defer v.r.Stack.Release(v.r.Stack.Mark())
		v.base, n = n, n+len(v.seqs)
	}
	if err := p.each(func(r *parallel.Rank, _ *model.Model) (err error) {
		engines[r.ID], err = p.ranks[r.ID].submit(path)
		return err
	}); err != nil {
		return err
	}
	results, err := p.replicas(engines).finish(ctx, n)
	if err != nil {
		return err
	}
	for i, v := range p.ranks {
		v.compareResults(path, engines[i], results[v.base:])
	}
	return nil
}

// report adds what the ranks have compared.
func (p *verifier) report() *VerifyReport {
	rep := &VerifyReport{Digest: p.Rank.Dev.Definition().Digest(), Rounds: p.rounds, Mesh: p.mesh()}
	for path, name := range paths {
		c := Comparison{Name: name}
		for _, v := range p.ranks {
			c.add(v.comparisons[path])
		}
		rep.Comparisons = append(rep.Comparisons, c)
	}
	for rank, v := range p.ranks {
		var all Comparison
		for path, c := range v.comparisons {
			if all.add(c); c.Tokens == 0 && len(p.ranks) > 1 {
				rep.Missing = fmt.Sprintf("%s on rank %d", paths[path], rank)
			}
		}
		rep.Compared = append(rep.Compared, all.Tokens)
		rep.Preempted, rep.Reused = rep.Preempted+v.preempted, rep.Reused+v.reused
		if v.mismatch != "" && rep.First == "" {
			if rep.First = v.mismatch; len(p.ranks) > 1 {
				rep.First = fmt.Sprintf("rank %d, %s", rank, v.mismatch)
			}
		}
	}
	return rep
}

// mesh says how ranks divide the model, and what they are compared with; "": there is one rank.
func (p *verifier) mesh() string {
	if len(p.ranks) == 1 {
		return ""
	}
	against := "the first"
	if p.Reference != p.Model {
		against = "one that has all weights"
	}
	return fmt.Sprintf("%d ranks, %s, compared with the training forward of %s", len(p.ranks), p.Model.Placement(),
		against)
}

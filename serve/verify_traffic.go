package serve

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"lockstep/kernels"
	"lockstep/model"
	"lockstep/parallel"
)

// paths are what is compared with the training forward of one sequence by itself, at these places of the report.
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

const (
	roundTokens     = 1536     // most positions of a round, so that the reference logits fit in memory
	comparisonsEach = 3        // of each position: in packed training, in prefill, and in a run that decodes
	roundLogits     = 64 << 20 // most reference logits of a round
	// Longest sequence of a round unless VerifyOptions say otherwise, and most decoded tokens of a sequence.
	defaultMaxLength = 1024
	mostTokens       = 1_000_000_000 // of a proof
	// least tokens of a sequence with a decoded row: its prompt, that row, and the token sampled from it
	minDecoded = 3
)

// traffic is the sequences of a round, with the results of the training forward of each by itself.
type traffic struct {
	round    int
	seqs     [][]int32
	logits   [][]float32                 // [T, V]
	logprobs [][]float32                 // of the next token, [T-1]
	packs    [pathRecomputed + 1][][]int // sequences that a training forward computes as one batch, by path
}

// comparer compares what one rank computes with the results of its traffic.
type comparer struct {
	*traffic
	r           *parallel.Rank
	m           *model.Model // of the rank
	rng         *rand.Rand
	comparisons [pathDecode + 1]Comparison
	preempted   int
	reused      int
	mismatch    string // describes the first; "": there is none

	// Of the engine that runs: the sequence of each request, and the request, whose index is base and its place here.
	base  int
	order []int
	reqs  []Request
}

func newComparer(r *parallel.Rank, m *model.Model, seed uint64) *comparer {
	return &comparer{r: r, m: m, rng: rand.New(rand.NewPCG(seed, 0x6c6f636b73746570+uint64(r.ID)))}
}

// roundSize returns how many positions a round of each of some ranks has, and the length of its longest sequence, to
// compare so many tokens. A sequence of length asked is part of the round, if above 0. Few tokens have short rounds.
func roundSize(m *model.Model, tokens, asked, ranks int) (budget, longest int) {
	budget = max(64, min(tokens/comparisonsEach/ranks, roundTokens, roundLogits/m.Vocab/ranks)) + asked
	return budget, min(max(defaultMaxLength, asked), m.MaxLength, budget)
}

// drawSequences makes 1 to 64 sequences of skewed lengths from random ids and parts of the corpus, as many positions as
// the budget has. Some share a prefix. If a sequence of length asked is part of the round, it has others too.
func (v *comparer) drawSequences(corpus [][]int32, budget, longest, asked int) {
	count := []int{1, 2, 3, 4, 7, 16, 33, 64}[v.rng.IntN(8)]
	if asked > 0 {
		count = max(count, 4)
	}
	for len(v.seqs) < count && budget > 0 {
		n := min(1+int(float64(longest)*math.Pow(v.rng.Float64(), 2)), budget)
		if len(v.seqs) == 0 {
			n = max(n, min(minDecoded, longest)) // at least one row is decoded
		}
		if len(v.seqs) == 0 && asked > 0 {
			n = longest
		}
		budget -= n
		if len(corpus) > 0 && v.rng.IntN(2) == 0 {
			if s := corpus[v.rng.IntN(len(corpus))]; len(v.seqs) > 0 || len(s) >= minDecoded {
				v.seqs = append(v.seqs, slices.Clone(s[:min(n, len(s))]))
				continue
			}
		}
		s := make([]int32, n)
		for i := range s {
			s[i] = v.rng.Int32N(int32(v.m.Vocab))
		}
		if len(v.seqs) > 0 && v.rng.IntN(2) == 0 {
			copy(s[:v.rng.IntN(n+1)], v.seqs[v.rng.IntN(len(v.seqs))])
		}
		v.seqs = append(v.seqs, s)
	}
}

// drawPacks makes random packs of the sequences. Every second one recomputes blocks. A single pack is computed with and
// without recomputation.
func (v *comparer) drawPacks() {
	order := v.rng.Perm(len(v.seqs))
	path := pathPacked + v.rng.IntN(2)
	for rest := order; len(rest) > 0; path = pathPacked + pathRecomputed - path {
		n := 1 + v.rng.IntN(len(rest))
		v.packs[path], rest = append(v.packs[path], rest[:n]), rest[n:]
	}
	if len(v.packs[path]) == 0 {
		v.packs[path] = [][]int{order}
	}
}

// temperature is that of sequence i.
func (t *traffic) temperature(i int) float32 {
	return []float32{1, 0.6, 1.3}[(t.round+i)%3]
}

// trainForward runs the training forward of some sequences as one packed batch. It returns the logits and the
// next-token log-probabilities of each.
func (t *traffic) trainForward(r *parallel.Rank, m *model.Model, sequences []int, recompute bool) (logits,
	logprobs [][]float32) {
	defer r.Stack.Release(r.Stack.Mark())
	var seqs [][]int32
	var inv []float32
	for _, i := range sequences {
		seqs = append(seqs, t.seqs[i])
		inv = append(inv, slices.Repeat([]float32{kernels.Inverse(t.temperature(i))}, len(t.seqs[i]))...)
	}
	ids, targets, l := packSequences(seqs)
	b := model.NewBatch(r, ids, l, nil)
	x := m.TrainForward(r, b, recompute)
	logprob := r.Stack.New(kernels.F32, 1, len(ids))
	m.Head.LogProb(r, logprob, x, model.Targets{IDs: parallel.Upload(r, targets), Inverse: parallel.Upload(r, inv)}, b)
	all := parallel.Download[float32](r, logprob)
	for _, s := range l.Spans {
		mark := r.Stack.Mark()
		logits = append(logits, parallel.Download[float32](r, m.Head.Logits(r, x.RowRange(s.Row, s.Row+s.Rows))))
		r.Stack.Release(mark)
		logprobs = append(logprobs, all[s.Row:s.Row+s.Rows-1])
	}
	return logits, logprobs
}

// packedForward compares the training forward of some sequences as one batch.
func (v *comparer) packedForward(path int, sequences []int) {
	logits, logprobs := v.trainForward(v.r, v.m, sequences, path == pathRecomputed)
	for j, i := range sequences {
		v.compare(path, i, 0, logits[j])
		v.compareLogProbs(path, i, 0, logprobs[j])
	}
}

// submit makes a rollout engine of random sizes on the rank's stack and gives it the sequences; see engineForwards.
func (v *comparer) submit(path int) (*Engine, error) {
	e, err := NewEngine(v.r, v.m, v.r.Stack, v.engineOptions())
	if err != nil {
		return nil, err
	}
	v.order, v.reqs = v.rng.Perm(len(v.seqs)), nil
	for j, i := range v.order {
		s := v.seqs[i]
		cut := v.promptLength(len(s), path)
		q := Request{
			ID: uint64(i), Prompt: s[:cut], Forced: s[cut:], MaxTokens: max(len(s)-cut, 1),
			Temperature: v.temperature(i), TopP: 1,
		}
		if err := e.Submit(v.base+j, q); err != nil {
			return nil, err
		}
		v.reqs = append(v.reqs, q)
	}
	e.onLogits = func(s *sequence, position int, logits []float32) {
		switch i := v.order[s.index-v.base]; {
		case position < len(s.req.Prompt):
			v.compare(pathPrefill, i, position, logits)
		case position < len(v.seqs[i]):
			v.compare(pathDecode, i, position, logits)
		}
	}
	return e, nil
}

// compareResults compares what the engine returned, in the order of requests.
func (v *comparer) compareResults(path int, e *Engine, results []Result) {
	for j, i := range v.order {
		n := len(v.reqs[j].Forced)
		v.compareLogProbs(path, i, len(v.seqs[i])-1-n, results[j].LogProbs[:n])
	}
	v.preempted += e.Preempted
	v.reused += e.Reused
}

// engineOptions are random sizes of an engine for the sequences of the round. Pages are often too few for all sequences
// at once, so some are preempted.
func (v *comparer) engineOptions() Options {
	total, longest := 0, 0
	for _, s := range v.seqs {
		total, longest = total+len(s), max(longest, len(s))
	}
	page := []int{1, 3, 8, 16, 64, 100, 256}[v.rng.IntN(7)]
	prefill := []int{1 + v.rng.IntN(8), 1 + v.rng.IntN(64), 64, 512}[v.rng.IntN(4)]
	return Options{
		Slots: 1 + v.rng.IntN(64), PageRows: page, PrefillRows: prefill,
		Pages: (longest+1+page-1)/page + 1 + v.rng.IntN(max(((total+page-1)/page+len(v.seqs))/(1+v.rng.IntN(8)), 1)),
	}
}

// promptLength is how many of the n tokens of a sequence are its prompt. For pathDecode at least two of three are not.
func (v *comparer) promptLength(n, path int) int {
	cut := n
	if path == pathDecode {
		cut = max(1+v.rng.IntN(min(max(n+1-minDecoded, 1), 16)), n-defaultMaxLength)
	}
	if cut == v.m.MaxLength {
		cut--
	}
	return cut
}

// compare compares logits of consecutive positions of sequence i with the reference.
func (v *comparer) compare(path, i, position int, logits []float32) {
	n := v.m.Vocab
	for ; len(logits) > 0; logits, position = logits[n:], position+1 {
		want := v.logits[i][position*n : (position+1)*n]
		c := Comparison{Tokens: 1, Logits: n, Mismatches: mismatches(logits[:n], want)}
		if c.Mismatches > 0 {
			c.KL = divergence(want, logits[:n], kernels.Inverse(v.temperature(i)))
			v.recordMismatch(path, "logits", i, position, c.Mismatches)
		}
		v.comparisons[path].add(c)
	}
}

func (v *comparer) compareLogProbs(path, i, position int, logprobs []float32) {
	bad := mismatches(logprobs, v.logprobs[i][position:position+len(logprobs)])
	if bad > 0 {
		v.recordMismatch(path, "log-probs", i, position, bad)
	}
	v.comparisons[path].add(Comparison{LogProbs: len(logprobs), Mismatches: bad})
}

func (v *comparer) recordMismatch(path int, what string, i, position, bad int) {
	if v.mismatch == "" {
		v.mismatch = fmt.Sprintf("round %d, %s: %d %s differ at position %d of a sequence of %d among %d", v.round,
			paths[path], bad, what, position, len(v.seqs[i]), len(v.seqs))
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

package optim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// setting is an objective under test.
type setting struct {
	name string
	Settings
}

func (c setting) String() string { return fmt.Sprintf("%s %+v", c.name, c.Settings) }

func (c setting) make(t *testing.T) Objective {
	t.Helper()
	o, err := New(c.name, c.Settings)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// every objective, with the settings that change what it computes.
var settings = []setting{
	{"sft", Settings{}}, {"custom", Settings{}},
	{"policy_gradient", Settings{}}, {"policy_gradient", Settings{ImportanceCap: 1.1}},
	{"policy_gradient", Settings{BandLow: 0.9, BandHigh: 1.2}},
	{"policy_gradient", Settings{BandLow: 0.8, BandHigh: 1.3, ImportanceCap: 1.1, ImportanceLevel: "sequence"}},
	{"policy_gradient", Settings{KLCoef: 0.3, KLEstimator: "k1"}},
	{"policy_gradient", Settings{KLCoef: 0.3, KLEstimator: "k2"}},
	{"ppo", Settings{}}, {"ppo", Settings{DualClip: 1.4}}, {"ppo", Settings{ClipBounds: "absolute", ClipLow: 0.7,
		ClipHigh: 1.1}},
	{"ppo", Settings{DualClip: 1.4, ImportanceCap: 1.05, KLCoef: 0.1}},
	{"grpo", Settings{}}, {"grpo", Settings{KLCoef: 0.04}}, {"dr_grpo", Settings{}}, {"dapo", Settings{}},
	{"gspo", Settings{}}, {"gspo", Settings{ClipLow: 0.1, ClipHigh: 0.1}},
	{"gspo", Settings{ClipLow: 0.1, ClipHigh: 0.1, GSPOGradient: "mean", KLCoef: 0.1}},
	{"gspo", Settings{ClipLow: 0.1, ClipHigh: 0.1, GSPOGradient: "mean", ImportanceCap: 1.05,
		ImportanceLevel: "token"}},
	{"cispo", Settings{}}, {"cispo", Settings{ClipLow: 0.2, ClipHigh: 0.28}},
	{"cispo", Settings{ClipBounds: "absolute", ClipLow: 0.9, ClipHigh: 1.05, ImportanceCap: 1.05}},
	{"dro", Settings{}}, {"dro", Settings{DROQuadratic: "advantage", ImportanceCap: 1.1, KLCoef: 0.2}},
	{"dpo", Settings{}}, {"dpo", Settings{DPOBeta: 0.5, LabelSmoothing: 0.2}}, {"dpo", Settings{DPOLoss: "ipo"}},
	{"dpo", Settings{DPOLoss: "ipo_sum"}},
}

// lengths of the sequences of random rows: pairs, one of a single row.
var lengths = []int{9, 6, 1, 12, 5, 7}

// random makes rows whose first rows of each sequence have no target, with log-ratios of about 0.2; an answer's
// advantage changes on the way, as with a reward for each message.
func random(rng *rand.Rand) Rows {
	r := Rows{Sequences: []int{0}}
	normal := func(at, width float32) float32 { return at + width*float32(rng.NormFloat64()) }
	for s, n := range lengths {
		advantage := [6]float32{0.8, -1.3, -0.4, 0, 1.1, -2}[s]
		weight := float32(1 / float64(5+5*(s/2)))
		for i := range n {
			target := int32(rng.IntN(100))
			if i < n/3 {
				target = -100
			}
			if i == n/2 {
				advantage *= 1.5
			}
			lp := -float32(rng.ExpFloat64())
			old := normal(lp, 0.2)
			r.Targets, r.LogProb, r.Old = append(r.Targets, target), append(r.LogProb, lp), append(r.Old, old)
			r.Rollout, r.Reference = append(r.Rollout, normal(old, 0.15)), append(r.Reference, normal(lp, 0.5))
			r.Advantage, r.Weight = append(r.Advantage, advantage), append(r.Weight, weight)
		}
		r.Sequences = append(r.Sequences, len(r.Targets))
	}
	return r
}

func derivative(o Objective, rows Rows) []float32 {
	d := slices.Repeat([]float32{float32(math.NaN())}, len(rows.Targets)) // every row has to be written
	o.Derivative(d, rows)
	return d
}

func measure(o Objective, rows Rows) Measures {
	var m Measures
	o.Measure(&m, rows)
	return m
}

func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

// sequences are rows of sequences [from, to) as a micro-batch of their own.
func sequences(r Rows, from, to int) Rows {
	part := r.Part(r.Sequences[from], r.Sequences[to])
	for _, at := range r.Sequences[from : to+1] {
		part.Sequences = append(part.Sequences, at-r.Sequences[from])
	}
	return part
}

// cutInvariant checks that derivatives and measures are the same bits for all rows and for parts: pairs of sequences,
// and single rows where the objective says that it can.
func cutInvariant(o Objective, rows Rows) error {
	full, sums := derivative(o, rows), measure(o, rows)
	var parts []float32
	var m Measures
	for s := 0; s < len(rows.Sequences)-1; s += 2 {
		part := sequences(rows, s, s+2)
		parts = append(parts, derivative(o, part)...)
		o.Measure(&m, part)
	}
	if !sameBits(full, parts) || m != sums {
		return fmt.Errorf("pairs of sequences: %v and %+v, all at once: %v and %+v", parts, m, full, sums)
	}
	if o.Reach() == ReachSequence {
		return nil
	}
	for _, n := range []int{1, 3, 16} {
		parts, m = nil, Measures{}
		for from := 0; from < len(rows.Targets); from += n {
			part := rows.Part(from, min(from+n, len(rows.Targets)))
			parts = append(parts, derivative(o, part)...)
			o.Measure(&m, part)
		}
		if !sameBits(full, parts) || m != sums {
			return fmt.Errorf("chunks of %d: %v and %+v, all at once: %v and %+v", n, parts, m, full, sums)
		}
	}
	return nil
}

// The bits do not depend on how rows are cut into chunks and micro-batches.
func TestChunks(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, c := range settings {
		for range 10 {
			if err := cutInvariant(c.make(t), random(rng)); err != nil {
				t.Fatalf("%v: %v", c, err)
			}
		}
	}
}

// centred is a wrong objective: it subtracts the mean of the advantages of its call.
type centred struct{ Objective }

func (c centred) Derivative(d []float32, rows Rows) {
	mean := float32(0)
	for _, a := range rows.Advantage {
		mean += a / float32(len(rows.Advantage))
	}
	rows.Advantage = slices.Clone(rows.Advantage)
	for i := range rows.Advantage {
		rows.Advantage[i] -= mean
	}
	c.Objective.Derivative(d, rows)
}

// chunked is another wrong objective: it sums the loss of its rows before it adds the sum to the step's.
type chunked struct{ Objective }

func (c chunked) Measure(m *Measures, rows Rows) {
	sums := measure(c.Objective, rows)
	sums.Loss += m.Loss
	sums.Targets += m.Targets
	sums.Clipped += m.Clipped
	sums.KL += m.KL
	*m = sums
}

func TestChunksCanFail(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	ppo := setting{"ppo", Settings{}}.make(t)
	for name, o := range map[string]Objective{"derivative": centred{ppo}, "measure": chunked{ppo}} {
		failed := false
		for range 10 {
			failed = failed || cutInvariant(o, random(rng)) != nil
		}
		if !failed {
			t.Errorf("a %s that depends on the chunk was not found", name)
		}
	}
}

// The two-pass path, derivatives worked out before and given to Custom chunk by chunk, gives the bits of the path
// through the vocabulary.
func TestCustom(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for _, c := range settings {
		rows := random(rng)
		full := derivative(c.make(t), rows)
		given := Rows{Targets: rows.Targets, Weight: full}
		var chunks []float32
		for from := 0; from < len(full); from += 7 {
			chunks = append(chunks, derivative(Custom{}, given.Part(from, min(from+7, len(full))))...)
		}
		if !sameBits(full, chunks) {
			t.Errorf("%v: %v in two passes, %v in one", c, chunks, full)
		}
	}
}

// Rows without a target get +0 and are ignored, whatever their other values.
func TestIgnoredRows(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	for _, c := range settings {
		o, rows := c.make(t), random(rng)
		d, m := derivative(o, rows), measure(o, rows)
		other := rows
		for _, v := range []*[]float32{&other.LogProb, &other.Old, &other.Rollout, &other.Reference, &other.Advantage,
			&other.Weight} {
			*v = slices.Clone(*v)
			for i, target := range rows.Targets {
				if target < 0 {
					(*v)[i] = float32(math.NaN())
				}
			}
		}
		if !sameBits(d, derivative(o, other)) || m != measure(o, other) {
			t.Errorf("%v: rows without a target change something", c)
		}
		learned, active := 0, 0
		for i, target := range rows.Targets {
			if target < 0 && math.Float32bits(d[i]) != 0 {
				t.Errorf("%v: row %d has no target and gets %g", c, i, d[i])
			}
			if target >= 0 {
				learned++
			}
			if d[i] != 0 {
				active++
			}
		}
		if m.Targets != learned || active == 0 || m.Loss == 0 {
			t.Errorf("%v: %d of %d targets counted, %d derivatives, loss %g", c, m.Targets, learned, active, m.Loss)
		}
	}
}

// Nothing overflows, for any distance of the policies.
func TestExtremes(t *testing.T) {
	finite := func(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }
	rng := rand.New(rand.NewPCG(11, 12))
	for _, c := range settings {
		o, rows := c.make(t), random(rng)
		for range 20 {
			for _, v := range [][]float32{rows.LogProb, rows.Old, rows.Rollout, rows.Reference} {
				for i := range v {
					v[i] = [4]float32{0, -1e4, -50, -20.5}[rng.IntN(4)]
				}
			}
			for i, d := range derivative(o, rows) {
				if !finite(float64(d)) {
					t.Fatalf("%v: derivative %g at log-probability %g, old %g, rollout %g, reference %g", c, d,
						rows.LogProb[i], rows.Old[i], rows.Rollout[i], rows.Reference[i])
				}
			}
			if m := measure(o, rows); !finite(m.Loss) || !finite(m.KL) || !finite(m.Chosen) || !finite(m.Rejected) {
				t.Fatalf("%v: %+v", c, m)
			}
		}
	}
}

// While the policy is the one that sampled, every ratio is exactly 1: nothing is clipped, and all losses of ratios have
// the derivative of plain policy gradient, bit for bit.
func TestOnPolicy(t *testing.T) {
	rng := rand.New(rand.NewPCG(13, 14))
	rows := random(rng)
	for i := range rows.Advantage {
		rows.Advantage[i] = float32(rng.NormFloat64())
	}
	rows.Old, rows.Rollout = nil, rows.LogProb
	want := make([]float32, len(rows.Targets))
	for i, target := range rows.Targets {
		if target >= 0 {
			want[i] = float32(rows.Weight[i] * -rows.Advantage[i])
		}
	}
	for _, c := range settings {
		if slices.Contains([]string{"sft", "custom", "dpo"}, c.name) || c.KLCoef > 0 || c.GSPOGradient == "mean" {
			continue
		}
		o := c.make(t)
		if got := derivative(o, rows); !sameBits(got, want) {
			t.Errorf("%v: %v, want %v", c, got, want)
		}
		if m := measure(o, rows); m.Clipped != 0 || m.Corrected != 0 {
			t.Errorf("%v: %+v", c, m)
		}
	}
}

// Where the rows of an answer have one advantage and one weight, both gradients of GSPO are equal; otherwise
// they differ.
func TestGSPOGradients(t *testing.T) {
	rng := rand.New(rand.NewPCG(15, 16))
	token := setting{"gspo", Settings{ClipLow: 0.1, ClipHigh: 0.1}}.make(t)
	mean := setting{"gspo", Settings{ClipLow: 0.1, ClipHigh: 0.1, GSPOGradient: "mean"}}.make(t)
	for range 10 {
		rows := random(rng)
		rows.Advantage = spread(rows, []float32{0.8, -1.3, -0.4, 0, 1.1, -2})
		if a, b := derivative(token, rows), derivative(mean, rows); !slices.Equal(a, b) {
			t.Fatalf("token %v, mean %v", a, b)
		}
		rows.Advantage[3] += 1
		if a, b := derivative(token, rows), derivative(mean, rows); slices.Equal(a, b) {
			t.Fatal("another advantage in the middle of an answer made no difference")
		}
	}
}

// Clipped and Corrected count by hand: ratios 1.5, 1.5, 0.5, 0.5, 4 and weights e^0, but for one of 2 and one of 1/2.
func TestCounts(t *testing.T) {
	ln := func(x float64) float32 { return float32(math.Log(x)) }
	rows := Rows{
		Targets: []int32{1, 1, 1, 1, 1}, LogProb: []float32{ln(1.5), ln(1.5), ln(0.5), ln(0.5), ln(4)},
		Old:     make([]float32, 5),
		Rollout: []float32{0, -ln(2), -ln(0.5), 0, 0}, Advantage: []float32{1, -1, 1, -1, -1},
		Weight: slices.Repeat([]float32{1}, 5), Sequences: []int{0, 5},
	}
	for _, c := range []struct {
		setting
		clipped, corrected int
	}{
		{setting{"policy_gradient", Settings{}}, 0, 0},
		{setting{"policy_gradient", Settings{ImportanceCap: 1.5}}, 0, 1},
		{setting{"policy_gradient", Settings{BandLow: 0.6, BandHigh: 5}}, 0, 1},
		{setting{"policy_gradient", Settings{BandLow: 0.6, BandHigh: 1.5}}, 0, 2},
		{setting{"policy_gradient", Settings{BandLow: 0.4, BandHigh: 5, ImportanceLevel: "sequence"}}, 0, 0},
		{setting{"ppo", Settings{}}, 2, 0},
		{setting{"ppo", Settings{DualClip: 3}}, 3, 0},
		{setting{"ppo", Settings{ClipHigh: 0.6}}, 1, 0},
		{setting{"ppo", Settings{ClipLow: 0.6, ClipHigh: 0.6}}, 0, 0},
		{setting{"cispo", Settings{}}, 0, 0},
		{setting{"cispo", Settings{ClipLow: 0.4, ClipHigh: 0.4}}, 5, 0},
		{setting{"cispo", Settings{ClipHigh: 0.6}}, 1, 0},
		{setting{"gspo", Settings{}}, 2, 0}, // s = 2.25^(1/5): both positive rows
		{setting{"dro", Settings{}}, 0, 0},
	} {
		if m := measure(c.make(t), rows); m.Clipped != c.clipped || m.Corrected != c.corrected {
			t.Errorf("%v: %d clipped and %d corrected, want %d and %d", c.setting, m.Clipped, m.Corrected, c.clipped,
				c.corrected)
		}
	}
}

// A pair's measures: log-probabilities and rewards of both sides, and which reward is higher.
func TestPairs(t *testing.T) {
	rows := Rows{
		Targets: []int32{-1, 1, 1, -1, 2, 3, 3}, LogProb: []float32{0, -1, -2, 0, -4, -1, -2},
		Reference: []float32{0, -2, -3, 0, -3, -1, -1},
		Weight:    slices.Repeat([]float32{0.5}, 7), Sequences: []int{0, 3, 5, 6, 7},
	}
	m := measure(setting{"dpo", Settings{DPOBeta: 0.5}}.make(t), rows)
	if m.Pairs != 2 || m.Preferred != 2 || m.Chosen != 1 || m.Rejected != -1 || m.ChosenLogProb != -4 ||
		m.RejectedLogProb != -6 || m.Targets != 5 {
		t.Errorf("%+v", m)
	}
	if want := (math.Log1p(math.Exp(-1.5)) + math.Log1p(math.Exp(-0.5))) / 2; math.Abs(m.Loss-want) > 1e-7 {
		t.Errorf("loss %g, want %g", m.Loss, want)
	}
	start := rows // the reference's weights: neither answer is preferred
	start.Reference = start.LogProb
	if m := measure(setting{"dpo", Settings{DPOBeta: 0.5}}.make(t), start); m.Preferred != 0 ||
		math.Abs(m.Loss-math.Ln2) > 1e-7 {
		t.Errorf("before the first update: %+v", m)
	}
	for name, broken := range map[string]Rows{
		"an odd number of sequences": sequences(rows, 0, 3),
		"weights that differ": {Targets: []int32{1, 1}, LogProb: []float32{0, 0}, Reference: []float32{0, 0},
			Weight: []float32{1, 2}, Sequences: []int{0, 1, 2}},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			derivative(setting{"dpo", Settings{}}.make(t), broken)
		}()
	}
}

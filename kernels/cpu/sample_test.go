package cpu

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"lockstep/kernels"
)

// refSample chooses by the definition in sample.go with a plain sort.
func refSample(exp2 func(float32) float32, x []float32, o kernels.Sampling) int32 {
	def := kernels.Default()
	order := make([]int32, len(x))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(i, j int32) int {
		return cmp.Or(cmp.Compare(x[j], x[i]), cmp.Compare(i, j))
	})
	if o.Temperature == 0 {
		return order[0]
	}
	inv := 1 / o.Temperature
	m := x[order[0]] * inv
	e := make([]float32, len(x))
	for i, v := range x {
		e[i] = exp2(float32((float32(v*inv) - m) * kernels.Log2E))
	}
	var sums []float32
	all := float32(0)
	for from := 0; from < len(e); from += def.VocabBlock {
		lanes := make([]float32, def.Lanes)
		for i, v := range e[from:min(from+def.VocabBlock, len(e))] {
			lanes[i%def.Lanes] += v
		}
		all += refTree(def.Lanes, lanes)
		sums = append(sums, all)
	}
	u := kernels.Uniform(o.Seed, o.Request, o.Index)
	if o.TopK == 0 && o.TopP == 1 {
		edge := u * all
		b := slices.IndexFunc(sums, func(s float32) bool { return s > edge })
		cumulative := float32(0)
		if b > 0 {
			cumulative = sums[b-1]
		}
		last := int32(-1)
		for j := b * def.VocabBlock; j < min((b+1)*def.VocabBlock, len(e)); j++ {
			cumulative += e[j]
			if e[j] > 0 {
				last = int32(j)
			}
			if cumulative > edge {
				return int32(j)
			}
		}
		return last
	}
	n, total := len(x), all
	running := func(n int) (w float32) {
		for _, id := range order[:n] {
			w += e[id]
		}
		return w
	}
	if o.TopK > 0 {
		n = min(n, o.TopK)
		total = running(n)
	}
	if o.TopP < 1 {
		w := float32(0)
		for i, id := range order[:n] {
			if w += e[id]; w/total >= o.TopP {
				n = i + 1
				break
			}
		}
	}
	edge, w := u*running(n), float32(0)
	for _, id := range order[:n] {
		if w += e[id]; w > edge {
			return id
		}
	}
	return -1
}

func sampleAll(dev *Device, logits kernels.Tensor, rows []kernels.Sampling) []int32 {
	ids := make([]int32, len(rows))
	dev.Sample(kernels.WrapI32(ids), logits, rows)
	return ids
}

func TestSampleEqualsDefinition(t *testing.T) {
	for _, kind := range []attnKind{plainKind, ex2hKind} {
		sampleEqualsDefinition(t, attnDevices(t, kind))
	}
}

func sampleEqualsDefinition(t *testing.T, devs []*Device) {
	t.Helper()
	rng := rand.New(rand.NewPCG(31, 32))
	for _, vocab := range []int{1, 2, 17, 512, 1025, 3000, 20_000} {
		const rows = 128
		x := attnRandom(rng, kernels.F32, rows*vocab, 2)
		for i := range x { // exact ties are common in bf16 models
			x[i] = float32(math.Round(float64(x[i])*4) / 4)
		}
		x[rng.IntN(len(x))] = float32(math.Inf(-1)) // a masked id
		settings := make([]kernels.Sampling, rows)
		for i := range settings {
			settings[i] = kernels.Sampling{
				Temperature: []float32{0, 0.3, 1, 1.7, 1e-6, 1e-40}[rng.IntN(6)], TopK: []int{0, 0, 0, 1, 3, 50,
					5000}[rng.IntN(7)],
				TopP: []float32{1, 1, 1, 0.9, 0.5, 1e-6, 0.9999999}[rng.IntN(7)], Seed: rng.Uint64(),
				Request: rng.Uint64(), Index: rng.Uint64N(1000),
			}
		}
		logits := attnTensor(kernels.F32, x, rows, vocab, 1)
		want := make([]int32, rows)
		for r, o := range settings {
			if o.Temperature == 1e-40 {
				o.Temperature = 0 // 1/T is not finite
			}
			want[r] = refSample(devs[0].def.Exp2.Func(), x[r*vocab:][:vocab], o)
		}
		for _, dev := range devs {
			got := sampleAll(dev, logits, settings)
			for r := range rows {
				if got[r] != want[r] {
					t.Fatalf("%s: vocabulary %d, %+v: chose %d, want %d", dev.Name(), vocab, settings[r], got[r],
						want[r])
				}
				if alone := sampleAll(dev, logits.RowRange(r, r+1), settings[r:r+1]); alone[0] != got[r] {
					t.Fatalf("row %d alone chooses %d, in the batch %d", r, alone[0], got[r])
				}
			}
		}
	}
}

// Frequencies of draws against probabilities in float64, by chi-square: with 11 degrees of freedom 40 is passed once in
// 30,000.
func TestSampleFrequencies(t *testing.T) {
	dev := attnDevices(t, plainKind)[0]
	x := []float32{0.5, -1, 2, 0, 0, 1.5, -0.5, 1, 2, -2, 0.25, 1.25}
	for _, c := range []struct {
		o    kernels.Sampling
		keep func(rank int, before float64) bool // rank in the order, probability of those before
	}{
		{kernels.Sampling{Temperature: 1, TopP: 1}, func(int, float64) bool { return true }},
		{kernels.Sampling{Temperature: 2, TopP: 1}, func(int, float64) bool { return true }},
		{kernels.Sampling{Temperature: 1, TopP: 1, TopK: 4}, func(rank int, _ float64) bool { return rank < 4 }},
		{kernels.Sampling{Temperature: 0.7, TopP: 0.8}, func(_ int, before float64) bool { return before < 0.8 }},
	} {
		const draws = 20000
		rows := make([]kernels.Sampling, draws)
		var batch []float32
		for i := range rows {
			rows[i] = c.o
			rows[i].Seed, rows[i].Request, rows[i].Index = 5, uint64(i%100), uint64(i/100)
			batch = append(batch, x...)
		}
		count := make([]float64, len(x))
		for _, id := range sampleAll(dev, kernels.Wrap(batch, draws, len(x)), rows) {
			count[id]++
		}
		want := expected(x, float64(c.o.Temperature), c.keep)
		chi := 0.0
		for j, p := range want {
			if p == 0 {
				if count[j] != 0 {
					t.Errorf("%+v: id %d is not kept and was drawn %v times", c.o, j, count[j])
				}
				continue
			}
			chi += (count[j] - p*draws) * (count[j] - p*draws) / (p * draws)
		}
		if chi > 40 {
			t.Errorf("%+v: chi-square %.1f: drawn %v, expected %v of %d", c.o, chi, count, want, draws)
		}
	}
}

// expected is the distribution over the kept ids.
func expected(x []float32, temperature float64, keep func(int, float64) bool) []float64 {
	p, order, total := make([]float64, len(x)), make([]int, len(x)), 0.0
	for i, v := range x {
		p[i], order[i] = math.Exp(float64(v)/temperature), i
		total += p[i]
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(x[j], x[i]) })
	before, kept := 0.0, 0.0
	for rank, i := range order {
		p[i] /= total
		if !keep(rank, before) {
			before += p[i]
			p[i] = 0
			continue
		}
		before += p[i]
		kept += p[i]
	}
	for i := range p {
		p[i] /= kept
	}
	return p
}

// Samples of one prompt differ; the same keys give the same ids again.
func TestSamplesOfOnePromptDiffer(t *testing.T) {
	rng := rand.New(rand.NewPCG(33, 34))
	dev := attnDevices(t, plainKind)[0]
	const rows, vocab = 32, 2000
	row := attnRandom(rng, kernels.F32, vocab, 1)
	var x []float32
	settings := make([]kernels.Sampling, rows)
	for i := range settings {
		x = append(x, row...)
		settings[i] = kernels.Sampling{Temperature: 1, TopP: 1, Seed: 1, Request: uint64(i)}
	}
	logits := kernels.Wrap(x, rows, vocab)
	first := sampleAll(dev, logits, settings)
	if again := sampleAll(dev, logits, settings); !slices.Equal(first, again) {
		t.Error("the same keys chose other ids")
	}
	distinct := map[int32]bool{}
	for _, id := range first {
		distinct[id] = true
	}
	if len(distinct) < rows*3/4 {
		t.Errorf("%d samples of one nearly flat row have %d different ids", rows, len(distinct))
	}
}

// A draw of exactly the sum of the first block is the first id of the second, though one is so in 2^24 draws.
func TestSampleAtTheEdge(t *testing.T) {
	const half = 515707 // the seed whose number is 1/2
	if u := kernels.Uniform(half, 0, 0); u != 0.5 {
		t.Fatalf("the draw is %v", u)
	}
	block := kernels.Default().VocabBlock
	logits := kernels.Wrap(make([]float32, 2*block), 1, 2*block)
	for _, dev := range attnDevices(t, plainKind) {
		if got := sampleAll(dev, logits, []kernels.Sampling{{Temperature: 1, TopP: 1, Seed: half}}); got[0] !=
			int32(block) {
			t.Errorf("%s draws %d, want %d", dev.Name(), got[0], block)
		}
	}
}

// A row with a NaN or +Inf, wherever it is, gives -1, and its neighbours what they give without it.
func TestSampleNotFinite(t *testing.T) {
	const vocab = 2500
	rng := rand.New(rand.NewPCG(5, 6))
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, kind := range []attnKind{plainKind, ex2hKind} {
		for _, dev := range attnDevices(t, kind) {
			for _, c := range []struct {
				x     float32
				first int
				all   bool
			}{{nan, 0, false}, {nan, 1100, false}, {nan, vocab - 1, false}, {inf, 7, false}, {nan, 0, true}} {
				rows := make([]float32, 2*vocab)
				for i := range rows {
					rows[i] = float32(rng.NormFloat64())
				}
				logits := kernels.Wrap(rows, 2, vocab)
				for _, s := range []kernels.Sampling{{TopP: 1}, {Temperature: 1, TopP: 1}, {Temperature: 1, TopP: 0.3},
					{Temperature: 1, TopP: 1, TopK: 9}, {Temperature: 1, TopP: 0.3, TopK: 900}} {
					both := []kernels.Sampling{s, s}
					want := sampleAll(dev, logits, both)[1]
					whole := slices.Clone(rows[:vocab])
					for i := range vocab {
						if c.all || i == c.first {
							rows[i] = c.x
						}
					}
					got := sampleAll(dev, logits, both)
					if got[0] != -1 || got[1] != want {
						t.Fatalf("%s, %v at %d, %+v: ids %v, want -1 and %d", dev.Name(), c.x, c.first, s, got, want)
					}
					copy(rows, whole)
				}
			}
		}
	}
}

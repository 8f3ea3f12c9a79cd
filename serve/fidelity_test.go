package serve

import (
	"math"
	"slices"
	"strings"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/model"
	"lockstep/parallel"
)

func openCPU(def kernels.Definition) (kernels.Device, error) {
	return cpu.New(def, cpu.Options{Threads: 1})
}

// alternatives parses changes of a definition.
func alternatives(t *testing.T, def kernels.Definition, changes ...string) (list []Alternative) {
	t.Helper()
	for _, text := range changes {
		a, err := ParseAlternative(def, text)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, a)
	}
	return list
}

// encodedLogits are those of a folder whose projections are in codes of a format, by a definition, [tokens, V].
func encodedLogits(t *testing.T, dir string, as model.Encode, def kernels.Definition,
	packs [][]int32) (all []float32) {
	t.Helper()
	dev, err := openCPU(def)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	if err := parallel.Run([]kernels.Device{dev}, func(r *parallel.Rank) error {
		o := model.Options{Encode: as}
		if def.Dot == kernels.DotTC16 {
			o.DType = kernels.BF16
		}
		m, err := model.LoadFolder(dev, dir, "", o)
		if err != nil {
			return err
		}
		for _, ids := range packs {
			all = append(all, allLogits(r, m, ids)...)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// plainFidelity is the mean symmetric KL and the largest, of softmax(factor * logits), by the definition of KL.
func plainFidelity(p, q []float32, vocab int, factor float64) (mean, largest float64) {
	softmax := func(x []float32) (out []float64) {
		sum := 0.0
		for _, v := range x {
			out = append(out, math.Exp(factor*float64(v)))
			sum += out[len(out)-1]
		}
		for i := range out {
			out[i] /= sum
		}
		return out
	}
	rows := len(p) / vocab
	for row := range rows {
		a, b := softmax(p[row*vocab:][:vocab]), softmax(q[row*vocab:][:vocab])
		forward, reverse := 0.0, 0.0
		for i := range a {
			forward += a[i] * math.Log(a[i]/b[i])
			reverse += b[i] * math.Log(b[i]/a[i])
		}
		mean += (forward + reverse) / 2 / float64(rows)
		largest = max(largest, (forward+reverse)/2)
	}
	return mean, largest
}

// The table is that of a plain computation from models whose weights are in codes, and 0 for an equal definition.
func TestFidelity(t *testing.T) {
	def := kernels.Default()
	served(t, "qwen3_moe", def, kernels.F32, func(r *parallel.Rank, s *ServedModel) {
		o := FidelityOptions{Tokens: 2*min(s.Model.MaxLength, fidelityPack) + 9, Seed: 3, Open: openCPU,
			Against: alternatives(t, def, "key_split=2048", "weights=mxfp8,acts=mxfp8", "weights=mxfp8",
				"weights=int4", "weights=mxfp8,acts=mxfp8,coded=experts")}
		f, err := MeasureFidelity(t.Context(), s.Ranks, o)
		if err != nil {
			t.Fatal(err)
		}
		packs := drawPacks(s.Model, o.Tokens, o.Seed)
		var own []float32
		for _, ids := range packs {
			own = append(own, allLogits(r, s.Model, ids)...)
		}
		mean, variance := 0.0, 0.0
		for _, x := range own {
			mean += float64(x) / float64(len(own))
		}
		for _, x := range own {
			variance += (float64(x) - mean) * (float64(x) - mean) / float64(len(own))
		}
		if f.Tokens != o.Tokens || len(packs) != 3 || len(own) != o.Tokens*f.Vocab ||
			math.Abs(f.Factor*math.Sqrt(variance)/2-1) > 1e-9 {
			t.Errorf("%d tokens of %d in %d packs, factor %v of deviation %v", f.Tokens, o.Tokens, len(packs), f.Factor,
				math.Sqrt(variance))
		}
		if x := f.Rows[0]; x.KL != 0 || x.Max != 0 || x.Argmax != 0 {
			t.Errorf("an equal definition: %+v", x)
		}
		for i, a := range o.Against[1:] {
			other := encodedLogits(t, goldens+"qwen3_moe", a.Weights, a.Definition, packs)
			row := f.Rows[i+1]
			kl, largest := plainFidelity(own, other, f.Vocab, f.Factor)
			if !(kl > 0) || math.Abs(row.KL/kl-1) > 1e-6 || math.Abs(row.Max/largest-1) > 1e-6 {
				t.Errorf("%s: KL %v, largest %v; plainly %v, %v", a.Text, row.KL, row.Max, kl, largest)
			}
			moved := 0
			for at := 0; at < len(own); at += f.Vocab {
				p, q := own[at:][:f.Vocab], other[at:][:f.Vocab]
				if slices.Index(p, slices.Max(p)) != slices.Index(q, slices.Max(q)) {
					moved++
				}
			}
			if row.Argmax != float64(moved)/float64(o.Tokens) || row.Setting != a.Text {
				t.Errorf("%s: %v of tokens have another argmax, want %d of %d", row.Setting, row.Argmax, moved,
					o.Tokens)
			}
		}
		if text := f.String(); !strings.Contains(text, "weights=mxfp8,acts=mxfp8") || strings.Count(text, "\n") != 8 {
			t.Error(text)
		}
	})
}

// A symmetric KL of distributions that are known: (3/4, 1/4) and (1/4, 3/4) are ln(3)/2 apart in both directions.
func TestSymmetricKL(t *testing.T) {
	p, q := []float32{float32(math.Log(3)), 0}, []float32{7, 7 + float32(math.Log(3))}
	if d := symmetricKL(p, q, 1); math.Abs(d-math.Log(3)/2) > 1e-6 {
		t.Errorf("%v, want %v", d, math.Log(3)/2)
	}
	p, q = []float32{0, 0}, []float32{float32(math.Log(3)) / 2, 0}
	if d, want := symmetricKL(p, q, 2), math.Log(3)/8; math.Abs(d-want) > 1e-6 { // the directions differ
		t.Errorf("%v, want %v", d, want)
	}
}

func TestFidelityErrors(t *testing.T) {
	def := kernels.Default()
	served(t, "qwen3_moe", def, kernels.F32, func(r *parallel.Rank, s *ServedModel) {
		int4 := alternatives(t, def, "weights=int4")
		two := s.Ranks
		two.Replicas = model.Replicas{s.Model, s.Model}
		for _, c := range []struct {
			ranks  Ranks
			tokens int
			list   []Alternative
			want   string
		}{
			{s.Ranks, 0, int4, "0 tokens"},
			{s.Ranks, -4, int4, "-4 tokens"},
			{s.Ranks, 9, nil, "nothing to compare with"},
			{two, 9, int4, "2 ranks"},
			{s.Ranks, 9, alternatives(t, def, "acts=mxfp8"), "acts=mxfp8: definition.acts"},
		} {
			_, err := MeasureFidelity(t.Context(), c.ranks, FidelityOptions{Tokens: c.tokens, Against: c.list,
				Open: openCPU})
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v, want %q", err, c.want)
			}
		}
		sum := fidelitySum{vocab: 2, factor: 1}
		if err := sum.add([]float32{1, 2}, []float32{1, float32(math.NaN())}); err == nil {
			t.Error("NaN was compared")
		}
	})
}

// Products of codes have weights in codes on the other side: those of the model's numbers.
func TestFidelityOfCodes(t *testing.T) {
	def := kernels.Default()
	def.Dot = kernels.DotTC16
	served(t, "qwen3_moe", def, kernels.BF16, func(r *parallel.Rank, s *ServedModel) {
		a := alternatives(t, def, "weights=fp8,acts=fp8x128")[0]
		o := FidelityOptions{Tokens: 40, Seed: 3, Open: openCPU, Against: []Alternative{a}}
		f, err := MeasureFidelity(t.Context(), s.Ranks, o)
		dir := t.TempDir()
		if err == nil {
			err = s.Model.SaveFolder(dir, "")
		}
		if err != nil {
			t.Fatal(err)
		}
		packs := drawPacks(s.Model, o.Tokens, o.Seed)
		var own []float32
		for _, ids := range packs {
			own = append(own, allLogits(r, s.Model, ids)...)
		}
		kl, _ := plainFidelity(own, encodedLogits(t, dir, a.Weights, a.Definition, packs), f.Vocab, f.Factor)
		if !(kl > 0) || math.Abs(f.Rows[0].KL/kl-1) > 1e-6 {
			t.Errorf("KL %v, plainly %v", f.Rows[0].KL, kl)
		}
	})
}

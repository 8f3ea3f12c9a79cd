package serve

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/model"
	"lockstep/parallel"
)

// repeating is a CPU that repeats sequences of operations, and notes how many tokens each samples.
type repeating struct {
	*cpu.Device
	key     string
	sampled map[string][]int // by key
}

func (d *repeating) Repeat(key string, body func()) {
	d.key = key
	body()
	d.key = ""
}

func (d *repeating) Sample(ids, logits kernels.Tensor, s []kernels.Sampling) {
	d.Device.Sample(ids, logits, s)
	if d.key != "" && !slices.Contains(d.sampled[d.key], len(s)) {
		d.sampled[d.key] = append(d.sampled[d.key], len(s))
	}
}

// A step that decodes has the batch of the next size, of copies of a row that it has. Answers are those of batches that
// are not filled up, whose sequences end at other steps.
func TestDecodeByCaptureSize(t *testing.T) {
	for family, filled := range map[string]bool{"glm5": true, "qwen3_moe": true, "qwen3_5_moe": false} {
		dev, err := cpu.New(kernels.Default(), cpu.Options{Threads: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer dev.Close()
		repeats := &repeating{Device: dev, sampled: map[string][]int{}}
		var answers [2][]Result
		for i, d := range []kernels.Device{dev, repeats} {
			if err := parallel.Run([]kernels.Device{d}, func(r *parallel.Rank) error {
				s, err := Open(nil, r, goldens+family, "", model.Options{DType: kernels.F32})
				if err == nil {
					o := Options{Slots: 11, PageRows: 4, PrefillRows: 512}
					answers[i], _ = generate(t, r, s, o, ladder(t, family))
				}
				return err
			}); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.EqualFunc(answers[0], answers[1], equal) {
			t.Errorf("%s: batches that are filled up give other answers", family)
		}
		want := map[string][]int{"decode 11": {11}, "decode 8": {8}, "decode 4": {4}, "decode 2": {2}, "decode 1": {1}}
		if !filled {
			want = map[string][]int{"decode 11": {11, 10, 9}, "decode 8": {8, 7, 6, 5}, "decode 4": {4, 3},
				"decode 2": {2}, "decode 1": {1}}
		}
		if !maps.EqualFunc(repeats.sampled, want, slices.Equal) {
			t.Errorf("%s: sizes of batches by graph are %v, want %v", family, repeats.sampled, want)
		}
	}
}

// ladder is requests of which one ends after another, the longest ones not last.
func ladder(t *testing.T, family string) (reqs []Request) {
	prompt := goldenIDs(t, family, "ids.0")
	for i := range 11 {
		reqs = append(reqs, Request{ID: uint64(i), Prompt: prompt[i : 4+2*i], MaxTokens: 2 + i*7%11, Temperature: 1,
			TopP: 0.9, Seed: 5})
	}
	return reqs
}

// Verify compares the rows that fill a batch up too.
func TestVerifyFillsUp(t *testing.T) {
	dev, err := cpu.New(kernels.Default(), cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	var compared []int
	for _, d := range []kernels.Device{dev, &repeating{Device: dev, sampled: map[string][]int{}}} {
		if err := parallel.Run([]kernels.Device{d}, func(r *parallel.Rank) error {
			s, err := Open(nil, r, goldens+"qwen3_moe", "", model.Options{DType: kernels.F32})
			if err != nil {
				return err
			}
			rep := verifyOn(t, s, VerifyOptions{Tokens: 2000, Seed: 3})
			compared = append(compared, rep.Comparisons[pathDecode].Logits)
			return rep.Err()
		}); err != nil {
			t.Fatal(err)
		}
	}
	if compared[1] <= compared[0] {
		t.Errorf("%v logits of decoding are compared without rows that fill up and with them", compared)
	}
}

func TestFillUp(t *testing.T) {
	batch := func(cached ...int) (b []scheduled) {
		for _, n := range cached {
			b = append(b, scheduled{&sequence{cached: n}, 1})
		}
		return b
	}
	for _, c := range []struct {
		batch []scheduled
		size  int
		want  string
	}{
		{batch(9), 1, "9"}, {batch(9, 5, 7), 4, "9 5 7 5"}, {batch(600, 512, 513), 4, "600 512 513"},
		{batch(600, 511, 513), 4, "600 511 513 511"}, {batch(3, 4), 768, "3 4"},
	} {
		got := ""
		for _, w := range fillUp(c.batch, c.size) {
			got += fmt.Sprintf(" %d", w.seq.cached)
		}
		if got != " "+c.want {
			t.Errorf("%d rows: sequences of%s, want %s", c.size, got, c.want)
		}
	}
	if got := len(fillUp(batch(make([]int, 70)...), 80)); got != 80 {
		t.Errorf("70 sequences are filled up to %d, want 80", got)
	}
	for n, want := range map[int]int{1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 8: 8, 9: 16, 17: 24, 64: 64, 65: 80, 128: 128,
		129: 160, 260: 320, 512: 512, 513: 1024, 600: 1024} {
		if got := captureSize(n); got != want {
			t.Errorf("%d sequences take the graph of %d, want %d", n, got, want)
		}
	}
}

package data

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// lengths makes a dataset of samples with so many rows.
func lengths(rows ...int) *Dataset {
	d := &Dataset{}
	for i, n := range rows {
		s := Sample{IDs: make([]int32, n), Targets: make([]int32, n)}
		s.IDs[0] = int32(i)
		d.samples = append(d.samples, s)
	}
	return d
}

func randomDataset(seed uint64, n, maxRows int) *Dataset {
	rng := rand.New(rand.NewPCG(seed, 0))
	rows := make([]int, n)
	for i := range rows {
		rows[i] = 1 + rng.IntN(maxRows)
	}
	return lengths(rows...)
}

func TestOrder(t *testing.T) {
	if got, want := fmt.Sprint(Order(1, 0, 10)), "[5 7 0 4 2 6 9 1 3 8]"; got != want {
		t.Errorf("order %s, want %s: a change of it changes every run", got, want)
	}
	seen := map[string]bool{}
	for seed := range uint64(3) {
		for epoch := range 3 {
			o := Order(seed, epoch, 100)
			seen[fmt.Sprint(o)] = true
			slices.Sort(o)
			for i, v := range o {
				if i != v {
					t.Fatalf("seed %d epoch %d is no permutation", seed, epoch)
				}
			}
		}
	}
	if len(seen) != 9 {
		t.Errorf("%d of 9 orders differ", len(seen))
	}
}

// Every place is equally likely for every sample: chi-squared over 5 x 5 with 16 degrees of freedom, 39.3 at p = 0.001.
func TestOrderUniform(t *testing.T) {
	const n, draws = 5, 5000
	var count [n][n]float64
	for e := range draws {
		for at, i := range Order(7, e, n) {
			count[i][at]++
		}
	}
	chi := 0.0
	for _, row := range count {
		for _, c := range row {
			d := c - draws/n
			chi += d * d / (draws / n)
		}
	}
	if chi > 39.3 {
		t.Errorf("chi-squared %v", chi)
	}
}

func TestPacks(t *testing.T) {
	order := []int{0, 1, 2, 3, 4, 5}
	rows := []int{6, 5, 4, 5, 10, 1}
	got := FirstFit(order, func(i int) int { return rows[i] }, 10)
	want := []Pack{{[]int{0, 2}, 10}, {[]int{1, 3}, 10}, {[]int{4}, 10}, {[]int{5}, 1}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// Packs of the first samples that are final are those of all samples, and not only those that are too old to be joined.
func TestFinalPacks(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	young := 0
	for range 200 {
		order, lengths, least := make([]int, 60), make([]int, 60), 10+rng.IntN(30)
		for i := range order {
			order[i], lengths[i] = i, least+rng.IntN(60)
		}
		rows := func(i int) int { return lengths[i] }
		all := FirstFit(order, rows, 100)
		for n := range order {
			some := FirstFit(order[:n], rows, 100)
			var of []int
			for _, p := range some {
				of = append(of, p.Rows)
			}
			final := FinalPacks(of, 100, least)
			if final > 0 && !reflect.DeepEqual(some[:final], all[:final]) {
				t.Fatalf("%d packs are final after %d samples of %v: %v, in all %v", final, n, lengths, some, all)
			}
			if final > len(some)-openPacks {
				young++
			}
		}
	}
	if young < 1000 {
		t.Errorf("%d packs were final before they were too old", young)
	}
}

// Each epoch holds each sample once, whole; packs are within bounds, and well filled.
func TestStreamEpochs(t *testing.T) {
	d := randomDataset(1, 500, 64)
	s := NewStream(d, 3, 128, 2)
	for e := range 2 {
		seen, rows, n := map[int]bool{}, 0, len(s.epoch(e))
		for _, p := range s.Next(n) {
			if p.Rows > 128 {
				t.Fatalf("a pack of %d rows", p.Rows)
			}
			sum := 0
			for k, i := range p.Samples {
				if seen[i] {
					t.Fatalf("sample %d twice in epoch %d", i, e)
				}
				seen[i] = true
				sum += len(d.samples[i].IDs)
				if &s.Samples(p)[k].IDs[0] != &d.samples[i].IDs[0] {
					t.Fatal("Samples gives another sample")
				}
			}
			if sum != p.Rows {
				t.Fatalf("pack of %d rows says %d", sum, p.Rows)
			}
			rows += sum
		}
		if len(seen) != d.Len() {
			t.Fatalf("epoch %d has %d of %d samples", e, len(seen), d.Len())
		}
		if fill := float64(rows) / float64(128*n); fill < 0.95 {
			t.Errorf("packs are %.3f full", fill)
		}
	}
	if rest := s.Next(1); rest != nil {
		t.Fatalf("after its end the stream gives %v", rest)
	}
}

// Resumed at any step, also from JSON and at its end, a stream goes on with the same packs.
func TestStreamResume(t *testing.T) {
	d := randomDataset(2, 60, 64)
	for _, epochs := range []int{0, 3} {
		whole := NewStream(d, 5, 100, epochs)
		steps := max(whole.Steps(4), 40*(1-epochs))
		var states []StreamState
		var all [][]Pack
		for range steps {
			states = append(states, whole.State())
			all = append(all, whole.Next(4))
		}
		states = append(states, whole.State())
		if epochs > 0 && (whole.Next(4) != nil || len(all[steps-1]) == 0) {
			t.Fatalf("%d steps are not what the stream has", steps)
		}
		for k, state := range states {
			text, err := json.Marshal(state)
			if err != nil {
				t.Fatal(err)
			}
			var back StreamState
			if err := json.Unmarshal(text, &back); err != nil {
				t.Fatal(err)
			}
			s := NewStream(d, 5, 100, epochs)
			if err := s.Resume(back); err != nil {
				t.Fatal(err)
			}
			for step := k; step < steps; step++ {
				if got := s.Next(4); !reflect.DeepEqual(got, all[step]) {
					t.Fatalf("resumed at %d, step %d is %v, want %v", k, step, got, all[step])
				}
			}
		}
	}
}

func TestStreamResumeErrors(t *testing.T) {
	d := randomDataset(2, 60, 64)
	state := NewStream(d, 5, 100, 2).State()
	other := randomDataset(2, 60, 64)
	other.samples[59].Targets[0]++
	for want, f := range map[string]func() error{
		"other data: seed 5": func() error { return NewStream(d, 6, 100, 2).Resume(state) },
		"packs of 100":       func() error { return NewStream(d, 5, 101, 2).Resume(state) },
		"samples":            func() error { return NewStream(other, 5, 100, 2).Resume(state) },
		"pack 99":            func() error { bad := state; bad.Pack = 99; return NewStream(d, 5, 100, 2).Resume(bad) },
		"epoch -1":           func() error { bad := state; bad.Epoch = -1; return NewStream(d, 5, 100, 2).Resume(bad) },
	} {
		wantError(t, want, f)
	}
}

func TestStreamPanics(t *testing.T) {
	defer func() {
		if x := recover(); x == nil || !strings.Contains(fmt.Sprint(x), "sample 1 has 11 rows") {
			t.Errorf("%v", x)
		}
	}()
	NewStream(lengths(10, 11), 1, 10, 1)
}

func BenchmarkEpoch(b *testing.B) {
	s := NewStream(randomDataset(1, 20000, 40), 1, 1024, 0)
	for i := 0; b.Loop(); i++ {
		s.epoch(i)
	}
}

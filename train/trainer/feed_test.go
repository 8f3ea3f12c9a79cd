package trainer_test

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"lockstep/data"
	"lockstep/model"
	"lockstep/parallel"
	"lockstep/train/testshape"
	"lockstep/train/trainer"
)

// feedBatch is packs of one and of several segments of 64 rows.
func feedBatch() trainer.GlobalBatch {
	var packs [][]data.Sample
	for i, rows := range []int{90, 7, 70, 30, 99, 9, 64} {
		packs = append(packs, []data.Sample{sequence(int32(3*i+1), rows)})
	}
	return trainer.Supervised(packs)
}

// feed takes a step whose packs come in groups that are drawn, with packs among them that are refused.
func feed(t *testing.T, tr *trainer.Trainer, step int, batch trainer.GlobalBatch, rng *rand.Rand) trainer.StepResult {
	t.Helper()
	var known atomic.Int64 // rows
	f := tr.Feed(step, func(b *trainer.Batch) { known.Add(int64(len(b.Rows.LogProb))) })
	bad := trainer.Sample{Sample: data.Sample{IDs: []int32{1, 1 << 20}, Targets: []int32{1, 2}}}
	refused := func(sample string, packs ...[]trainer.Sample) {
		if err := f.Put(packs...); err == nil || !strings.Contains(err.Error(), sample+": row 1: token 1048576") {
			t.Errorf("a token that is not in the vocabulary: error %v", err)
		}
	}
	for at := 0; at < len(batch.Packs); {
		n := min(1+rng.IntN(3), len(batch.Packs)-at)
		next := slices.Clone(batch.Packs[at : at+n])
		refused(fmt.Sprintf("pack %d, sample 1", n), append(next, []trainer.Sample{next[0][0], bad})...)
		if at == 0 { // has no weights
			refused("pack 0, sample 1", []trainer.Sample{{Sample: next[0][0].Sample}, bad})
		}
		if err := f.Put(batch.Packs[at : at+n]...); err != nil {
			t.Error(err)
		}
		at += n
		rows := int64(trainer.CountRows(batch.Packs[:at]))
		for began, late := time.Now(), rng.IntN(3) > 0; late && known.Load() < rows; { // what is next comes late
			if time.Since(began) > time.Minute {
				t.Fatalf("log-probabilities of %d of %d rows are known while nothing comes", known.Load(), rows)
			}
			if err := f.Put(); err != nil {
				t.Error(err)
			}
		}
	}
	refusals(t, tr, f, batch, bad)
	res, err := f.Close(batch.Scale)
	if err != nil {
		t.Fatal(err)
	}
	if n := int(known.Load()); n != res.Tokens || n != trainer.CountRows(batch.Packs) {
		t.Errorf("log-probabilities of %d rows are known, of %d", n, res.Tokens)
	}
	for what, err := range map[string]error{"a pack joins": f.Put(batch.Packs[0]), "nothing closes": closing(f)} {
		if err == nil || err.Error() != fmt.Sprintf("step %d has been closed", step) {
			t.Errorf("%s a step that has been taken: error %v", what, err)
		}
	}
	return res
}

// refusals asks a step whose packs are all there for what it cannot do, which leaves them as they are.
func refusals(t *testing.T, tr *trainer.Trainer, f *trainer.Feed, batch trainer.GlobalBatch, bad trainer.Sample) {
	t.Helper()
	other := tr.Feed(7, nil)
	for want, err := range map[string]error{
		"pack 1, sample 0: row 1: token 1048576": closing(f, batch.Packs[0], []trainer.Sample{bad}),
		"pack 0, sample 0: has no tokens":        closing(f, []trainer.Sample{{}}),
		"step 7 cannot begin":                    other.Put(batch.Packs[0]),
		"step 7 cannot begin, step":              closing(other, batch.Packs[0]),
	} {
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}

// closing is the error of a Close.
func closing(f *trainer.Feed, packs ...[]trainer.Sample) error {
	_, err := f.Close(1, packs...)
	return err
}

// A step without packs is not taken, whether closed at once or after a pack that was refused, and the trainer takes the
// next.
func TestFeedEmpty(t *testing.T) {
	s, err := testshape.Parse([]string{"parallel.ranks=1"})
	if err != nil {
		t.Fatal(err)
	}
	onRanks(t, s, 1, 0, false, func(r *parallel.Rank, _ model.Replicas, tr *trainer.Trainer) {
		f := tr.Feed(1, nil)
		if err := f.Put([]trainer.Sample{{}}); err == nil {
			t.Error("a sample of no tokens is put")
		}
		for range 2 {
			if err := closing(f); err == nil || err.Error() != "step 1 has no packs" {
				t.Errorf("a step without packs: error %v", err)
			}
		}
		if res := tr.Step(1, feedBatch()); res.Tokens != trainer.CountRows(feedBatch().Packs) {
			t.Errorf("%d tokens", res.Tokens)
		}
	})
}

// However the packs of a step come, it has the bits of all at once on one rank: weights, states, loss and norm, on any
// ranks whose copies are carried out late.
func TestFeed(t *testing.T) {
	batch := feedBatch()
	run := func(ranks int, seed uint64, set ...string) (sum [sha256.Size]byte, results []trainer.StepResult) {
		s, err := testshape.Parse(append([]string{"definition.segment=64", "model.config.num_hidden_layers=4",
			fmt.Sprintf("parallel.ranks=%d", ranks)}, set...))
		if err != nil {
			t.Fatal(err)
		}
		rng := rand.New(rand.NewPCG(seed, 1))
		onRanks(t, s, ranks, seed, seed%2 == 1, func(r *parallel.Rank, _ model.Replicas, tr *trainer.Trainer) {
			for step := 1; step <= 2; step++ {
				if seed == 0 {
					results = append(results, tr.Step(step, batch))
				} else {
					results = append(results, feed(t, tr, step, batch, rng))
				}
			}
			sum = finished(t, tr.Model, tr)
		})
		return sum, results
	}
	for base, meshes := range map[string][]string{
		"model.dtype=bf16 model.config.num_key_value_heads=2": {"", "2", "4", "4 parallel.context=2",
			"2 parallel.stages=2", "4 parallel.stages=4 pipeline.schedule=zero-bubble",
			"2 parallel.stages=2 pipeline.schedule=interleaved", "2 parallel.stages=2 pipeline.schedule=stream",
			"4 parallel.stages=4 pipeline.schedule=stream"},
		"lora.rank=4": {"2 parallel.experts=2", "3 parallel.weights=sharded run.micro_batch=2",
			"2 parallel.experts=2 parallel.interleave=2 run.micro_batch=2", "2 offload.weights=0"},
		"lora.rank=4 lora.dropout=0.2": {"1 offload.optimizer=true offload.ring=0.0001", "2 run.micro_batch=2",
			"2 parallel.stages=2 pipeline.schedule=stream run.micro_batch=2"},
	} {
		want, results := run(1, 0, strings.Fields(base)...)
		for i, mesh := range meshes {
			ranks, set := 1, strings.Fields(mesh)
			if len(set) > 0 {
				fmt.Sscan(set[0], &ranks)
				set = set[1:]
			}
			got, measured := run(ranks, uint64(i+1), append(strings.Fields(base), set...)...)
			if got != want || !slices.Equal(measured, results) {
				t.Errorf("%s, mesh %q: other bits, or results %v, want %v", base, mesh, measured, results)
			}
		}
	}
}

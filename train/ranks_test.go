package train

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/configs"
	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/model"
	"lockstep/parallel"
	"lockstep/train/runlog"
	"lockstep/train/setup"
	"lockstep/train/testshape"
)

// delayedRanks are devices of a shape's ranks, whose copies are carried out late, at moments drawn by a seed; 0: at
// once.
func delayedRanks(t *testing.T, s *configs.Shape, seed uint64) (list []*cpu.Device) {
	t.Helper()
	for rank := range s.Parallel.Ranks {
		delay := seed
		if seed > 0 {
			delay += uint64(rank)
		}
		dev, err := cpu.New(setup.Definition(s), cpu.Options{Threads: 1, DelayCopies: delay})
		if err != nil {
			t.Fatal(err)
		}
		closeAtEnd(t, dev)
		list = append(list, dev)
	}
	return list
}

// closeAtEnd closes a device when the test has ended.
func closeAtEnd(t *testing.T, dev kernels.Device) {
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
}

// runDevices trains on given devices, one for each rank. A run whose context has ended takes one step and saves.
func runDevices[D kernels.Device](ctx context.Context, t *testing.T, s *configs.Shape, out string, list []D) error {
	t.Helper()
	var devices []kernels.Device
	for _, d := range list {
		devices = append(devices, d)
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	w, err := parallel.Open(devices, parallel.Mesh{Experts: s.Parallel.Experts, Context: s.Parallel.Context})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := setup.CountRanks(setup.Device(s), &s.Parallel); err != nil {
		t.Fatal(err)
	}
	return w.Lead(func(r *parallel.Rank) error {
		j := &job{ctx: ctx, shape: s, options: Options{Out: out, Resume: runlog.HasRun(out), Log: log}, folder: out,
			world: w}
		return errors.Join(j.execute(r), j.close())
	})
}

// wholeDigest is what a run leaves: its last checkpoint, weights, adapters and optimizer's state, and its answers.
func wholeDigest(t *testing.T, out string) string {
	t.Helper()
	last, files := lastSums(t, out)
	list := []string{last}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(name, ".safetensors") {
			list = append(list, name+" "+files[name][:16])
		}
	}
	if len(list) < 3 {
		t.Fatalf("a checkpoint of %v", list)
	}
	return strings.Join(append(list, episodes(t, out)), "\n")
}

// ranksCases are shapes whose runs are held against those of one rank.
func ranksCases(t *testing.T) map[string][]string {
	rl := slices.Clip(append(testshape.RL(), "warm_start.steps=2", "run.steps=2"))
	few := []string{"run.steps=3", "optim.warmup_steps=0"}
	return map[string][]string{
		"full": few,
		"bf16": append(few, "model.dtype=bf16", "definition.dot=tc16", "run.packs=5"),
		"lora": append(few, "lora.rank=4", "lora.target_parameters=mlp.experts.down_proj", "run.packs=7"),
		"dense lora": append(few, "lora.rank=4", "lora.targets=q_proj,o_proj", "run.packs=7", "run.recompute=full",
			"model.config.num_hidden_layers=4"),
		"tied":  append(few, "model.config.tie_word_embeddings=true", "model.dtype=bf16", "run.recompute=full"),
		"micro": append(append(few, divided...), "run.packs=7", "run.micro_batch=2", "data.pack_rows=100"),
		"long": append(append(few, divided...), "run.packs=5", "data.pack_rows=300", "model.dtype=bf16",
			"lora.rank=4", "lora.targets=q_proj,o_proj", "lora.target_parameters=mlp.experts.gate_up_proj"),
		"epoch": {"run.steps=0", "run.epochs=1", "optim.warmup_steps=0", "run.packs=3",
			"data.countdown.train=60"},
		"pairs": append(append(tinyPairs(t), divided...), "run.steps=3", "optim.warmup_steps=0"),
		"grpo":  rl,
		"dapo": append(append(rl, divided...), "rl.objective=dapo", "rl.kl_coef=0.1", "rl.minibatches=2",
			"rl.proximal=true"),
		"stale": append(rl, "rl.staleness=2", "rollout.slots=6", "run.steps=4"),
		"qat":   append(few, "model.weights=int4", "run.packs=7", "model.dtype=bf16"),
		"qat fp8": append(few, "model.weights=fp8", "run.packs=5", "definition.dot=tc16", "model.dtype=bf16",
			"definition.acts=fp8x128", "definition.grads=mxfp8"),
		"grpo in mxfp4": append(rl, "model.weights=mxfp4", "model.coded=projections",
			"definition.acts=mxfp8"),
		"lora on int4": append(few, "model.weights=int4", "definition.acts=mxfp8", "definition.grads=mxfp8",
			"lora.rank=4", "run.packs=7",
			"lora.target_parameters=mlp.experts.down_proj"),
		"rows": append(append(tinyDSA(few...), divided...), "model.dtype=bf16", "definition.dot=tc16", "run.packs=3",
			"run.steps=2", "data.pack_rows=200", "lora.rank=4", "lora.targets=q_b_proj,kv_b_proj,o_proj",
			"run.recompute=halves"),
		"indexer": tinyDSA("indexer.stage=sparse", "run.steps=3", "optim.warmup_steps=0"),
		"dense":   tinyDSA("indexer.stage=dense", "run.steps=3", "optim.warmup_steps=0"),
	}
}

// fourBlocks are enough for two chunks on each of two ranks.
const fourBlocks = "model.config.num_hidden_layers=4"

// pipelinesOf are the pipelines of a case, each settings behind its number of ranks. Without any it is refused.
func pipelinesOf(name string) map[string]int {
	switch name {
	case "indexer", "dense", "rows":
		return nil
	case "full", "micro":
		return map[string]int{"pipeline.schedule=1f1b pipeline.blocks=1,1": 2,
			"pipeline.schedule=1f1b pipeline.blocks=1.5,0.5": 2}
	case "tied", "grpo", "qat fp8":
		return map[string]int{"pipeline.schedule=stream pipeline.blocks=0.5,1.5": 2}
	case "dense lora": // has two blocks for each of two ranks
		return map[string]int{"pipeline.schedule=1f1b pipeline.ahead=2": 4, "pipeline.schedule=zero-bubble": 2,
			"pipeline.schedule=zero-bubble run.recompute=none pipeline.blocks=1.5,2.5 pipeline.ahead=3": 2,
			"pipeline.schedule=interleaved": 2}
	case "pairs", "stale":
		return map[string]int{"pipeline.schedule=zero-bubble": 2,
			"pipeline.schedule=interleaved pipeline.blocks=0.5,1.5,1.5,0.5 " + fourBlocks: 2}
	}
	return map[string]int{"pipeline.schedule=zero-bubble": 2}
}

// divided are settings of a model whose heads four ranks divide, and of packs that have several segments.
var divided = []string{"definition.segment=64", "model.config.num_attention_heads=4",
	"model.config.num_key_value_heads=4"}

// Any number of ranks come to the files of one, whenever their copies are carried out. Every case has 2 to 4
// ranks, every second one 8, replicated and sharded weights, experts apart, and two lanes; which of them meet changes
// from case to case.
func TestRanks(t *testing.T) {
	cases := ranksCases(t)
	for i, name := range slices.Sorted(maps.Keys(cases)) {
		set := cases[name]
		weights := func(n int) string { return "parallel.weights=" + []string{"replicated", "sharded"}[n%2] }
		t.Run(name, func(t *testing.T) {
			run := func(ranks int, seed uint64, more ...string) string {
				s, err := testshape.Parse(slices.Concat([]string{"run.save_every=2"}, set,
					[]string{fmt.Sprintf("parallel.ranks=%d", ranks)}, more))
				if err != nil {
					t.Fatal(err)
				}
				out := filepath.Join(t.TempDir(), "run")
				if err := runDevices(context.Background(), t, s, out, delayedRanks(t, s, seed)); err != nil {
					t.Fatal(err)
				}
				return wholeDigest(t, out)
			}
			want := run(1, 0)
			for seed, ranks := range []int{2, 3, 4, 8} {
				if ranks == 8 && (i+1)%4 > 1 { // every second case, replicated and sharded
					continue
				}
				mesh := []string{weights(i + seed)}
				if got := run(ranks, uint64(seed), mesh...); got != want {
					t.Errorf("%d ranks, %v:\n%s\nwant\n%s", ranks, mesh, got, want)
				}
			}
			for seed, ranks := range []int{2, 3, 4} {
				mesh := []string{fmt.Sprintf("parallel.experts=%d", ranks), weights(i/2 + seed)}
				if name == "dense lora" || (i+seed)%2 == 0 { // with blocks enough to fill a slot twice
					mesh = append(mesh, "parallel.interleave=2", "run.micro_batch=2")
				}
				if got := run(ranks, uint64(seed), mesh...); got != want {
					t.Errorf("%d ranks, %v:\n%s\nwant\n%s", ranks, mesh, got, want)
				}
			}
			for pipeline, ranks := range pipelinesOf(name) {
				mesh := append(strings.Fields(pipeline), "parallel.stages=0")
				if name == "full" || name == "lora" {
					mesh = append(mesh, "offload.optimizer=true", "offload.ring=0.0001", "run.save_every=0")
				}
				if name == "lora" {
					mesh = append(mesh, "offload.host_update=0.0001")
				}
				alone := want
				if strings.Contains(pipeline, fourBlocks) {
					alone = run(1, 0, fourBlocks)
				}
				if got := run(ranks, 7, mesh...); got != alone {
					t.Errorf("%d stages, %s:\n%s\nwant\n%s", ranks, pipeline, got, alone)
				}
			}
			if slices.Contains(set, divided[1]) {
				for seed, mesh := range [][]string{{"parallel.context=2"},
					{"parallel.context=4", "parallel.weights=sharded"},
					{"parallel.context=2", "parallel.experts=4", "parallel.interleave=2", "run.micro_batch=2"}} {
					if got := run(4, uint64(seed), mesh...); got != want {
						t.Errorf("4 ranks, %v:\n%s\nwant\n%s", mesh, got, want)
					}
				}
			}
			if run(2, 9, "run.seed=2") == want {
				t.Error("another order of the data gives the same files: the test cannot fail")
			}
		})
	}
}

// Every family comes to the same files on three ranks, with all weights or adapters of every projection trained; the
// one on replicated weights and on sharded ones with experts apart, the other the other way about, alternately.
func TestRanksFamilies(t *testing.T) {
	mixtures, families := 0, 0
	eachFamily(t, func(t *testing.T, dir string, vocab int) {
		families++
		targets, parameters := everyProjection(t, dir)
		lines := filepath.Join(t.TempDir(), "texts.jsonl")
		writeIDs(t, lines, ragged(vocab, 24, 18), 18)
		shape := fmt.Appendf(nil, adapted, dir, "bf16", "tc16", lines, strings.Join(targets, `", "`), parameters)
		for i, mode := range []string{"lora.rank=3", "lora.rank=0"} {
			run := func(set ...string) (string, error) {
				s, err := configs.Parse("ranks.toml", shape, append(set, mode, "run.micro_batch=1"))
				if err != nil {
					t.Fatal(err)
				}
				out := filepath.Join(t.TempDir(), "run")
				list := delayedRanks(t, s, uint64(len(set)))
				if err := runDevices(context.Background(), t, s, out, list); err != nil {
					return "", err
				}
				return wholeDigest(t, out), nil
			}
			want, err := run()
			if err != nil {
				t.Fatal(err)
			}
			meshes := [][]string{nil, {"parallel.experts=3", "parallel.weights=sharded"}}
			if (families+i)%2 == 0 {
				meshes = [][]string{{"parallel.weights=sharded"}, {"parallel.experts=3"}}
			}
			for _, mesh := range meshes {
				got, err := run(append(mesh, "parallel.ranks=3")...)
				if err != nil && strings.Contains(err.Error(), "has no experts here") {
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				if slices.Contains(mesh, "parallel.experts=3") {
					mixtures++
				}
				if got != want {
					t.Errorf("%s, %s:\n%s\nwant\n%s", mode, mesh, got, want)
				}
			}
		}
	})
	if mixtures < 16 {
		t.Errorf("%d runs were expert parallel: the test shows little", mixtures)
	}
}

// A run that is stopped after each step and goes on with another number of ranks comes to the bits of one that is not.
func TestRanksChange(t *testing.T) {
	for name, set := range map[string][]string{
		"full": {"run.steps=5", "model.dtype=bf16"},
		"lora": {"run.steps=5", "lora.rank=4"},
		"dapo": append(testshape.RL(), "warm_start.steps=1", "run.steps=4", "rl.objective=dapo", "rl.kl_coef=0.1"),
	} {
		t.Run(name, func(t *testing.T) {
			shape := func(ranks int) *configs.Shape {
				s, err := testshape.Parse(append(slices.Clone(set), "optim.warmup_steps=0",
					fmt.Sprintf("parallel.ranks=%d", ranks)))
				if err != nil {
					t.Fatal(err)
				}
				if ranks == 8 || name == "dapo" && ranks > 1 {
					s.Parallel.Weights = "sharded"
				} else if s.Data.EvalSamples = 0; ranks == 4 && name != "dapo" {
					s.Parallel.Experts = 4
				} else if ranks == 2 && name != "dapo" {
					s.Parallel.Stages, s.Pipeline.Schedule = 2, "zero-bubble"
				}
				return s
			}
			whole, out := filepath.Join(t.TempDir(), "whole"), filepath.Join(t.TempDir(), "run")
			s := shape(1)
			if err := runDevices(context.Background(), t, s, whole, delayedRanks(t, s, 0)); err != nil {
				t.Fatal(err)
			}
			stopped, stop := context.WithCancel(context.Background())
			stop()
			for i, ranks := range []int{1, 8, 2, 4} {
				s := shape(ranks)
				err := runDevices(stopped, t, s, out, delayedRanks(t, s, uint64(i)))
				if !errors.Is(err, ErrInterrupted) {
					t.Fatalf("%d ranks: error %v, want an interrupted run", ranks, err)
				}
			}
			s = shape(1)
			if err := runDevices(context.Background(), t, s, out, delayedRanks(t, s, 0)); err != nil {
				t.Fatal(err)
			}
			if got, want := wholeDigest(t, out), wholeDigest(t, whole); got != want {
				t.Errorf("%s\nwant\n%s", got, want)
			}
		})
	}
}

// Heads that cannot be divided are refused in one line, with what can; packs that are too short are told.
func TestContextRefused(t *testing.T) {
	m := described(t, filepath.Join("..", "model", "testdata", "glm5"))
	if err := m.CheckContext(16); err != nil {
		t.Errorf("rows of any number of ranks: %v", err)
	}
	m.Indexing = model.IndexersSparse
	if err := m.CheckContext(2); err == nil || !strings.Contains(err.Error(), "indexers do not learn on ranks") {
		t.Errorf("an indexer that learns: %v", err)
	}
	for dir, want := range map[string]string{
		"kimi_k2":   "ranks do not divide the 4 heads of num_attention_heads (layer 0 of deepseek_v3): set 1 or 2 or 4",
		"qwen3_moe": "ranks do not divide the 2 heads of num_key_value_heads (layer 0 of qwen3_moe): set 1 or 2",
		"qwen3_5":   "ranks do not divide the 2 heads of linear_num_key_heads (layer 0 of qwen3_5_text): set 1 or 2",
	} {
		m := described(t, filepath.Join("..", "model", "testdata", dir))
		if err := m.CheckContext(16); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", dir, err, want)
		}
		if err := m.CheckContext(1); err != nil {
			t.Errorf("%s: %v", dir, err)
		}
	}
	for _, c := range []struct {
		set  string
		want bool
	}{{"definition.segment=64", false}, {"definition.segment=128", true}, {"run.micro_batch=2", false}} {
		s, err := testshape.Parse([]string{c.set, "parallel.ranks=2", "parallel.context=2"})
		if err != nil {
			t.Fatal(err)
		}
		if got := shortPacks(s); (got != "") != c.want || c.want && !strings.Contains(got, "have 1 segments") {
			t.Errorf("%s: %q", c.set, got)
		}
	}
}

// Models whose blocks no pipeline can have are refused in one line; the bubble is told.
func TestStagesRefused(t *testing.T) {
	for want, set := range map[string][]string{
		"3 stages have a block each, and qwen3_moe has 2: set 1, or at most as many": {
			"parallel.ranks=3", "parallel.stages=3"},
		"3 chunks of 2 stages have a block each, and qwen3_moe has 4: set fewer": {fourBlocks, "parallel.ranks=2",
			"parallel.stages=0", "pipeline.schedule=interleaved", "pipeline.chunks=3"},
		"[2 1] are 3 blocks, and qwen3_moe has 4 in 2 stages of 1 chunks: change it or leave it out": {fourBlocks,
			"parallel.ranks=2", "parallel.stages=2", "pipeline.blocks=2,1"},
		"want 1, or one for each of 2 ranks: several pipelines": {"parallel.ranks=2", "parallel.stages=2"},
		"keys that an indexer of glm_moe_dsa has selected are not sent to the next stage: set 1": tinyDSA(
			"parallel.ranks=2", "parallel.stages=0"),
	} {
		s, err := testshape.Parse(set)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(want, "want 1") { // of all GPUs, which were two
			s.Parallel.Stages = 4
		}
		err = runDevices(context.Background(), t, s, filepath.Join(t.TempDir(), "run"), delayedRanks(t, s, 0))
		if err == nil || !strings.Contains(err.Error(), ": "+want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%v, want %q", err, want)
		}
	}
	for set, want := range map[string]string{"": " 11% ", "pipeline.schedule=interleaved": " 6% ",
		"pipeline.schedule=zero-bubble": " 4% ", "pipeline.schedule=zero-bubble run.recompute=full": " 6% ",
		"pipeline.schedule=zero-bubble lora.rank=2": " 11% "} { // what adapters put off is little
		s, err := testshape.Parse(append(strings.Fields(set), "parallel.ranks=2", "parallel.stages=2", "run.packs=8"))
		if err != nil {
			t.Fatal(err)
		}
		if got := bubble(s); !strings.Contains(got, want) {
			t.Errorf("2 stages, 8 micro-batches, %s: %q, want%s", set, got, want)
		}
	}
}

// A number of packs that ranks do not share evenly is told, with what it costs.
func TestIdleRanks(t *testing.T) {
	for _, c := range []struct {
		packs, ranks int
		want         string
	}{{8, 1, ""}, {8, 4, ""}, {3, 4, " 25% "}, {5, 4, " 37% "}, {1, 8, " 87% "}} {
		if got := idleRanks(c.packs, c.ranks); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%d packs on %d ranks: %q, want %q", c.packs, c.ranks, got, c.want)
		}
	}
}

// faulty is a device whose copy of a number fails; below 0: none.
type faulty struct {
	*cpu.Device
	left int
}

var errLink = errors.New("the link is down")

var everyCopy = flag.Bool("every-copy", false, "TestRanksFault has every copy of a run fail, not some")

func (f *faulty) CopyPeer(after []kernels.Event, copies ...kernels.PeerCopy) kernels.Event {
	if f.left--; f.left == -1 {
		panic(kernels.Fault{Err: errLink})
	}
	return f.Device.CopyPeer(after, copies...)
}

// A fault at any copy of a run ends it with one line, which names the rank, and leaves nothing half-written.
func TestRanksFault(t *testing.T) {
	for _, mesh := range []string{"parallel.weights=replicated", "parallel.weights=sharded", "parallel.experts=3"} {
		t.Run(mesh, func(t *testing.T) {
			s, err := testshape.Parse([]string{"run.steps=2", "optim.warmup_steps=0", "parallel.ranks=3", "lora.rank=2",
				"data.eval_samples=2", "run.eval_every=1", "run.verify_tokens=50", mesh})
			if err != nil {
				t.Fatal(err)
			}
			faults := 0
			for rank := range 3 {
				for at, next := 0, 0; ; at = next {
					if next = at + 1 + at/3; *everyCopy {
						next = at + 1
					}
					out := filepath.Join(t.TempDir(), "run")
					took, err := faultAt(t, s, out, rank, at)
					if err == nil {
						break // there is no such copy
					}
					faults++
					if !errors.Is(err, errLink) || !strings.Contains(err.Error(), fmt.Sprintf("rank %d on ", rank)) ||
						strings.Contains(err.Error(), "\n") || took > 5*time.Second {
						t.Errorf("copy %d of rank %d, after %v: %v", at, rank, took, err)
					}
					names, err := listCheckpoints(filepath.Join(out, checkpointsDir))
					if err != nil {
						t.Error(err)
					}
					for _, name := range names {
						if _, err := checkSums(filepath.Join(out, checkpointsDir, name)); err != nil {
							t.Errorf("copy %d of rank %d left a checkpoint that is not whole: %v", at, rank, err)
						}
					}
				}
			}
			t.Logf("%d faults", faults)
			if faults < 20 {
				t.Errorf("%d faults were planted: the test shows little", faults)
			}
		})
	}
}

// faultAt is a run in which a copy of a rank fails.
func faultAt(t *testing.T, s *configs.Shape, out string, rank, copy int) (took time.Duration, err error) {
	var list []*faulty
	for i, d := range delayedRanks(t, s, 0) {
		f := &faulty{Device: d, left: 1 << 30}
		if i == rank {
			f.left = copy
		}
		list = append(list, f)
	}
	began := time.Now()
	err = runDevices(context.Background(), t, s, out, list)
	return time.Since(began), err
}

// The log says of each of several ranks what it did, and so does the report.
func TestRanksMetrics(t *testing.T) {
	s, err := testshape.Parse([]string{"run.steps=2", "optim.warmup_steps=0", "run.packs=3", "parallel.ranks=2",
		"parallel.experts=2", "data.eval_samples=0"})
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "run")
	if err := runDevices(context.Background(), t, s, out, delayedRanks(t, s, 1)); err != nil {
		t.Fatal(err)
	}
	records, err := runlog.ReadMetrics(out)
	if err != nil {
		t.Fatal(err)
	}
	before := 0
	for _, rec := range records {
		if len(rec.Ranks) != 2 {
			t.Fatalf("step %d: %d ranks", rec.Step, len(rec.Ranks))
		}
		rows := 0
		for i, r := range rec.Ranks {
			rows += r.Rows
			if r.Waited <= 0 || r.Busy < 0 || r.Busy >= 1 || r.Memory < 1<<16 || r.ExpertShare == nil ||
				*r.ExpertShare < 0.5 || *r.ExpertShare > 1 || r.Watts != nil {
				t.Errorf("step %d, rank %d: %+v", rec.Step, i, r)
			}
		}
		if rec.Ranks[0].Rows <= rec.Ranks[1].Rows { // two packs and one
			t.Errorf("step %d: rows %d and %d", rec.Step, rec.Ranks[0].Rows, rec.Ranks[1].Rows)
		}
		if rows != rec.Tokens-before {
			t.Errorf("step %d: %d rows on both ranks, %d tokens", rec.Step, rows, rec.Tokens-before)
		}
		before = rec.Tokens
	}
	page, err := os.ReadFile(filepath.Join(out, "report.html"))
	if err != nil || strings.Count(string(page), "waited for others, a step") != 1 {
		t.Errorf("the report has no table of ranks (%v)", err)
	}
}

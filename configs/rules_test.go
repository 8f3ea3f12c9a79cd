package configs

import (
	"strings"
	"testing"
)

// Rules at their bounds: what breaks one by the least, and what just does not.
func TestRuleBounds(t *testing.T) {
	rl := func(set ...string) []string { return append([]string{"rl.objective=grpo"}, set...) }
	pairs := func(set ...string) []string {
		return append([]string{"data.task=", "data.preferences=p.jsonl"}, set...)
	}
	apart := func(set ...string) []string {
		return append([]string{"parallel.ranks=4", "parallel.experts=4"}, set...)
	}
	piped := func(set ...string) []string { return append([]string{"parallel.ranks=4"}, set...) }
	for _, c := range []struct {
		set  []string
		want string // "": accepted
	}{
		{[]string{"rollout.pages=4", "rollout.page_rows=64", "rollout.max_tokens=256"}, "raise pages"},
		{[]string{"rollout.pages=4", "rollout.page_rows=64", "rollout.max_tokens=255"}, ""},
		{[]string{"rollout.pages=0", "rollout.page_rows=1", "rollout.max_tokens=256"}, ""},
		{rl("rl.band_high=2"), "set proximal = true"},
		{rl("rl.band_high=2", "rl.proximal=true"), ""},
		{rl("rl.importance_cap=2"), "set proximal = true"},
		{rl("rl.importance_cap=2", "rl.proximal=true"), ""},
		{rl("rl.overlong_rows=257"), "more than rollout.max_tokens 256"},
		{rl("rl.overlong_rows=256"), ""},
		{[]string{"rollout.allow_mismatch=true", "rollout.numerics.key_split=100"}, "multiple of 64"},
		{[]string{"rollout.allow_mismatch=true", "rollout.numerics.key_split=128"}, ""},
		{[]string{"rollout.numerics.key_split=128"}, "set rollout.allow_mismatch"},
		{[]string{"offload.ring=2"}, "set offload.optimizer = true or remove it"},
		{[]string{"offload.ring=2", "offload.optimizer=true"}, ""},
		{[]string{"offload.breadth=2"}, "set offload.optimizer = true or remove it"},
		{[]string{"offload.breadth=2", "offload.optimizer=true", "parallel.ranks=2", "parallel.stages=2"},
			"remove it or set parallel.stages = 1"},
		{[]string{"offload.activations=true", "run.recompute=none"}, `set run.recompute = "full", "halves" or`},
		{[]string{"offload.activations=true"}, ""},
		{[]string{"rollout.numerics.norm=bf16"}, "set rollout.allow_mismatch"},
		{[]string{"indexer.stage=dense"}, ""},
		{rl("indexer.stage=dense"), `set "sparse" or remove`},
		{pairs("indexer.stage=dense"), `set "sparse" or remove`},
		{pairs("indexer.stage=sparse"), ""},
		{rl("indexer.stage=sparse"), ""},
		{[]string{"indexer.stage=sparse", "lora.rank=4"}, "remove indexer.stage or lora.rank"},
		{[]string{"indexer.stage=sparse", "lora.path=a"}, "remove indexer.stage or lora.rank"},
		{[]string{"lora.path=a", "lora.alpha=8"}, "remove it, or set lora.rank"},
		{[]string{"lora.path=a", "lora.targets=q_proj"}, "remove it, or set lora.rank"},
		{[]string{"lora.path=a", "lora.seed=8"}, ""},
		{[]string{"lora.path=a", "lora.alpha=8", "lora.rank=4"}, ""},
		{[]string{"lora.rank=4", "lora.alpha_pattern=q_proj=8,o_proj=0.5"}, ""},
		{[]string{"lora.rank=4", "lora.alpha_pattern=q_proj"}, `has "q_proj", want a name and a positive number`},
		{[]string{"lora.rank=4", "lora.rank_pattern=q_proj=0"}, `has "q_proj=0", want`},
		{pairs("dpo.kind=ipo", "dpo.label_smoothing=0.1"), "does nothing"},
		{pairs("dpo.kind=ipo_sum", "dpo.label_smoothing=0.1"), "does nothing"},
		{pairs("dpo.label_smoothing=0.1"), ""},
		{[]string{"rollout.temperature=1e-7"}, "so low that logits overflow"},
		{[]string{"rollout.temperature=1e-6"}, ""},
		{[]string{"run.micro_batch=8"}, ""},
		{[]string{"data.eval_samples=200"}, ""},
		{[]string{"data.countdown.min_number=10"}, ""},
		{[]string{"optim.warmup_steps=10"}, ""},
		{rl("rl.minibatches=3"), "do not divide"},
		{rl("rl.minibatches=16"), ""},
		{rl("rl.stream=true", "rl.minibatches=16"), "an optimizer step waits for all answers, set stream = false"},
		{rl("rl.stream=true", "rl.epochs=2"), "an optimizer step waits for all answers, set stream = false"},
		{rl("rl.stream=true", "rl.staleness=1"), "is known when it has all answers, set stream = false"},
		{rl("rl.stream=true", "rl.advantage=batch_norm"), "batch_norm compares the answers of the whole step"},
		{rl("rl.stream=true", "rl.objective=custom", "rl.loss=a"), "the program reads the answers of the whole step"},
		{rl("rl.stream=true", "rl.dynamic=true"), ""},
		{apart(), ""},
		{apart("parallel.context=3"), "3 does not divide parallel.ranks (4), set 1, a divisor, or 0 for all"},
		{apart("parallel.context=2"), ""},
		{apart("parallel.context=0"), ""},
		{apart("parallel.context=2", "indexer.stage=sparse"), "indexers that learn read the keys of all rows, set 1 " +
			"or remove indexer.stage"},
		{piped("parallel.stages=4"), ""},
		{piped("parallel.stages=0"), ""},
		{piped("parallel.ranks=0", "parallel.stages=4"), ""}, // the machine's GPUs may be four
		{piped("parallel.stages=2"), "want 1, or parallel.ranks (4), or 0 for all: several pipelines"},
		{piped("parallel.stages=4", "parallel.weights=sharded"), "leave these keys out"},
		{piped("parallel.stages=4", "parallel.context=2"), "leave these keys out"},
		{piped("parallel.stages=4", "run.recompute=halves"), `set run.recompute = "full" or parallel.stages = 1`},
		{piped("run.recompute=halves"), ""},
		{piped("parallel.stages=4", "offload.activations=true"), "the host has the optimizer's state alone"},
		{piped("parallel.stages=4", "pipeline.schedule=zero-bubble"), ""},
		{piped("parallel.stages=4", "pipeline.schedule=interleaved", "pipeline.chunks=3", "run.packs=4",
			"run.micro_batch=1"), ""},
		{piped("parallel.stages=4", "pipeline.chunks=3"), "is of pipeline.schedule = \"interleaved\", set that"},
		{piped("parallel.stages=0", "pipeline.schedule=interleaved", "run.packs=6", "run.micro_batch=2"),
			"as there are stages (4), and the packs are 3, set more packs"},
		{piped("parallel.stages=4", "pipeline.ahead=3"), ""},
		{piped("pipeline.ahead=2"), "is of pipeline stages, and there is one, set parallel.stages too"},
		{piped("parallel.stages=4", "pipeline.ahead=2", "pipeline.schedule=stream"),
			"is of pipeline.schedule = \"1f1b\" or \"zero-bubble\", set one of these"},
		{piped("parallel.stages=4", "pipeline.blocks=1,2,3,1"), ""},
		{piped("parallel.stages=4", "pipeline.blocks=1.5,2,0.5,3"), ""},
		{piped("parallel.stages=4", "pipeline.blocks=1.75,2.25,3,1"), "ends within a half of a block"},
		{piped("parallel.stages=0", "pipeline.blocks=1,2"), "has 2 numbers, want one for each of 4 stages of 1 chunks"},
		{piped("parallel.ranks=0", "parallel.stages=0", "pipeline.blocks=1,2"), ""}, // the machine's GPUs may be two
		{piped("parallel.stages=4", "pipeline.blocks=1,2,3,1", "pipeline.schedule=interleaved", "run.packs=4",
			"run.micro_batch=1"), "has 4 numbers, want one for each of 4 stages of 2 chunks"},
		{piped("pipeline.blocks=4"), "is of pipeline stages, and there is one, set parallel.stages too"},
		{piped("pipeline.schedule=zero-bubble"), "is that of pipeline stages, and there is one, set parallel.stages"},
		{apart("parallel.experts=2"), "want 1, or parallel.ranks (4), or 0 for all"},
		{apart("parallel.experts=0"), ""},
		{apart("parallel.ranks=0"), "want 1, or parallel.ranks (0), or 0 for all"},
		{apart("parallel.ranks=0", "parallel.experts=0"), ""},
		{apart("parallel.weights=sharded"), ""},
		{apart("run.micro_batch=2", "data.pack_rows=8193"), ""},
	} {
		_, err := Parse("s.toml", []byte(minimal), c.set)
		switch {
		case c.want == "" && err != nil, c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%v: error %v, want %q", c.set, err, c.want)
		}
	}
}

// Fewer steps on the command line lower a warm-up of the file, and say so; one that is given there too is refused.
func TestWarmupOfFewSteps(t *testing.T) {
	file := minimal + "[optim]\nwarmup_steps = 8\n"
	for _, c := range []struct {
		set   []string
		steps int
		notes int
		want  string
	}{
		{[]string{"run.steps=3"}, 3, 1, ""},
		{[]string{"run.steps=8"}, 8, 0, ""},
		{[]string{"run.steps=2", "rl.objective=grpo", "rl.minibatches=2"}, 4, 1, ""},
		{[]string{"run.steps=3", "optim.warmup_steps=4"}, 0, 0, "more than run.steps 3"},
	} {
		s, err := Parse("s.toml", []byte(file), c.set)
		if c.want != "" {
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v: error %v, want %q", c.set, err, c.want)
			}
			continue
		}
		if err != nil || s.Optim.WarmupSteps != c.steps || len(s.Notes) != c.notes {
			t.Errorf("%v: %v (%v)", c.set, s, err)
		}
	}
}

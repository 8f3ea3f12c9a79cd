package configs

import (
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// rule is a check over several keys. It is skipped where one of them has no usable value, and reported at the first
// that the user wrote.
type rule struct {
	keys   []string
	broken func(s *Shape) string // what is wrong and the mend; "": nothing
}

var rules = []rule{
	{[]string{"model.path", "model.family"}, func(s *Shape) string {
		if s.Model.Path == "" && s.Model.Family == "" {
			return "is missing, give path (a checkpoint), family (a new network) or catalogue (a published one)"
		}
		return exactlyOne(s.Model.Path != "", s.Model.Family != "", "path (a checkpoint)", "family (a new network)")
	}},
	{[]string{"model.family", "model.config"}, func(s *Shape) string {
		return when(s.Model.Family != "" && s.Model.Config == nil, "a new network needs its sizes, add [model.config]")
	}},
	{[]string{"model.config", "model.path"}, func(s *Shape) string {
		return when(s.Model.Path != "" && s.Model.Config != nil,
			"a checkpoint has its own config.json, remove [model.config] or path")
	}},
	{[]string{"model.config", "model.family"}, func(s *Shape) string {
		kind, ok := s.Model.Config["model_type"]
		return when(ok && s.Model.Family != "" && kind != s.Model.Family,
			"its model_type contradicts family, remove it")
	}},
	{[]string{"model.tokenizer", "model.family"}, func(s *Shape) string {
		return when(s.Model.Family != "" && s.Model.Tokenizer == "",
			`a new network needs a tokenizer, give a tokenizer.json, its folder or "bytes"`)
	}},
	{[]string{"model.tokenizer", "model.path"}, func(s *Shape) string {
		return when(s.Model.Path != "" && s.Model.Tokenizer != "",
			"a checkpoint has its own tokenizer, remove tokenizer or path")
	}},
	{[]string{"data.task", "data.path", "data.preferences"}, func(s *Shape) string {
		d, given := s.Data, 0
		for _, source := range []string{d.Task, d.Path, d.Preferences} {
			if source != "" {
				given++
			}
		}
		if given == 0 {
			return `is missing, give task ("countdown"), path (a JSONL file) or preferences (a JSONL file of pairs)`
		}
		return when(given > 1, "task, path and preferences are each a source, keep one")
	}},
	{[]string{"data.eval_path", "data.task"}, func(s *Shape) string {
		return when(s.Data.Task != "" && s.Data.EvalPath != "",
			"a task makes its own held-out samples, remove eval_path or task")
	}},
	{[]string{"data.eval_samples", "data.countdown.test"}, func(s *Shape) string {
		d := s.Data
		return when(d.Task == "countdown" && d.EvalSamples > d.Countdown.Test,
			fmt.Sprintf("eval_samples is %d and data.countdown.test is %d: lower the one or raise the other",
				d.EvalSamples, d.Countdown.Test))
	}},
	{[]string{"data.countdown.min_number", "data.countdown.max_number"}, func(s *Shape) string {
		c := s.Data.Countdown
		return when(c.MinNumber > c.MaxNumber, fmt.Sprintf("min_number %d is above max_number %d, swap them",
			c.MinNumber, c.MaxNumber))
	}},
	{[]string{"data.countdown.operators"}, func(s *Shape) string {
		return when(!differentOf(s.Data.Countdown.Operators, "+-*/"), "want one or more of + - * /, each once")
	}},
	{[]string{"lora.rank", "lora.targets", "lora.target_parameters"}, func(s *Shape) string {
		none := len(s.LoRA.Targets)+len(s.LoRA.TargetParameters) == 0
		return when(s.LoRA.Rank > 0 && none, "adapters need targets or target_parameters, name at least one")
	}},
	{[]string{"lora.rank_pattern"}, func(s *Shape) string { return badPairs(s.LoRA.RankPattern) }},
	{[]string{"lora.alpha_pattern"}, func(s *Shape) string { return badPairs(s.LoRA.AlphaPattern) }},
	{[]string{"lora.alpha", "lora.use_rslora", "lora.rank_pattern", "lora.alpha_pattern", "lora.targets",
		"lora.target_parameters", "lora.experts", "lora.modules_to_save", "lora.path",
		"lora.rank"}, func(s *Shape) string {
		rest := s.LoRA
		rest.Path, rest.Rank, rest.Seed, rest.Dropout = "", 0, 1, 0
		return when(s.LoRA.Path != "" && s.LoRA.Rank == 0 && !reflect.DeepEqual(rest, Default().LoRA),
			"the adapter of lora.path has its own, remove it, or set lora.rank too to compare them")
	}},
	{[]string{"lora.dropout", "lora.rank", "lora.path"}, func(s *Shape) string {
		return when(s.LoRA.Dropout > 0 && !s.LoRA.On(),
			"there are no adapters, set lora.rank or lora.path, or remove it")
	}},
	{[]string{"lora.dropout", "rl.objective"}, func(s *Shape) string {
		return when(s.LoRA.Dropout > 0 && s.RL.Objective != "",
			"with dropout the training forward would not be the one that sampled, whose log-probabilities it shares: "+
				"remove lora.dropout")
	}},
	{[]string{"indexer.stage", "lora.rank", "lora.path"}, func(s *Shape) string {
		return when(s.Indexer.Stage != "" && s.LoRA.On(),
			"indexer training does not work with LoRA adapters, remove indexer.stage or lora.rank and lora.path")
	}},
	{[]string{"indexer.stage", "rl.objective", "data.preferences"}, func(s *Shape) string {
		other := s.RL.Objective != "" || s.Data.Preferences != ""
		return when(s.Indexer.Stage == "dense" && other,
			`with "dense" only the indexers are trained, set "sparse" or remove rl.objective and data.preferences`)
	}},
	{[]string{"indexer.lr_factor", "indexer.stage"}, func(s *Shape) string {
		return when(s.Indexer.LRFactor != 1 && s.Indexer.Stage == "",
			"indexers are frozen, set indexer.stage or remove it")
	}},
	{[]string{"optim.warmup_steps", "optim.warmup_ratio"}, func(s *Shape) string {
		o := s.Optim
		return when(o.WarmupSteps > 0 && o.WarmupRatio > 0, "warmup_steps and warmup_ratio are both given, keep one")
	}},
	{[]string{"optim.warmup_steps", "run.steps", "rl.minibatches", "rl.epochs"}, func(s *Shape) string {
		warmup, steps := s.Optim.WarmupSteps, s.Run.Steps
		if s.RL.Objective == "" {
			return when(steps > 0 && warmup > steps, fmt.Sprintf("warmup_steps %d is more than run.steps %d, lower it",
				warmup, steps))
		}
		// of any three counts without overflow
		updates := float64(steps) * float64(s.RL.Minibatches) * float64(s.RL.Epochs)
		return when(steps > 0 && float64(warmup) > updates,
			fmt.Sprintf("warmup_steps %d is more than the run's %.0f optimizer steps (run.steps * rl.minibatches * "+
				"rl.epochs), lower it",
				warmup, updates))
	}},
	{[]string{"run.steps", "run.epochs"}, func(s *Shape) string {
		return exactlyOne(s.Run.Steps > 0, s.Run.Epochs > 0, "steps", "epochs")
	}},
	{[]string{"run.micro_batch", "run.packs"}, func(s *Shape) string {
		run := s.Run
		return when(run.MicroBatch > run.Packs, fmt.Sprintf("micro_batch %d is more than packs %d, lower it",
			run.MicroBatch, run.Packs))
	}},
	{[]string{"parallel.experts", "parallel.ranks"}, func(s *Shape) string {
		n := s.Parallel
		return when(n.Experts > 1 && n.Experts != n.Ranks, fmt.Sprintf("want 1, or parallel.ranks (%d), or 0 for all",
			n.Ranks))
	}},
	{[]string{"parallel.context", "parallel.ranks"}, func(s *Shape) string {
		n := s.Parallel
		return when(n.Context > 1 && n.Ranks > 0 && n.Ranks%n.Context != 0, fmt.Sprintf("%d does not divide "+
			"parallel.ranks (%d), set 1, a divisor, or 0 for all", n.Context, n.Ranks))
	}},
	{[]string{"parallel.context", "indexer.stage"}, func(s *Shape) string {
		return when(s.Parallel.Context != 1 && s.Indexer.Stage != Default().Indexer.Stage,
			"indexers that learn read the keys of all rows, set 1 or remove indexer.stage")
	}},
	{[]string{"parallel.stages", "parallel.ranks"}, func(s *Shape) string {
		n := s.Parallel
		return when(n.Stages > 1 && n.Ranks > 0 && n.Stages != n.Ranks, fmt.Sprintf("want 1, or parallel.ranks (%d), "+
			"or 0 for all: several pipelines next to one another are not supported", n.Ranks))
	}},
	{[]string{"parallel.stages", "parallel.weights", "parallel.experts", "parallel.context"}, func(s *Shape) string {
		n := s.Parallel
		return when(n.Stages != 1 && (n.Weights != Default().Parallel.Weights || n.Experts != 1 || n.Context != 1),
			"a rank has its stage alone: weights, experts and packs are not divided too, leave these keys out")
	}},
	{[]string{"pipeline.schedule", "parallel.stages"}, func(s *Shape) string {
		n := s.Parallel
		return when(s.Pipeline.Schedule != Default().Pipeline.Schedule && n.Stages == 1 && n.Ranks != 1,
			"is that of pipeline stages, and there is one, set parallel.stages too or leave it out")
	}},
	{[]string{"pipeline.chunks", "pipeline.schedule"}, func(s *Shape) string {
		return when(s.Pipeline.Chunks != Default().Pipeline.Chunks && s.Pipeline.Schedule != "interleaved",
			"is of pipeline.schedule = \"interleaved\", set that or leave it out")
	}},
	{[]string{"pipeline.ahead", "parallel.stages", "pipeline.schedule"}, func(s *Shape) string {
		by := s.Pipeline.Schedule
		switch {
		case s.Pipeline.Ahead == 1 || s.Parallel.Ranks == 1:
			return ""
		case s.Parallel.Stages == 1:
			return "is of pipeline stages, and there is one, set parallel.stages too or leave it out"
		}
		return when(by != "1f1b" && by != "zero-bubble",
			"is of pipeline.schedule = \"1f1b\" or \"zero-bubble\", set one of these or leave it out")
	}},
	{[]string{"pipeline.blocks", "parallel.stages", "pipeline.chunks"}, func(s *Shape) string {
		have, stages := len(s.Pipeline.Blocks), s.Parallel.Stages
		if stages == 0 {
			stages = s.Parallel.Ranks
		}
		chunks := 1
		if s.Pipeline.Schedule == "interleaved" {
			chunks = s.Pipeline.Chunks
		}
		switch {
		case have == 0 || s.Parallel.Ranks == 1 || stages == 0: // counted later
			return ""
		case stages == 1:
			return "is of pipeline stages, and there is one, set parallel.stages too or leave it out"
		}
		return when(have != stages*chunks, fmt.Sprintf("has %d numbers, want one for each of %d stages of %d chunks",
			have, stages, chunks))
	}},
	{[]string{"pipeline.blocks"}, func(s *Shape) string {
		odd := slices.IndexFunc(s.Pipeline.Blocks, func(n float64) bool { return 2*n != math.Trunc(2*n) })
		return when(odd >= 0, "has a stage that ends within a half of a block, want multiples of 0.5")
	}},
	{[]string{"pipeline.schedule", "run.packs", "run.micro_batch"}, func(s *Shape) string {
		stages := s.Parallel.Stages
		if stages == 0 {
			stages = s.Parallel.Ranks
		}
		micros := (s.Run.Packs + s.Run.MicroBatch - 1) / s.Run.MicroBatch
		return when(s.Pipeline.Schedule == "interleaved" && s.RL.Objective == "" && micros < stages, fmt.Sprintf(
			"takes as many micro-batches through a chunk as there are stages (%d), and the packs are %d, set more "+
				"packs", stages, micros))
	}},
	{[]string{"parallel.stages", "offload.weights", "offload.activations"}, func(s *Shape) string {
		return when(s.Parallel.Stages != 1 && (s.Offload.Weights != "all" || s.Offload.Activations),
			"of stages the host has the optimizer's state alone, remove offload.weights and offload.activations")
	}},
	{[]string{"parallel.interleave", "parallel.experts"}, func(s *Shape) string {
		return when(s.Parallel.Interleave > 1 && (s.Parallel.Experts == 1 || s.Parallel.Ranks == 1),
			"there are no exchanges of experts to hide, divide experts over the ranks (parallel.experts = 0) or set 1")
	}},
	{[]string{"parallel.interleave", "run.micro_batch"}, func(s *Shape) string {
		lanes, micro := s.Parallel.Interleave, s.Run.MicroBatch
		return when(micro%lanes != 0, fmt.Sprintf("%d lanes do not divide the %d packs of run.micro_batch, set a "+
			"multiple", lanes, micro))
	}},
	{[]string{"run.name"}, func(s *Shape) string {
		return when(!runName.MatchString(s.Run.Name), fmt.Sprintf("is %q, want letters, digits, '.', '_' and '-', a "+
			"letter or digit first", s.Run.Name))
	}},
	{[]string{"run.eval_every", "data.path", "data.preferences", "data.eval_path"}, func(s *Shape) string {
		blind := (s.Data.Path != "" || s.Data.Preferences != "") && s.Data.EvalPath == ""
		return when(blind && s.Run.EvalEvery > 0,
			"there is nothing to evaluate on, give data.eval_path or set eval_every = 0")
	}},
	{[]string{"dpo.kind", "dpo.beta", "dpo.label_smoothing", "data.preferences"}, func(s *Shape) string {
		return when(s.Data.Preferences == "" && s.DPO != Default().DPO,
			"learns from pairs of answers, set data.preferences or remove it")
	}},
	{[]string{"dpo.label_smoothing", "dpo.kind"}, func(s *Shape) string {
		return when(s.DPO.Kind != "sigmoid" && s.DPO.LabelSmoothing > 0,
			fmt.Sprintf("does nothing with kind %q, remove it", s.DPO.Kind))
	}},
	{[]string{"rl.objective", "data.preferences"}, func(s *Shape) string {
		return when(s.RL.Objective != "" && s.Data.Preferences != "",
			"learns from answers that the model samples and data.preferences from given ones, keep one")
	}},
	{[]string{"rollout.pages", "rollout.page_rows", "rollout.max_tokens"}, func(s *Shape) string {
		o := s.Rollout
		small := float64(o.Pages)*float64(o.PageRows) <= float64(o.MaxTokens)
		return when(o.Pages > 0 && small,
			"pages * page_rows must hold a prompt and max_tokens, raise pages (0: as needed)")
	}},
	{[]string{"rollout.temperature"}, func(s *Shape) string {
		t := s.Rollout.Temperature
		return when(t > 0 && t < 1e-6, fmt.Sprintf("is %g, so low that logits overflow, set 0 for the likeliest token",
			t))
	}},
	{[]string{"warm_start.steps", "rl.objective"}, func(s *Shape) string {
		return when(s.WarmStart.Steps > 0 && s.RL.Objective == "",
			"needs reinforcement learning, set rl.objective or remove it")
	}},
	{[]string{"warm_start.steps", "data.task"}, func(s *Shape) string {
		return when(s.WarmStart.Steps > 0 && s.Data.Task == "",
			"learns from a task's worked solutions, set data.task or remove it")
	}},
	{[]string{"warm_start.warmup_steps", "warm_start.warmup_ratio"}, func(s *Shape) string {
		w := s.WarmStart
		return when(w.WarmupSteps > 0 && w.WarmupRatio > 0, "warmup_steps and warmup_ratio are both given, keep one")
	}},
	{[]string{"warm_start.warmup_steps", "warm_start.steps"}, func(s *Shape) string {
		w := s.WarmStart
		return when(w.WarmupSteps > w.Steps, fmt.Sprintf("warmup_steps %d is more than warm_start.steps %d, lower it",
			w.WarmupSteps, w.Steps))
	}},
	{[]string{"run.epochs", "rl.objective"}, func(s *Shape) string {
		return when(s.RL.Objective != "" && s.Run.Epochs > 0, "reinforcement learning counts steps, give run.steps")
	}},
	{[]string{"rl.reward", "data.task"}, func(s *Shape) string {
		return when(s.RL.Objective != "" && s.RL.Reward == "task" && s.Data.Task == "",
			`a JSONL file has no reward function, set rl.reward to "exact", "math", "command" or "http"`)
	}},
	{[]string{"rl.command", "rl.reward"}, func(s *Shape) string {
		return when((s.RL.Reward == "command") != (len(s.RL.Command) > 0),
			`reward "command" and command go together, give both or neither`)
	}},
	{[]string{"rl.url", "rl.reward"}, func(s *Shape) string {
		return when((s.RL.Reward == "http") != (s.RL.URL != ""),
			`reward "http" and url go together, give both or neither`)
	}},
	{[]string{"rl.loss", "rl.objective"}, func(s *Shape) string {
		return when((s.RL.Objective == "custom") != (len(s.RL.Loss) > 0),
			`objective "custom" and loss go together, give both or neither`)
	}},
	{[]string{"rl.marker", "rl.final"}, func(s *Shape) string {
		return when((s.RL.Final == "after") != (s.RL.Marker != ""),
			`final "after" and marker go together, give both or neither`)
	}},
	{[]string{"rl.minibatches", "rl.prompts"}, func(s *Shape) string {
		return when(s.RL.Prompts%s.RL.Minibatches != 0, fmt.Sprintf("minibatches %d do not divide prompts %d, "+
			"change one", s.RL.Minibatches, s.RL.Prompts))
	}},
	{[]string{"rl.importance_cap", "rl.proximal"}, func(s *Shape) string {
		return when(s.RL.ImportanceCap > 0 && !s.RL.Proximal,
			"weighs rollouts against the trainer's own log-probabilities, set proximal = true")
	}},
	{[]string{"rl.band_high", "rl.proximal"}, func(s *Shape) string {
		return when(s.RL.BandHigh > 0 && !s.RL.Proximal,
			"compares rollouts with the trainer's own log-probabilities, set proximal = true")
	}},
	{[]string{"rl.stream", "rl.objective"}, func(s *Shape) string {
		return when(s.RL.Stream && s.RL.Objective == "custom", "the program reads the answers of the whole step, set "+
			"stream = false or another objective")
	}},
	{[]string{"rl.stream", "rl.advantage"}, func(s *Shape) string {
		return when(s.RL.Stream && s.RL.Advantage == "batch_norm", "batch_norm compares the answers of the whole "+
			"step, set stream = false or another advantage")
	}},
	{[]string{"rl.stream", "rl.minibatches", "rl.epochs"}, func(s *Shape) string {
		return when(s.RL.Stream && s.RL.Minibatches*s.RL.Epochs > 1, "an optimizer step waits for all answers, set "+
			"stream = false, or minibatches = 1 and epochs = 1")
	}},
	{[]string{"rl.stream", "rl.staleness"}, func(s *Shape) string {
		return when(s.RL.Stream && s.RL.Staleness > 0, "which prompts a step learns from is known when it has all "+
			"answers, set stream = false or staleness = 0")
	}},
	{[]string{"rl.overlong_rows", "rollout.max_tokens"}, func(s *Shape) string {
		return when(s.RL.OverlongRows > s.Rollout.MaxTokens, fmt.Sprintf("is more than rollout.max_tokens %d, lower it",
			s.Rollout.MaxTokens))
	}},
	{[]string{"rollout.numerics.key_split"}, func(s *Shape) string {
		return when(s.Rollout.Numerics.KeySplit%64 != 0, "want a multiple of 64")
	}},
	{[]string{"rollout.allow_mismatch", "rollout.numerics.combine", "rollout.numerics.router",
		"rollout.numerics.key_split", "rollout.numerics.weights"}, func(s *Shape) string {
		apart := s.Rollout.Numerics != Numerics{}
		return when(apart && !s.Rollout.AllowMismatch,
			"rollouts would differ from the trainer, set rollout.allow_mismatch = true or remove rollout.numerics")
	}},
	{[]string{"offload.ring", "offload.optimizer"}, func(s *Shape) string {
		return when(s.Offload.Ring != Default().Offload.Ring && !s.Offload.Optimizer,
			"nothing passes through the ring, set offload.optimizer = true or remove it")
	}},
	{[]string{"offload.breadth", "offload.optimizer"}, func(s *Shape) string {
		return when(s.Offload.Breadth != Default().Offload.Breadth && !s.Offload.Optimizer,
			"no state comes from the host, set offload.optimizer = true or remove it")
	}},
	{[]string{"offload.breadth", "parallel.stages"}, func(s *Shape) string {
		return when(s.Offload.Breadth > 1 && s.Parallel.Stages > 1,
			"the schedule of a pipeline says which micro-batch is next, remove it or set parallel.stages = 1")
	}},
	{[]string{"offload.host_update"}, func(s *Shape) string {
		_, err := s.Offload.OnHost()
		return when(err != nil, `want "auto", or GiB of each rank's states that the host's cores update, such as "20"`)
	}},
	{[]string{"offload.host_update", "offload.optimizer"}, func(s *Shape) string {
		return when(s.Offload.HostUpdate != Default().Offload.HostUpdate && !s.Offload.Optimizer,
			"no state is on the host, set offload.optimizer = true or remove it")
	}},
	{[]string{"offload.weights"}, func(s *Shape) string {
		_, _, err := s.Offload.Stay()
		return when(err != nil, `want "all", "auto" or GiB that stay on a card, such as "20"`)
	}},
	{[]string{"offload.weights", "lora.rank", "lora.path"}, func(s *Shape) string {
		return when(s.Offload.Weights != "all" && !s.LoRA.On(),
			`weights that are trained do not leave the card, set lora.rank, or "all"`)
	}},
	{[]string{"run.recompute", "parallel.stages"}, func(s *Shape) string {
		return when(s.Run.Recompute == "halves" && s.Parallel.Stages != 1 && s.Parallel.Ranks != 1,
			`stages end where their times say, set run.recompute = "full" or parallel.stages = 1`)
	}},
	{[]string{"offload.activations", "run.recompute"}, func(s *Shape) string {
		return when(s.Offload.Activations && s.Run.Recompute == "none",
			`nothing is recomputed from a block's input, set run.recompute = "full", "halves" or "auto"`)
	}},
	{[]string{"definition.acts", "definition.grads", "model.weights"}, func(s *Shape) string {
		asked := s.Definition.Acts != "auto" && s.Definition.Acts != "none" || s.Definition.Grads != ""
		return when(asked && s.Model.Weights == "open",
			`rounds what projections in codes read, set model.weights = "mxfp8" or another format`)
	}},
	{[]string{"definition.acts", "definition.dot"}, func(s *Shape) string {
		return when(s.Definition.Acts == "fp8x128" && s.Definition.Dot != "tc16",
			`fp8x128 continues by tensor cores, set definition.dot = "tc16"`)
	}},
	{[]string{"definition.acts", "model.weights"}, func(s *Shape) string {
		return when(s.Definition.Acts == "fp8x128" && s.Model.Weights != "fp8" && s.Model.Weights != "auto",
			`fp8x128 is for weights in FP8, set model.weights = "fp8"`)
	}},
	{[]string{"definition.segment"}, func(s *Shape) string {
		return when(s.Definition.Segment%64 != 0, "want a multiple of 64")
	}},
	{[]string{"definition.dot", "model.dtype"}, func(s *Shape) string {
		return when(s.Definition.Dot == "tc16" && s.Model.DType != "bf16",
			`tc16 multiplies bf16, set model.dtype = "bf16" or dot = "fma"`)
	}},
}

// runName is what a run may be called: it becomes a folder.
var runName = regexp.MustCompile(`^[\pL\pN][\pL\pN._-]*$`)

// badPairs says which of some settings is not a name with a number; "": none.
func badPairs(list []string) string {
	for _, item := range list {
		if _, _, err := NameValue(item); err != nil {
			return err.Error()
		}
	}
	return ""
}

// NameValue reads a setting such as "down_proj=64".
func NameValue(text string) (name string, value float64, err error) {
	name, number, ok := strings.Cut(text, "=")
	value, bad := strconv.ParseFloat(number, 64)
	if !ok || bad != nil || name == "" || !(value > 0) || math.IsInf(value, 0) {
		return "", 0, fmt.Errorf(`has %q, want a name and a positive number, such as "down_proj=64"`, text)
	}
	return name, value, nil
}

func when(broken bool, what string) string {
	if broken {
		return what
	}
	return ""
}

func exactlyOne(a, b bool, nameA, nameB string) string {
	switch {
	case a && b:
		return fmt.Sprintf("%s and %s are both given, keep one", nameA, nameB)
	case !a && !b:
		return fmt.Sprintf("is missing, give %s or %s", nameA, nameB)
	}
	return ""
}

// differentOf tells whether text is made of some of the letters, each at most once.
func differentOf(text, letters string) bool {
	for i, r := range text {
		if !strings.ContainsRune(letters, r) || strings.ContainsRune(text[:i], r) {
			return false
		}
	}
	return text != ""
}

// check applies every rule.
func (r *reader) check() {
	for _, rule := range rules {
		if what := r.broken(rule); what != "" {
			r.report(r.written(rule.keys), what)
		}
	}
}

func (r *reader) broken(rule rule) string {
	for _, key := range rule.keys {
		if r.bad[key] {
			return ""
		}
	}
	return rule.broken(r.shape)
}

// written is the first of the keys that the user wrote, an override before a line of the file.
func (r *reader) written(keys []string) string {
	for _, key := range keys {
		if _, ok := r.flags[key]; ok {
			return key
		}
	}
	for _, key := range keys {
		if r.lines[key] > 0 {
			return key
		}
	}
	return keys[0]
}

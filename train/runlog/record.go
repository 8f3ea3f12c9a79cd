package runlog

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"
)

// Record is one line of metrics.jsonl: an optimizer step, an evaluation, or both. Step 0 is before the first step.
type Record struct {
	Step int       `json:"step"`
	Time time.Time `json:"time"` // UTC, milliseconds
	// nats per target, or of preferences per pair; before the update
	Loss     *Number `json:"loss,omitempty"`
	LR       *Number `json:"lr,omitempty"`        // learning rate of the step, or of its first update
	GradNorm *Number `json:"grad_norm,omitempty"` // before clipping
	// nats a row, mean over indexers: divergence of what they score from what attention weighs, before the update
	IndexerLoss     *Number `json:"indexer_loss,omitempty"`
	IndexerNorm     *Number `json:"indexer_grad_norm,omitempty"` // of the indexers' gradient, before clipping
	Tokens          int     `json:"tokens,omitempty"`            // computed since the run's start
	TokensPerSecond *Number `json:"tokens_per_second,omitempty"` // of the step
	// largest size of the process on the host so far, bytes
	Memory    int64   `json:"memory,omitempty"`
	GPUBusy   *Number `json:"gpu_busy,omitempty"`   // share of the last second, 0 to 1
	GPUMemory int64   `json:"gpu_memory,omitempty"` // bytes taken on the card
	GPUWatts  *Number `json:"gpu_watts,omitempty"`  // power drawn
	// host memory of what is offloaded from all devices, bytes
	Pinned      int64 `json:"pinned,omitempty"`
	FromHost    int64 `json:"from_host,omitempty"`   // bytes of weights that all ranks copied from it in the step
	Launches    int   `json:"launches,omitempty"`    // kernels and graphs that the step gave the GPU
	Waits       int   `json:"waits,omitempty"`       // of the step for the GPU
	Allocations int   `json:"allocations,omitempty"` // of the step on the GPU
	// of several ranks, what each did in the step
	Ranks  []RankRecord `json:"ranks,omitempty"`
	Reward *Number      `json:"reward,omitempty"` // mean of the step's answers
	// share of groups whose answers earn different rewards
	RewardSpread *Number `json:"reward_spread,omitempty"`
	// of rollout and trainer before the first update, nats a token: mean of e^d - 1 - d, d = trainer - rollout (k3)
	KL      *Number `json:"kl,omitempty"`
	KLK1    *Number `json:"kl_k1,omitempty"`    // mean of rollout - trainer (k1)
	KLExact *Number `json:"kl_exact,omitempty"` // summed over the vocabulary, on some answers
	// tokens of the present weights whose log-probabilities were compared
	Compared   int     `json:"compared,omitempty"`
	Differ     int     `json:"differ,omitempty"`      // of them, those that differ on a bit
	LargestGap *Number `json:"largest_gap,omitempty"` // largest difference of log-probabilities
	// share of tokens whose importance weight was cut or left out
	Corrected *Number `json:"corrected,omitempty"`
	// estimated divergence from the reference, nats a token
	ReferenceKL *Number `json:"reference_kl,omitempty"`
	// share of sampled answers without a gradient: left out, or in a group of one reward
	Discarded *Number `json:"discarded,omitempty"`
	// packs that were computed while others were sampled (rl.stream)
	EarlyPacks int     `json:"early_packs,omitempty"`
	Entropy    *Number `json:"entropy,omitempty"`   // of the rollout, nats a token, from its samples
	Length     *Number `json:"length,omitempty"`    // mean tokens of an answer
	Truncated  *Number `json:"truncated,omitempty"` // share of answers cut at rollout.max_tokens
	// mean updates between a token and the step that learned from it
	Stale        *Number `json:"stale,omitempty"`
	RolloutSpeed *Number `json:"rollout_speed,omitempty"` // sampled tokens a second while sampling
	// tokens a second of forward and backward while learning
	LearnSpeed *Number `json:"learn_speed,omitempty"`
	Updates    int     `json:"updates,omitempty"` // optimizer steps since the warm start

	// A step of reinforcement learning takes minibatches * epochs updates. Loss, GradNorm, Corrected, ReferenceKL and
	// these are means over them; Last is of the last update and Max the largest, both absent where there is one update.
	LossLast         *Number        `json:"loss_last,omitempty"`
	LossMax          *Number        `json:"loss_max,omitempty"`
	GradNormLast     *Number        `json:"grad_norm_last,omitempty"`
	GradNormMax      *Number        `json:"grad_norm_max,omitempty"`
	ClipFraction     *Number        `json:"clip_fraction,omitempty"` // see UpdateRecord
	ClipFractionLast *Number        `json:"clip_fraction_last,omitempty"`
	ClipFractionMax  *Number        `json:"clip_fraction_max,omitempty"`
	ApproxKL         *Number        `json:"approx_kl,omitempty"`
	ApproxKLLast     *Number        `json:"approx_kl_last,omitempty"`
	ApproxKLMax      *Number        `json:"approx_kl_max,omitempty"`
	Ratio            *Number        `json:"ratio,omitempty"`
	RatioLast        *Number        `json:"ratio_last,omitempty"`
	RatioMin         *Number        `json:"ratio_min,omitempty"` // smallest of a token in any update
	RatioMax         *Number        `json:"ratio_max,omitempty"` // largest of a token in any update
	ByUpdate         []UpdateRecord `json:"by_update,omitempty"` // of steps with several updates

	// of the step's pairs, before the update: mean reward of chosen answers less that of rejected ones
	Margin *Number `json:"margin,omitempty"`
	// share of pairs whose chosen answer has the higher reward
	Preferred       *Number `json:"preferred,omitempty"`
	ChosenReward    *Number `json:"chosen_reward,omitempty"`    // mean of beta * (log-probability - reference)
	RejectedReward  *Number `json:"rejected_reward,omitempty"`  // the same of rejected answers
	ChosenLogProb   *Number `json:"chosen_logprob,omitempty"`   // mean log-probability of an answer, nats
	RejectedLogProb *Number `json:"rejected_logprob,omitempty"` // the same of rejected answers
	EvalLoss        *Number `json:"eval_loss,omitempty"`        // nats per target, or per pair; held out
	// fraction of held-out samples answered right, or of held-out pairs preferred rightly
	EvalAccuracy *Number `json:"eval_accuracy,omitempty"`
	EvalMargin   *Number `json:"eval_margin,omitempty"`  // mean margin of held-out pairs
	EvalSamples  int     `json:"eval_samples,omitempty"` // samples generated for it, or pairs
}

// UpdateRecord is what an optimizer step of a step of reinforcement learning measured, before it changed the weights.
type UpdateRecord struct {
	Loss         Number `json:"loss"`
	GradNorm     Number `json:"grad_norm"`     // before clipping
	ClipFraction Number `json:"clip_fraction"` // share of tokens whose gradient the objective's bounds took away
	ApproxKL     Number `json:"approx_kl"`     // of old and present policy, nats a token: mean of r - 1 - ln r
	Ratio        Number `json:"ratio"`         // mean over tokens of r = e^(logprob - old)
}

// RankRecord is what a rank did in a step.
type RankRecord struct {
	Rows int `json:"rows"` // of training
	// share of the time: of the last second with a kernel on its GPU, of a CPU's not waiting for other ranks; 0 to 1
	Busy   Number  `json:"busy"`
	Waited Number  `json:"waited"`           // seconds of the host, for other ranks at exchanges
	Memory int64   `json:"memory"`           // bytes that the rank has taken of its device
	Pinned int64   `json:"pinned,omitempty"` // and of the host's memory
	Watts  *Number `json:"watts,omitempty"`  // power that its GPU draws
	// largest share of a mixture's rows that one owner had, where experts are cut over ranks
	ExpertShare *Number `json:"expert_share,omitempty"`
}

// scalars lists the values of rank i.
func (r RankRecord) scalars(i int) []scalar {
	tag := func(name string) string { return fmt.Sprintf("ranks/%d/%s", i, name) }
	list := []scalar{{tag("rows"), float64(r.Rows)}, {tag("busy"), float64(r.Busy)}, {tag("waited"), float64(r.Waited)},
		{tag("memory_bytes"), float64(r.Memory)}}
	if r.Pinned > 0 {
		list = append(list, scalar{tag("pinned_bytes"), float64(r.Pinned)})
	}
	if r.Watts != nil {
		list = append(list, scalar{tag("watts"), float64(*r.Watts)})
	}
	if r.ExpertShare != nil {
		list = append(list, scalar{tag("expert_share"), float64(*r.ExpertShare)})
	}
	return list
}

// Number is a float64 that JSON can hold: "NaN", "+Inf" and "-Inf" are strings, the rest is written as short as reads
// back the same.
type Number float64

// Num is a number of a record.
func Num(x float64) *Number { n := Number(x); return &n }

// MarshalJSON writes the number, or the name of one that JSON lacks.
func (n Number) MarshalJSON() ([]byte, error) {
	x := float64(n)
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return strconv.AppendQuote(nil, strconv.FormatFloat(x, 'g', -1, 64)), nil
	}
	return json.Marshal(x)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (n *Number) UnmarshalJSON(text []byte) error {
	switch s := string(text); s {
	case `"NaN"`, `"+Inf"`, `"-Inf"`:
		x, err := strconv.ParseFloat(s[1:len(s)-1], 64)
		*n = Number(x)
		return err
	}
	var x float64
	if err := json.Unmarshal(text, &x); err != nil {
		return fmt.Errorf("%s is not a number", text)
	}
	*n = Number(x)
	return nil
}

// scalar is a named value of a record.
type scalar struct {
	tag   string
	value float64
}

// scalars lists the values that a record has, by their names in TensorBoard.
func (r Record) scalars() []scalar {
	var list []scalar
	for _, s := range []struct {
		tag   string
		value *Number
	}{
		{"train/loss", r.Loss}, {"train/lr", r.LR}, {"train/grad_norm", r.GradNorm},
		{"train/indexer_loss", r.IndexerLoss}, {"train/indexer_grad_norm", r.IndexerNorm}, {"train/tokens_per_second",
			r.TokensPerSecond},
		{"rl/reward", r.Reward}, {"rl/reward_spread", r.RewardSpread}, {"rl/kl", r.KL}, {"rl/kl_k1", r.KLK1},
		{"rl/kl_exact", r.KLExact}, {"rl/largest_gap", r.LargestGap},
		{"train/loss_last", r.LossLast}, {"train/loss_max", r.LossMax},
		{"train/grad_norm_last", r.GradNormLast}, {"train/grad_norm_max", r.GradNormMax},
		{"rl/clip_fraction", r.ClipFraction}, {"rl/clip_fraction_last", r.ClipFractionLast},
		{"rl/clip_fraction_max", r.ClipFractionMax},
		{"rl/approx_kl", r.ApproxKL}, {"rl/approx_kl_last", r.ApproxKLLast}, {"rl/approx_kl_max", r.ApproxKLMax},
		{"rl/ratio", r.Ratio}, {"rl/ratio_last", r.RatioLast}, {"rl/ratio_min", r.RatioMin},
		{"rl/ratio_max", r.RatioMax},
		{"rl/discarded", r.Discarded}, {"rl/corrected", r.Corrected}, {"rl/reference_kl", r.ReferenceKL},
		{"rl/entropy", r.Entropy}, {"rl/length", r.Length}, {"rl/truncated", r.Truncated}, {"rl/stale", r.Stale},
		{"rl/rollout_speed", r.RolloutSpeed}, {"rl/learn_speed", r.LearnSpeed},
		{"dpo/margin", r.Margin}, {"dpo/preferred", r.Preferred}, {"dpo/chosen_reward", r.ChosenReward},
		{"dpo/rejected_reward", r.RejectedReward},
		{"dpo/chosen_logprob", r.ChosenLogProb}, {"dpo/rejected_logprob", r.RejectedLogProb},
		{"eval/loss", r.EvalLoss}, {"eval/accuracy", r.EvalAccuracy}, {"eval/margin", r.EvalMargin},
		{"gpu/busy", r.GPUBusy}, {"gpu/watts", r.GPUWatts},
	} {
		if s.value != nil {
			list = append(list, scalar{s.tag, float64(*s.value)})
		}
	}
	for _, s := range []struct {
		tag   string
		value int64
	}{
		{"train/memory_bytes", r.Memory}, {"train/pinned_bytes", r.Pinned},
		{"train/from_host_bytes", r.FromHost}, {"gpu/memory_bytes", r.GPUMemory},
		{"gpu/launches", int64(r.Launches)}, {"gpu/waits", int64(r.Waits)}, {"gpu/allocations", int64(r.Allocations)},
	} {
		if s.value > 0 {
			list = append(list, scalar{s.tag, float64(s.value)})
		}
	}
	for i, rank := range r.Ranks {
		list = append(list, rank.scalars(i)...)
	}
	return list
}

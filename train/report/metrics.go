package report

import (
	"fmt"
	"math"
	"slices"

	"lockstep/train/runlog"
)

// metric is a chart that each series of a report has its curves in.
type metric struct {
	Title, Unit string
	Lines       []measured
	Format      func(float64) string
	Noisy       bool
	Zero, Log   bool
	Top         float64
}

// measured is a value of records; the first of a metric has no name of its own where series have.
type measured struct {
	Name string
	Of   func(runlog.Record) *runlog.Number
}

func only(of func(runlog.Record) *runlog.Number) []measured { return []measured{{"", of}} }

var (
	rewardMetric = metric{Title: "Reward", Unit: "mean of the step's answers", Zero: true, Noisy: true, Format: short,
		Lines: only(func(r runlog.Record) *runlog.Number {
			return r.Reward
		})}
	accuracyMetric = metric{Title: "Accuracy", Unit: "held-out samples solved", Zero: true, Top: 1, Format: percent,
		Lines: only(func(r runlog.Record) *runlog.Number {
			return r.EvalAccuracy
		})}
	klMetric = metric{Title: "KL of rollout and trainer", Unit: "nats per sampled token, before the update", Log: true,
		Noisy: true, Format: short, Lines: only(func(r runlog.Record) *runlog.Number {
			return r.KL
		})}
	normMetric = metric{Title: "Gradient norm", Unit: "before clipping", Zero: true, Noisy: true, Format: short,
		Lines: only(func(r runlog.Record) *runlog.Number {
			return r.GradNorm
		})}
	lossMetric = metric{Title: "Loss", Unit: "nats per token", Zero: true, Noisy: true, Format: short,
		Lines: []measured{
			{"training", func(r runlog.Record) *runlog.Number {
				return r.Loss
			}}, {"held out", func(r runlog.Record) *runlog.Number { return r.EvalLoss }}}}
)

// clipMetric is of the updates of a step of reinforcement learning, as policyMetrics are.
var clipMetric = metric{
	Title: "Clip fraction", Unit: "of tokens, over the updates of a step", Zero: true, Noisy: true, Format: percent,
	Lines: []measured{
		{"", func(r runlog.Record) *runlog.Number { return r.ClipFraction }},
		{"last", func(r runlog.Record) *runlog.Number { return r.ClipFractionLast }},
		{"max", func(r runlog.Record) *runlog.Number { return r.ClipFractionMax }},
	},
}

// policyMetrics are the mean over the updates, the last of them and the largest.
var policyMetrics = []metric{
	{Title: "Approximate KL", Unit: "policy and rollout over a step's updates, nats per token", Zero: true, Noisy: true,
		Format: short, Lines: []measured{
			{"", func(r runlog.Record) *runlog.Number { return r.ApproxKL }},
			{"last", func(r runlog.Record) *runlog.Number { return r.ApproxKLLast }},
			{"max", func(r runlog.Record) *runlog.Number { return r.ApproxKLMax }}}},
	{Title: "Ratio", Unit: "policy to rollout, of tokens over a step's updates", Noisy: true,
		Format: short, Lines: []measured{
			{"", func(r runlog.Record) *runlog.Number { return r.Ratio }},
			{"min", func(r runlog.Record) *runlog.Number { return r.RatioMin }},
			{"max", func(r runlog.Record) *runlog.Number { return r.RatioMax }}}},
	{Title: "Gradient norm", Unit: "before clipping, over a step's updates", Zero: true, Noisy: true,
		Format: short, Lines: []measured{
			{"", func(r runlog.Record) *runlog.Number { return r.GradNorm }},
			{"last", func(r runlog.Record) *runlog.Number { return r.GradNormLast }},
			{"max", func(r runlog.Record) *runlog.Number { return r.GradNormMax }}}},
	{Title: "Loss", Unit: "over a step's updates", Noisy: true, Format: short, Lines: []measured{
		{"", func(r runlog.Record) *runlog.Number { return r.Loss }},
		{"last", func(r runlog.Record) *runlog.Number { return r.LossLast }},
		{"max", func(r runlog.Record) *runlog.Number { return r.LossMax }}}},
}

// indexerMetrics are of runs whose indexers learn.
var indexerMetrics = []metric{
	{Title: "Indexer loss", Unit: "nats per row, scores against attention", Zero: true, Noisy: true, Format: short,
		Lines: only(func(r runlog.Record) *runlog.Number {
			return r.IndexerLoss
		})},
	{Title: "Indexer gradient norm", Unit: "before clipping", Zero: true, Noisy: true, Format: short,
		Lines: only(func(r runlog.Record) *runlog.Number {
			return r.IndexerNorm
		})},
}

// Charts of the two stages of a run. Those of the poster come first.
var (
	supervisedMetrics = append([]metric{lossMetric, accuracyMetric}, updateMetrics...)
	preferenceMetrics = append([]metric{
		{Title: "Loss", Unit: "per pair", Zero: true, Noisy: true, Format: short, Lines: lossMetric.Lines},
		{Title: "Accuracy", Unit: "chosen answer has the higher reward", Zero: true, Top: 1, Noisy: true,
			Format: percent, Lines: []measured{
				{"training", func(r runlog.Record) *runlog.Number {
					return r.Preferred
				}}, {"held out", func(r runlog.Record) *runlog.Number { return r.EvalAccuracy }}}},
		{Title: "Margin", Unit: "chosen reward less rejected", Zero: true, Noisy: true, Format: short,
			Lines: []measured{
				{"training", func(r runlog.Record) *runlog.Number {
					return r.Margin
				}}, {"held out", func(r runlog.Record) *runlog.Number { return r.EvalMargin }}}},
		{Title: "Rewards", Unit: "beta times log-probability gained", Zero: true, Noisy: true, Format: short,
			Lines: []measured{
				{"chosen", func(r runlog.Record) *runlog.Number {
					return r.ChosenReward
				}}, {"rejected", func(r runlog.Record) *runlog.Number { return r.RejectedReward }}}},
		{Title: "Log-probabilities", Unit: "nats per answer", Noisy: true, Format: short, Lines: []measured{
			{"chosen", func(r runlog.Record) *runlog.Number {
				return r.ChosenLogProb
			}}, {"rejected", func(r runlog.Record) *runlog.Number { return r.RejectedLogProb }}}},
	}, updateMetrics...)
	updateMetrics = append([]metric{
		{Title: "Throughput", Unit: "tokens per second", Zero: true, Noisy: true, Format: Compact,
			Lines: only(func(r runlog.Record) *runlog.Number {
				return r.TokensPerSecond
			})},
		{Title: "Learning rate", Unit: "AdamW", Zero: true, Format: short,
			Lines: only(func(r runlog.Record) *runlog.Number {
				return r.LR
			})},
		normMetric,
	}, indexerMetrics...)
	reinforcedMetrics = append([]metric{
		rewardMetric, klMetric, clipMetric, accuracyMetric,
		{Title: "Answers without a gradient", Unit: "left out, or in a group of one reward", Zero: true, Noisy: true,
			Format: percent, Lines: only(func(r runlog.Record) *runlog.Number {
				return r.Discarded
			})},
		{Title: "Entropy", Unit: "of the rollout, nats per token", Zero: true, Noisy: true, Format: short,
			Lines: only(func(r runlog.Record) *runlog.Number {
				return r.Entropy
			})},
		{Title: "Answer length", Unit: "tokens", Zero: true, Noisy: true, Format: Compact,
			Lines: only(func(r runlog.Record) *runlog.Number {
				return r.Length
			})},
		{Title: "Cut answers", Unit: "share that reached rollout.max_tokens", Zero: true, Noisy: true, Format: percent,
			Lines: only(func(r runlog.Record) *runlog.Number {
				return r.Truncated
			})},
		{Title: "Staleness", Unit: "updates between a token and the step that learned from it", Zero: true, Noisy: true,
			Format: short, Lines: only(func(r runlog.Record) *runlog.Number {
				return r.Stale
			})},
		{Title: "Rollout", Unit: "sampled tokens per second of sampling", Zero: true, Noisy: true, Format: Compact,
			Lines: only(func(r runlog.Record) *runlog.Number {
				return r.RolloutSpeed
			})},
		{Title: "Learning", Unit: "tokens per second of forward and backward", Zero: true, Noisy: true, Format: Compact,
			Lines: only(func(r runlog.Record) *runlog.Number {
				return r.LearnSpeed
			})},
	}, append(policyMetrics, indexerMetrics...)...)
)

const (
	reinforcedPosters, supervisedPosters = 3, 2      // metrics of a poster
	posterW                              = 3 * 380.0 // pixels
)

// chart draws the metric over a stage of the series' runs.
func (m metric) chart(groups []*series, stage stage) chart {
	c := chart{Title: m.Title, Unit: m.Unit, Zero: m.Zero, Log: m.Log, Top: m.Top, Format: m.Format}
	for i, what := range m.Lines {
		for _, a := range groups {
			l := curve{Name: a.Name(), Class: a.Class, Noisy: m.Noisy, Points: a.points(stage, what.Of)}
			switch {
			case len(groups) == 1:
				l.Name, l.Class = what.Name, seriesClass(i)
			case i > 0:
				l.Name, l.Class = l.Name+", "+what.Name, l.Class+[...]string{"", " dash", " dot"}[i%3]
			}
			if m.Log {
				l.Value = a.agreement()
			}
			c.Lines = append(c.Lines, l)
		}
	}
	return c
}

func charts(metrics []metric, groups []*series, stage stage) (list []chart) {
	for _, m := range metrics {
		list = append(list, m.chart(groups, stage))
	}
	return list
}

// points are the finite values of a stage by step; where the series has several runs, their mean with the lowest and
// the highest. A step that some of the runs lack is the mean of the others.
func (a *series) points(stage stage, of func(runlog.Record) *runlog.Number) (list []point) {
	at := map[int][]float64{}
	for _, run := range a.Runs {
		for _, r := range run.records(stage) {
			if v := of(r); v != nil && !math.IsNaN(float64(*v)) && !math.IsInf(float64(*v), 0) {
				at[r.Step] = append(at[r.Step], float64(*v))
			}
		}
	}
	for step, values := range at {
		p := point{X: float64(step), Low: slices.Min(values), High: slices.Max(values)}
		for _, v := range values {
			p.Y += v / float64(len(values))
		}
		list = append(list, p)
	}
	slices.SortFunc(list, func(p, q point) int { return int(p.X - q.X) })
	return list
}

// agreement says of rollouts that agree with the trainer exactly how much was compared; "" where KL is not 0 at every
// step.
func (a *series) agreement() string {
	var t tally
	for _, run := range a.Runs {
		t.add(run.tally())
	}
	switch {
	case t.exact():
		return fmt.Sprintf("0 at every step, %s tokens equal", Compact(float64(t.Compared)))
	case t.Steps > 0 && t.Largest == 0:
		return fmt.Sprintf("0, but %s of %s tokens differ", count(t.Differ), count(t.Compared))
	}
	return ""
}

// tally sums what the steps of reinforcement learning compared.
type tally struct {
	Steps, Compared, Differ int
	Largest                 float64 // KL of a step
}

func (t *tally) add(o tally) {
	t.Steps, t.Compared, t.Differ, t.Largest = t.Steps+o.Steps, t.Compared+o.Compared, t.Differ+o.Differ,
		math.Max(t.Largest, o.Largest)
}

// exact tells whether something was compared and every bit agreed.
func (t tally) exact() bool { return t.Compared > 0 && t.Differ == 0 && t.Largest == 0 }

// tally is the run's.
func (p *runData) tally() (t tally) {
	for _, r := range p.records(reinforced) {
		if r.KL != nil {
			t.add(tally{1, r.Compared, r.Differ, float64(*r.KL)})
		}
	}
	return t
}

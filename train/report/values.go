package report

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"lockstep/train/runlog"
)

// Headline is the run in a few numbers.
func (p *runData) Headline() []runlog.NameValue {
	var list []runlog.NameValue
	add := func(name, value string) { list = append(list, runlog.NameValue{Name: name, Value: value}) }
	if p.reinforces() {
		list = p.reinforcedValues()
	} else {
		list = p.supervisedValues()
	}
	steps := count(p.Log[len(p.Log)-1].Step)
	if n := p.steps(); n > 0 && count(n) != steps {
		steps += " of " + count(n)
	}
	add("steps", steps)
	tokens := totalTokens(p.Log)
	if tokens > 0 {
		add("tokens", Compact(float64(tokens)))
	}
	if r := p.Result; r != nil {
		if tokens > 0 && r.Seconds > 0 && !p.reinforces() {
			add("tokens per second", count(int(math.Round(float64(tokens)/r.Seconds))))
		}
		add("training time", time.Duration(r.Seconds*float64(time.Second)).Round(time.Second).String())
		if r.Proof != nil {
			add("logits that differ in verification", fmt.Sprintf("%s of %s", count(r.Proof.Mismatches),
				Compact(float64(r.Proof.Logits))))
		}
	}
	return list
}

// supervisedValues are the numbers of a supervised run.
func (p *runData) supervisedValues() (list []runlog.NameValue) {
	for _, f := range []struct {
		name   string
		format func(float64) string
		of     func(runlog.Record) *runlog.Number
	}{
		{"held-out accuracy", percent, func(r runlog.Record) *runlog.Number { return r.EvalAccuracy }},
		{"held-out loss", short, func(r runlog.Record) *runlog.Number { return r.EvalLoss }},
		{"held-out margin", short, func(r runlog.Record) *runlog.Number { return r.EvalMargin }},
		{"training loss", short, func(r runlog.Record) *runlog.Number { return r.Loss }},
	} {
		if values := taken(p.records(supervised), f.of); len(values) > 0 {
			list = append(list, runlog.NameValue{Name: f.name, Value: f.format(latest(values))})
		}
	}
	return list
}

// reinforcedValues are the numbers of reinforcement learning.
func (p *runData) reinforcedValues() (list []runlog.NameValue) {
	for _, f := range []struct {
		name   string
		format func(float64) string
		of     func(runlog.Record) *runlog.Number
		sum    func([]float64) float64
	}{
		{"reward, last tenth of steps", short, func(r runlog.Record) *runlog.Number { return r.Reward }, atEnd},
		{"held-out accuracy", percent, func(r runlog.Record) *runlog.Number { return r.EvalAccuracy }, latest},
		{"KL per token, mean", short, func(r runlog.Record) *runlog.Number { return r.KL }, mean},
		{"KL over the vocabulary, mean", short, func(r runlog.Record) *runlog.Number { return r.KLExact }, mean},
		{"largest gap of log-probabilities", short, func(r runlog.Record) *runlog.Number {
			return r.LargestGap
		}, slices.Max[[]float64]},
		{"clipped tokens, mean", percent, func(r runlog.Record) *runlog.Number { return r.ClipFraction }, mean},
		{"clipped tokens, worst update", percent, func(r runlog.Record) *runlog.Number {
			return r.ClipFractionMax
		}, slices.Max[[]float64]},
		{"answers without a gradient, mean", percent, func(r runlog.Record) *runlog.Number {
			return r.Discarded
		}, mean},
		{"entropy, last tenth", short, func(r runlog.Record) *runlog.Number { return r.Entropy }, atEnd},
		{"answer length, last tenth", Compact, func(r runlog.Record) *runlog.Number { return r.Length }, atEnd},
		{"sampled tokens per second", Compact, func(r runlog.Record) *runlog.Number { return r.RolloutSpeed }, mean},
	} {
		if values := taken(p.records(reinforced), f.of); len(values) > 0 {
			list = append(list, runlog.NameValue{Name: f.name, Value: f.format(f.sum(values))})
		}
	}
	if t := p.tally(); t.Compared > 0 {
		list = slices.Insert(list, min(2, len(list)), runlog.NameValue{Name: "sampled tokens that differ",
			Value: fmt.Sprintf("%s of %s", count(t.Differ), count(t.Compared))})
	}
	return list
}

// totalTokens is the counter's last value; records of evaluations have none.
func totalTokens(records []runlog.Record) (n int) {
	for _, r := range records {
		n = max(n, r.Tokens)
	}
	return n
}

// taken are the values that records have.
func taken(records []runlog.Record, of func(runlog.Record) *runlog.Number) (list []float64) {
	for _, r := range records {
		if v := of(r); v != nil {
			list = append(list, float64(*v))
		}
	}
	return list
}

func mean(list []float64) (m float64) {
	for _, x := range list {
		m += x / float64(len(list))
	}
	return m
}

func latest(list []float64) float64 { return list[len(list)-1] }

// atEnd is the mean of the last tenth, one value at least.
func atEnd(list []float64) float64 { return mean(list[len(list)*9/10:]) }

// short has three significant digits: 0.0412, 1.5e-06.
func short(x float64) string { return strconv.FormatFloat(x, 'g', 3, 64) }

func percent(x float64) string { return short(100*x) + "%" }

// Compact is 950, 12k or 1.5M.
func Compact(x float64) string {
	for _, u := range []struct {
		size float64
		name string
	}{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if math.Abs(x) >= u.size {
			return short(x/u.size) + u.name
		}
	}
	return short(x)
}

// count groups thousands: 1,234,567.
func count(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// clean shows what a page cannot hold: control characters are named, broken UTF-8 is replaced.
func clean(text string) string {
	var b strings.Builder
	for _, r := range strings.ToValidUTF8(text, "\ufffd") {
		if r < ' ' && r != '\n' && r != '\t' || r == 0x7f {
			fmt.Fprintf(&b, "<%02x>", r)
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

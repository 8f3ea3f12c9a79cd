package train

import (
	"fmt"
	"html/template"
	"math"
	"strconv"
	"strings"
	"time"
)

// headline is the run in a few numbers.
func headline(r Report) []Fact {
	var facts []Fact
	add := func(name, value string) { facts = append(facts, Fact{name, value}) }
	if x, ok := last(r.Records, func(r Record) *Number { return r.EvalAccuracy }); ok {
		add("held-out accuracy", percent(x))
	}
	if x, ok := last(r.Records, func(r Record) *Number { return r.EvalLoss }); ok {
		add("held-out loss", short(x))
	}
	if x, ok := last(r.Records, func(r Record) *Number { return r.EvalMargin }); ok {
		add("held-out margin", short(x))
	}
	if x, ok := last(r.Records, func(r Record) *Number { return r.Loss }); ok {
		add("training loss", short(x))
	}
	if n := len(r.Records); n > 0 {
		add("steps", count(r.Records[n-1].Step))
	}
	if tokens := totalTokens(r.Records); tokens > 0 {
		add("tokens", compact(float64(tokens)))
		if r.Duration > 0 {
			add("tokens per second", count(int(math.Round(float64(tokens)/r.Duration.Seconds()))))
		}
	}
	if r.Duration > 0 {
		add("training time", r.Duration.Round(time.Second).String())
	}
	return facts
}

// totalTokens is the counter's last value; records of evaluations have none.
func totalTokens(records []Record) (n int) {
	for _, r := range records {
		n = max(n, r.Tokens)
	}
	return n
}

func last(records []Record, of func(Record) *Number) (x float64, ok bool) {
	for _, r := range records {
		if v := of(r); v != nil {
			x, ok = float64(*v), true
		}
	}
	return x, ok
}

// charts draws every curve that the run has.
func charts(records []Record) []template.HTML {
	var list []template.HTML
	for _, c := range []chart{
		lossChart(records), accuracyChart(records),
		{Title: "Margin", Unit: "chosen reward less rejected", Zero: true, Format: short, Lines: []curve{
			{Name: "training", Colour: "a", Noisy: true, Points: points(records, func(r Record) *Number { return r.Margin })},
			{Name: "held out", Colour: "b", Points: points(records, func(r Record) *Number { return r.EvalMargin })}}},
		{Title: "Rewards", Unit: "beta times log-probability gained", Zero: true, Format: short, Lines: []curve{
			{Name: "chosen", Colour: "c", Noisy: true, Points: points(records, func(r Record) *Number { return r.ChosenReward })},
			{Name: "rejected", Colour: "b", Noisy: true, Points: points(records, func(r Record) *Number { return r.RejectedReward })}}},
		{Title: "Log-probabilities", Unit: "nats per answer", Format: short, Lines: []curve{
			{Name: "chosen", Colour: "c", Noisy: true, Points: points(records, func(r Record) *Number { return r.ChosenLogProb })},
			{Name: "rejected", Colour: "b", Noisy: true, Points: points(records, func(r Record) *Number { return r.RejectedLogProb })}}},
		{Title: "Throughput", Unit: "tokens per second", Zero: true, Format: compact, Lines: []curve{
			{Colour: "a", Noisy: true, Points: points(records, func(r Record) *Number { return r.TokensPerSecond })}}},
		{Title: "Learning rate", Unit: "AdamW", Zero: true, Format: short, Lines: []curve{
			{Colour: "c", Points: points(records, func(r Record) *Number { return r.LR })}}},
		{Title: "Gradient norm", Unit: "before clipping", Zero: true, Format: short, Lines: []curve{
			{Colour: "b", Noisy: true, Points: points(records, func(r Record) *Number { return r.GradNorm })}}},
	} {
		if !c.empty() {
			list = append(list, template.HTML(c.svg())) // our own numbers and words: svg escapes them
		}
	}
	return list
}

func lossChart(records []Record) chart {
	unit := "nats per token"
	if paired(records) {
		unit = "per pair"
	}
	return chart{Title: "Loss", Unit: unit, Zero: true, Format: short, Lines: []curve{
		{Name: "training", Colour: "a", Noisy: true, Points: points(records, func(r Record) *Number { return r.Loss })},
		{Name: "held out", Colour: "b", Points: points(records, func(r Record) *Number { return r.EvalLoss })},
	}}
}

// paired tells whether records are of a run over preferences.
func paired(records []Record) bool {
	_, ok := last(records, func(r Record) *Number { return r.Margin })
	return ok
}

func accuracyChart(records []Record) chart {
	if paired(records) {
		return chart{Title: "Accuracy", Unit: "chosen answer has the higher reward", Zero: true, Top: 1, Format: percent, Lines: []curve{
			{Name: "training", Colour: "a", Noisy: true, Points: points(records, func(r Record) *Number { return r.Preferred })},
			{Name: "held out", Colour: "b", Points: points(records, func(r Record) *Number { return r.EvalAccuracy })},
		}}
	}
	return chart{Title: "Accuracy", Unit: "held-out samples solved", Zero: true, Top: 1, Format: percent, Lines: []curve{
		{Colour: "c", Points: points(records, func(r Record) *Number { return r.EvalAccuracy })},
	}}
}

// points takes the finite values.
func points(records []Record, of func(Record) *Number) (list []point) {
	for _, r := range records {
		if v := of(r); v != nil && !math.IsNaN(float64(*v)) && !math.IsInf(float64(*v), 0) {
			list = append(list, point{float64(r.Step), float64(*v)})
		}
	}
	return list
}

// short has three significant digits: 0.0412, 1.5e-06.
func short(x float64) string { return strconv.FormatFloat(x, 'g', 3, 64) }

func percent(x float64) string { return strconv.FormatFloat(math.Round(x*1000)/10, 'f', -1, 64) + "%" }

// compact is 950, 12k or 1.5M.
func compact(x float64) string {
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

package plan

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/BurntSushi/toml"

	"lockstep/configs"
	"lockstep/kernels"
	"lockstep/kernels/meta"
	"lockstep/train/setup"
)

// measuredRun is what cards reached, see testdata/measured.toml.
type measuredRun struct {
	Name, Shape, Machine, One, Seen, Changed string
	Set                                      []string
	Rate                                     float64
	OneRate                                  float64 `toml:"one_rate"`
	Answers                                  int
}

// measuredMemory is what a run took of a card.
type measuredMemory struct {
	Name, Shape, Seen string
	Set               []string
	GiB               float64
}

// How far a plan may be from what was measured: speeds, which differ by 10% between cards of one kind too, and ratios
// to one card in the same call, where a part that is forgotten is not lost in that. Memory is planned to the byte, and
// was printed to a tenth of a GiB.
const (
	speedWithin  = 0.1
	ratioWithin  = 0.02
	memoryWithin = 0.01
)

// Steps take as long on one card and on two as was measured, and as much memory.
func TestMeasured(t *testing.T) {
	var table struct {
		Run    []measuredRun
		Memory []measuredMemory
	}
	meta, err := toml.DecodeFile("testdata/measured.toml", &table)
	if err != nil || len(meta.Undecoded()) > 0 {
		t.Fatal(err, meta.Undecoded())
	}
	plans := map[string]float64{}
	for _, run := range table.Run {
		planned := run.planned(t)
		plans[run.Name] = planned
		off := planned/run.Rate - 1
		t.Logf("%-36s by plan %7.0f, measured %7.0f, %+.1f%%", run.Name, planned, run.Rate, 100*off)
		if run.Seen == "" || run.Changed == "" && math.Abs(off) > speedWithin {
			t.Errorf("%s, seen %q: %.0f tokens/s by plan, %.0f measured", run.Name, run.Seen, planned, run.Rate)
		}
		if run.One == "" {
			continue
		}
		ratio, want := planned/plans[run.One], run.Rate/run.OneRate
		t.Logf("%-36s of one card %.3f, measured %.3f", run.Name, ratio, want)
		if run.Changed == "" && !(math.Abs(ratio/want-1) < ratioWithin) {
			t.Errorf("%s: %.3f of one card by plan, %.3f measured", run.Name, ratio, want)
		}
	}
	for _, run := range table.Memory {
		planned := run.planned(t)
		off := planned/run.GiB - 1
		t.Logf("%-42s by plan %6.2f GiB, measured %5.1f, %+.1f%%", run.Name, planned, run.GiB, 100*off)
		if run.Seen == "" || !(math.Abs(off) < memoryWithin) {
			t.Errorf("%s, seen %q: %.2f GiB by plan, %.1f measured", run.Name, run.Seen, planned, run.GiB)
		}
	}
}

// planned is the card's memory of training in GiB.
func (run measuredMemory) planned(t *testing.T) float64 {
	t.Helper()
	s, err := configs.Load("../../configs/"+run.Shape+".toml", append(run.Set, "run.recompute=full",
		"data.eval_samples=0", "run.verify_tokens=0"))
	if err != nil {
		t.Fatal(run.Name, err)
	}
	p, err := New(meta.New(setup.Definition(s), kernels.SpareGPU), s)
	if err != nil {
		t.Fatal(run.Name, err)
	}
	n, err := p.Choose(0)
	if err != nil {
		t.Fatal(run.Name, err)
	}
	return float64(n.Device()) / (1 << 30)
}

// planned is the tokens a second of training, or of answers.
func (run measuredRun) planned(t *testing.T) float64 {
	t.Helper()
	m, err := configs.LoadMachine(run.Machine)
	if err != nil {
		t.Fatal(err)
	}
	s, err := configs.Load("../../configs/"+run.Shape+".toml", append(run.Set, "data.eval_samples=0",
		"run.verify_tokens=0"))
	if err != nil {
		t.Fatal(run.Name, err)
	}
	if run.Answers > 0 {
		return run.plannedAnswers(t, m, s)
	}
	o := &OnMachine{Machine: m}
	p, err := o.open(s)
	if err == nil {
		_, err = p.Choose(o.available())
	}
	if err != nil {
		t.Fatal(run.Name, err)
	}
	step, err := p.Step(m)
	if err != nil {
		t.Fatal(run.Name, err)
	}
	return step.Rate()
}

// plannedAnswers is the tokens a second of answers, whose lengths are drawn as those of bench ranks, from another seed.
func (run measuredRun) plannedAnswers(t *testing.T, m configs.Machine, s *configs.Shape) float64 {
	t.Helper()
	rng, tokens := rand.New(rand.NewPCG(1, 2)), 0
	var answers []Answer
	for range run.Answers {
		answers = append(answers, Answer{64 + rng.IntN(193), 64 + rng.IntN(193)})
		tokens += answers[len(answers)-1].New
	}
	seconds, err := AnswersOn(m, s, answers)
	if err != nil {
		t.Fatal(run.Name, err)
	}
	return float64(tokens) / seconds
}

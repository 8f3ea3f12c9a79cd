package report

import (
	"fmt"
	"html/template"
	"slices"
	"strings"
	"time"
)

// page is what report.html.tmpl shows.
type page struct{ Series []*series }

// Summary counts the page's runs.
func (p page) Summary() string { return (&Report{p}).String() }

// Runs are those of all series.
func (p page) Runs() (list []*runData) {
	for _, a := range p.Series {
		list = append(list, a.Runs...)
	}
	return list
}

// Several tells whether the page compares runs.
func (p page) Several() bool { return len(p.Runs()) > 1 }

// Title has the names that the runs' shapes give them.
func (p page) Title() string {
	var names []string
	for _, run := range p.Runs() {
		if !slices.Contains(names, run.Shape.Run.Name) {
			names = append(names, run.Shape.Run.Name)
		}
	}
	return strings.Join(names, ", ")
}

// Date is that of the last run's end, or of its last record.
func (p page) Date() (last time.Time) {
	for _, run := range p.Runs() {
		at := run.Log[len(run.Log)-1].Time
		if run.Result != nil {
			at = run.Result.Finished
		}
		if at.After(last) {
			last = at
		}
	}
	return last.UTC()
}

// section is a heading and its charts.
type section struct {
	Title, Note string
	Folded      bool
	Charts      []template.HTML
}

// Sections are the charts of both stages.
func (p page) Sections() (list []section) {
	learning := align(charts(reinforcedMetrics, p.Series, reinforced), chartW)
	if len(learning) > 0 {
		list = append(list, section{Title: "Reinforcement learning", Note: "steps from the start of the stage",
			Charts: drawn(learning)})
	}
	title := "Curves"
	if len(learning) > 0 {
		title = "Supervised steps"
	}
	if steps := align(charts(p.supervisedCharts(), p.Series, supervised), chartW); len(steps) > 0 {
		list = append(list, section{Title: title, Folded: len(learning) > 0, Charts: drawn(steps)})
	}
	return list
}

// supervisedCharts are the charts of supervised steps: those of preferences where all runs learn from some.
func (p page) supervisedCharts() []metric {
	if slices.ContainsFunc(p.Runs(), func(run *runData) bool { return run.Shape.Data.Preferences == "" }) {
		return supervisedMetrics
	}
	return preferenceMetrics
}

func drawn(charts []chart) (list []template.HTML) {
	for _, c := range charts {
		list = append(list, template.HTML(c.svg())) // svg escapes names; the rest is our own numbers and words
	}
	return list
}

// Differences are the keys in which the runs differ.
func (p page) Differences() []difference { return differences(p.Series) }

// table is the headline of each run under the names of its numbers.
type table struct {
	Heads []string
	Rows  []tableRow
}

type tableRow struct {
	Class, Name string
	Cells       []string
}

// Headlines is the table of several runs' numbers; those that a run lacks are dashes.
func (p page) Headlines() (t table) {
	for _, run := range p.Runs() {
		for i, f := range run.Headline() {
			if !slices.Contains(t.Heads, f.Name) {
				t.Heads = slices.Insert(t.Heads, min(i, len(t.Heads)), f.Name)
			}
		}
	}
	for _, a := range p.Series {
		for _, run := range a.Runs {
			row := tableRow{Class: a.Class, Name: run.Name, Cells: slices.Repeat([]string{"–"}, len(t.Heads))}
			for _, f := range run.Headline() {
				row.Cells[slices.Index(t.Heads, f.Name)] = f.Value
			}
			t.Rows = append(t.Rows, row)
		}
	}
	return t
}

// verdict says whether rollouts were the trainer's own.
type verdict struct {
	Exact      bool
	Head, Text string
}

// Verdict is that of reinforcement learning; nil: the series has none.
func (a *series) Verdict() *verdict {
	var t tally
	stale := 0
	for _, run := range a.Runs {
		t.add(run.tally())
		stale = max(stale, run.Shape.RL.Staleness)
	}
	switch {
	case t.Compared == 0:
		return nil
	case t.exact():
		return &verdict{true, "KL = 0 at every step: rollout and trainer agree on every bit",
			fmt.Sprintf("%s sampled tokens of %s steps were compared bit for bit; none differs", count(t.Compared),
				count(t.Steps))}
	}
	v := &verdict{false, fmt.Sprintf("KL up to %s: the rollout is not the model that learns", short(t.Largest)),
		fmt.Sprintf("%s of %s sampled tokens (%s) differ, over %s steps", count(t.Differ), count(t.Compared),
			percent(float64(t.Differ)/float64(t.Compared)), count(t.Steps))}
	if stale > 0 {
		v.Text += fmt.Sprintf("; answers may be %d updates old", stale)
	}
	return v
}

// Sampled tells whether some run has answers to show.
func (p page) Sampled() bool {
	return slices.ContainsFunc(p.Series, func(a *series) bool { return len(a.Runs[0].Samples) > 0 })
}

package report

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"lockstep/configs"
	"lockstep/data"
	"lockstep/data/tokenizer"
	"lockstep/train/runlog"
)

// runData is a run as its folder tells it.
type runData struct {
	Name    string // tells it from the other runs of a report
	Shape   *configs.Shape
	Log     []runlog.Record // ascending steps
	Result  *runlog.Result  // nil: the run has not finished
	Sampled int             // step of Samples; 0: the last evaluation
	// the answers that it learned from last; of a supervised run some of the last evaluation
	Samples []runlog.Generation
}

// readRun reads a run's folder. A run may still be going on.
func readRun(dir string) (*runData, error) {
	if !runlog.HasRun(dir) {
		return nil, fmt.Errorf("%s has no run: no %s in it, give a folder written by lockstep train", dir,
			runlog.ShapeFile)
	}
	p := &runData{}
	var err error
	if p.Shape, err = configs.Load(filepath.Join(dir, runlog.ShapeFile), nil); err != nil {
		return nil, err
	}
	if p.Log, err = runlog.ReadMetrics(dir); err != nil {
		return nil, err
	}
	if len(p.Log) == 0 {
		return nil, fmt.Errorf("%s: the run has no metrics yet, wait for its first step",
			filepath.Join(dir, runlog.MetricsFile))
	}
	if p.Result, err = runlog.ReadResult(filepath.Join(dir, runlog.ResultFile)); err != nil {
		return nil, err
	}
	if p.Result != nil {
		p.Samples = p.Result.Samples
	}
	return p, p.readAnswers(dir)
}

// shownAnswers is how many answers of a run the report has.
const shownAnswers = 4

// readAnswers takes the first answer to each of the first prompts of the last step in the log of sampled answers, where
// there is one.
func (p *runData) readAnswers(dir string) error {
	var last []*runlog.Episode
	err := runlog.EachEpisode(dir, func(e *runlog.Episode, _ []byte) error {
		if e.Sample > 0 || !e.Learned {
			return nil
		}
		if len(last) > 0 && e.Step != last[0].Step {
			last = last[:0]
		}
		last = append(last, e)
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(last) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	p.Samples, p.Sampled = nil, last[0].Step
	speak := p.speaker()
	for _, e := range last[:min(len(last), shownAnswers)] {
		p.Samples = append(p.Samples, runlog.Generation{Prompt: speak(e.Prompt), Answer: strings.TrimSpace(e.Text),
			Reward: e.Reward})
	}
	return nil
}

// speaker converts prompts back to texts. A checkpoint that the run started from may have moved since: then it says so
// in their place.
func (p *runData) speaker() func(ids []int32) string {
	load := func() (*tokenizer.Tokenizer, error) { return tokenizer.Load(p.Shape.Model.Path) }
	if name := p.Shape.Model.Tokenizer; name != "" {
		load = func() (*tokenizer.Tokenizer, error) {
			tok, err := data.NewChatTokenizer(name)
			if err != nil {
				return nil, err
			}
			return tok.Tokenizer, nil
		}
	}
	t, err := load()
	if err != nil {
		return func(ids []int32) string { return fmt.Sprintf("(%d tokens: %v)", len(ids), err) }
	}
	return func(ids []int32) string { return strings.TrimSpace(t.Decode(ids)) }
}

// stage is a part of a run.
type stage int

const (
	supervised stage = iota // a supervised run, or the warm start of reinforcement learning
	reinforced
)

// warm counts the supervised steps before reinforcement learning.
func (p *runData) warm() int { return p.Shape.WarmStart.Steps }

// reinforces tells whether the run is reinforcement learning.
func (p *runData) reinforces() bool { return p.Shape.RL.Objective != "" }

// steps is the length of the run that its shape asks for; 0: as many as its epochs have.
func (p *runData) steps() int {
	if p.Shape.Run.Steps == 0 {
		return 0
	}
	return p.warm() + p.Shape.Run.Steps
}

// records are those of a stage. Steps of reinforcement learning are counted from its start, where the last evaluation
// of the warm start is its step 0.
func (p *runData) records(s stage) (list []runlog.Record) {
	for _, r := range p.Log {
		late := p.reinforces() && r.Step > p.warm()
		switch {
		case s == supervised && !late:
			list = append(list, r)
		case s == reinforced && late:
			r.Step -= p.warm()
			list = append(list, r)
		case s == reinforced && p.reinforces() && r.Step == p.warm():
			list = append(list, runlog.Record{EvalLoss: r.EvalLoss, EvalAccuracy: r.EvalAccuracy})
		}
	}
	return list
}

package train

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"lockstep/configs"
	"lockstep/data"
)

// result is result.json: what a finished run says of itself, besides its shape and its logs.
type result struct {
	Finished    time.Time    `json:"finished"`
	Seconds     float64      `json:"seconds"` // of training
	Environment []Fact       `json:"environment"`
	Memory      memoryTaken  `json:"memory"`
	Proof       *Proof       `json:"proof,omitempty"`   // nil: the run had no proof
	Samples     []Generation `json:"samples,omitempty"` // of the last evaluation
}

// Fact is a name and a value, both for people.
type Fact struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Proof is the outcome of holding the rollout engine against the training forward.
type Proof struct {
	Tokens     int        `json:"tokens"`     // positions
	Logits     int        `json:"logits"`     // numbers compared bit for bit
	LogProbs   int        `json:"logprobs"`   // likewise, of next tokens
	Mismatches int        `json:"mismatches"` // of both kinds
	KL         Number     `json:"kl"`         // mean over positions of KL(training || rollout), nats
	Digest     string     `json:"definition"` // hex
	Ways       []ProofWay `json:"ways"`
}

// Zero tells whether something was compared and every bit agreed.
func (p *Proof) Zero() bool { return p.Logits > 0 && p.Mismatches == 0 && p.KL == 0 }

// ProofWay is one way of computing that was held against the training forward, such as "decode".
type ProofWay struct {
	Name       string `json:"name"`
	Logits     int    `json:"logits"`
	Mismatches int    `json:"mismatches"`
	KL         Number `json:"kl"`
}

// Generation is a sampled answer.
type Generation struct {
	Prompt string  `json:"prompt"`
	Answer string  `json:"answer"`
	Reward float64 `json:"reward"`
	Note   string  `json:"note,omitempty"` // what was expected; "": nothing
}

const resultFile = "result.json"

// pastRun is a run as its folder tells it.
type pastRun struct {
	Name    string // tells it from the other runs of a report
	Shape   *configs.Shape
	Log     []Record     // ascending steps
	Result  *result      // nil: the run has not finished
	Sampled int          // step of Samples; 0: the last evaluation
	Samples []Generation // the answers that it learned from last; of a supervised run some of the last evaluation
}

// readRun reads a run's folder. A run may still be going on.
func readRun(dir string) (*pastRun, error) {
	if !hasRun(dir) {
		return nil, fmt.Errorf("%s holds no run: it has no %s, give a folder that lockstep train wrote", dir, shapeFile)
	}
	p := &pastRun{}
	var err error
	if p.Shape, err = configs.Load(filepath.Join(dir, shapeFile), nil); err != nil {
		return nil, err
	}
	if p.Log, err = ReadMetrics(dir); err != nil {
		return nil, err
	}
	if len(p.Log) == 0 {
		return nil, fmt.Errorf("%s: the run has no record yet, wait for its first step",
			filepath.Join(dir, metricsFile))
	}
	if p.Result, err = readResult(filepath.Join(dir, resultFile)); err != nil {
		return nil, err
	}
	if p.Result != nil {
		p.Samples = p.Result.Samples
	}
	return p, p.readAnswers(dir)
}

func readResult(path string) (*result, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var r result
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("%s: not the result of a run (%w), remove the file", path, err)
	}
	return &r, nil
}

// shownAnswers is how many answers of a run the report has.
const shownAnswers = 4

// readAnswers takes the first answer to each of the first prompts of the last step in the log of sampled answers, where
// there is one.
func (p *pastRun) readAnswers(dir string) error {
	var last []*episode
	err := eachEpisode(dir, func(e *episode, _ []byte) error {
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
		p.Samples = append(p.Samples, Generation{Prompt: speak(e.Prompt), Answer: strings.TrimSpace(e.Text),
			Reward: e.Reward})
	}
	return nil
}

// speaker turns prompts back into texts. A checkpoint that the run started from may have moved since: then it says so
// in their place.
func (p *pastRun) speaker() func(ids []int32) string {
	load := func() (*data.Tokenizer, error) { return data.LoadTokenizer(p.Shape.Model.Path) }
	if name := p.Shape.Model.Tokenizer; name != "" {
		load = func() (*data.Tokenizer, error) {
			l, err := data.NewLanguage(name)
			if err != nil {
				return nil, err
			}
			return l.Tokenizer, nil
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
func (p *pastRun) warm() int { return p.Shape.WarmStart.Steps }

// learns tells whether the run is reinforcement learning.
func (p *pastRun) learns() bool { return p.Shape.RL.Objective != "" }

// steps is the length of the run that its shape asks for; 0: as many as its epochs have.
func (p *pastRun) steps() int {
	if p.Shape.Run.Steps == 0 {
		return 0
	}
	return p.warm() + p.Shape.Run.Steps
}

// records are those of a stage. Steps of reinforcement learning are counted from its start, where the last evaluation
// of the warm start is its step 0.
func (p *pastRun) records(s stage) (list []Record) {
	for _, r := range p.Log {
		late := p.learns() && r.Step > p.warm()
		switch {
		case s == supervised && !late:
			list = append(list, r)
		case s == reinforced && late:
			r.Step -= p.warm()
			list = append(list, r)
		case s == reinforced && p.learns() && r.Step == p.warm():
			list = append(list, Record{EvalLoss: r.EvalLoss, EvalAccuracy: r.EvalAccuracy})
		}
	}
	return list
}

package setup

import (
	"fmt"
	"time"

	"lockstep/configs"
	"lockstep/data"
	"lockstep/model"
	"lockstep/serve"
)

// Corpus is the data of a run: what it is trained on and what it is evaluated by.
type Corpus struct {
	Train            *data.Dataset     // training samples; nil: the run is trained on pairs or on answers
	HeldOut          *data.Dataset     // held-out samples for the loss; nil: none
	Pairs            *data.Preferences // training pairs; nil: none
	HeldOutPairs     *data.Preferences // held-out ones; nil: none
	TrainQuestions   *JudgedQuestions  // what reinforcement learning asks; nil: the run is supervised
	HeldOutQuestions *JudgedQuestions  // held-out questions that an evaluation asks; nil: none
}

// Samples returns what the run's stream is of, training samples or pairs; nil: there is none.
func (c *Corpus) Samples() data.Source {
	switch {
	case c.Pairs != nil:
		return c.Pairs
	case c.Train != nil:
		return c.Train
	}
	return nil
}

// Conversation returns the first training sample that is made of messages; false: there is none.
func (c *Corpus) Conversation() (data.Sample, bool) {
	switch {
	case c.Pairs != nil:
		return c.Pairs.Conversation()
	case c.Train != nil:
		return c.Train.Conversation()
	}
	return data.Sample{}, false
}

// Ignored names the fields of the run's files that nothing reads.
func (c *Corpus) Ignored() (list []string) {
	for _, d := range []*data.Dataset{c.Train, c.HeldOut} {
		if d != nil {
			list = append(list, d.Ignored...)
		}
	}
	for _, p := range []*data.Preferences{c.Pairs, c.HeldOutPairs} {
		if p != nil {
			list = append(list, p.Ignored...)
		}
	}
	for _, e := range []*JudgedQuestions{c.TrainQuestions, c.HeldOutQuestions} {
		if e != nil {
			list = append(list, e.Ignored...)
		}
	}
	return list
}

// Texts returns up to n training sequences.
func (c *Corpus) Texts(n int) (list [][]int32) {
	if c.Pairs != nil {
		for i := range min(n, c.Pairs.Len()) {
			chosen, _ := c.Pairs.Pair(i)
			list = append(list, chosen.IDs)
		}
	}
	if c.Train != nil {
		for i := range min(n, c.Train.Len()) {
			list = append(list, c.Train.Sample(i).IDs)
		}
	}
	return list
}

// Longest returns the positions of the longest answer with its prompt; 0: there are no questions.
func (c *Corpus) Longest(maxTokens int) (n int) {
	for _, e := range []*JudgedQuestions{c.TrainQuestions, c.HeldOutQuestions} {
		if e == nil {
			continue
		}
		for i := range e.Len() {
			n = max(n, len(e.Prompt(i))+maxTokens)
		}
	}
	return n
}

// JudgedQuestions is questions with the judge of their answers.
type JudgedQuestions struct {
	*data.Questions
	Judge    data.Rewarder
	Solution func(i int) string // an answer that is right, for the report; "" where none is known
}

// dataOptions says how data becomes samples of the model's. l may be nil.
func dataOptions(s *configs.Shape, m *model.Model, tok *data.ChatTokenizer) data.Options {
	o := data.Options{
		End: -1, Vocab: m.Vocab, MaxRows: min(s.Data.PackRows, m.MaxLength), PairRows: s.Data.PackRows,
		Long: data.Long(s.Data.Long),
	}
	SetTokenizer(&o, m, tok)
	o.NoEnd = s.Data.NoEnd
	return o
}

// SetTokenizer sets how text becomes tokens of the model, and which tokens end it. tok may be nil.
func SetTokenizer(o *data.Options, m *model.Model, tok *data.ChatTokenizer) {
	if tok != nil {
		o.Codec, o.Template, o.End, o.Stops = tok, tok.Template, tok.End, serve.StopTokens(m, tok)
	}
}

// OpenCorpus reads or makes the data of a shape for its model. l may be nil: the data are ids.
func OpenCorpus(s *configs.Shape, m *model.Model, tok *data.ChatTokenizer) (*Corpus, error) {
	if s.Data.Task == "countdown" {
		return openTask(s, m, tok)
	}
	if s.RL.Objective != "" {
		return openQuestions(s, m, tok)
	}
	o := dataOptions(s, m, tok)
	var c Corpus
	var err error
	if s.Data.Preferences != "" {
		if c.Pairs, err = data.LoadPreferences(s.Data.Preferences, o); err == nil && s.Data.EvalPath != "" {
			c.HeldOutPairs, err = data.LoadPreferences(s.Data.EvalPath, o)
		}
		return &c, err
	}
	if c.Train, err = data.LoadJSONL(s.Data.Path, o); err != nil {
		return nil, err
	}
	if s.Data.EvalPath != "" {
		c.HeldOut, err = data.LoadJSONL(s.Data.EvalPath, o)
	}
	return &c, err
}

// openTask makes samples and questions of a built-in task.
func openTask(s *configs.Shape, m *model.Model, tok *data.ChatTokenizer) (*Corpus, error) {
	if tok == nil {
		return nil, fmt.Errorf("data.task: %s has no tokenizer.json: the task is text, add one or train on a "+
			"data.path of ids", s.Model.Path)
	}
	task := Countdown(s)
	if err := task.Validate(); err != nil {
		return nil, err
	}
	o := dataOptions(s, m, tok)
	var c Corpus
	var err error
	if c.Train, err = data.NewTaskDataset(task, data.Train, o); err != nil {
		return nil, err
	}
	if c.HeldOut, err = data.NewTaskDataset(task, data.Test, o); err != nil {
		return nil, err
	}
	questions := func(split data.Split, o data.Options, judge data.RewardOptions) (*JudgedQuestions, error) {
		q, err := data.NewTaskQuestions(task, split, o)
		if err != nil {
			return nil, err
		}
		return newQuestions(q, judge, func(i int) string { return task.Example(split, i).Completion })
	}
	if c.HeldOutQuestions, err = questions(data.Test, o, data.RewardOptions{Kind: "task"}); err != nil ||
		s.RL.Objective == "" {
		return &c, err
	}
	if o, err = questionOptions(s, m, tok); err != nil {
		return nil, err
	}
	c.TrainQuestions, err = questions(data.Train, o, rewardOptions(s.RL))
	return &c, err
}

// openQuestions reads the questions of reinforcement learning from files.
func openQuestions(s *configs.Shape, m *model.Model, tok *data.ChatTokenizer) (*Corpus, error) {
	o, err := questionOptions(s, m, tok)
	if err != nil {
		return nil, err
	}
	o.Judged = s.RL.Reward == "command" || s.RL.Reward == "http"
	open := func(path string) (*JudgedQuestions, error) {
		q, err := data.LoadQuestions(path, o)
		if err != nil {
			return nil, err
		}
		return newQuestions(q, rewardOptions(s.RL), func(i int) string { return q.Answer(i, "").Want })
	}
	var c Corpus
	if c.TrainQuestions, err = open(s.Data.Path); err != nil || s.Data.EvalPath == "" {
		return &c, err
	}
	c.HeldOutQuestions, err = open(s.Data.EvalPath)
	return &c, err
}

func newQuestions(q *data.Questions, judge data.RewardOptions, right func(i int) string) (*JudgedQuestions, error) {
	r, err := data.NewRewarder(judge, q)
	if err != nil {
		return nil, fmt.Errorf("rl.reward: %w", err)
	}
	return &JudgedQuestions{q, r, right}, nil
}

// questionOptions leaves room for answers.
func questionOptions(s *configs.Shape, m *model.Model, tok *data.ChatTokenizer) (data.Options, error) {
	o := dataOptions(s, m, tok)
	if tok == nil {
		return o, fmt.Errorf("model.path: %s has no tokenizer.json: answers are judged as text, add one", s.Model.Path)
	}
	if o.MaxRows -= s.Rollout.MaxTokens; o.MaxRows < 1 {
		return o, fmt.Errorf("rollout.max_tokens: %d leaves no room for a prompt, want less than data.pack_rows %d "+
			"and the model's length %d", s.Rollout.MaxTokens, s.Data.PackRows, m.MaxLength)
	}
	return o, nil
}

func rewardOptions(s configs.RL) data.RewardOptions {
	return data.RewardOptions{
		Kind: s.Reward, Final: data.Final(s.Final), Marker: s.Marker, Command: s.Command, URL: s.URL,
		Timeout: time.Duration(s.Timeout * float64(time.Second)),
		Retries: s.Retries, Parallel: s.Parallel,
	}
}

// Countdown returns the built-in task of a shape.
func Countdown(s *configs.Shape) data.Countdown {
	c := s.Data.Countdown
	return data.Countdown{
		Numbers: c.Numbers, MinNumber: c.MinNumber, MaxNumber: c.MaxNumber, MaxTarget: c.MaxTarget,
		Operators: c.Operators, Style: c.Style,
		Train: c.Train, Test: c.Test, Seed: uint64(c.Seed),
	}
}

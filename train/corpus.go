package train

import (
	"fmt"
	"time"

	"lockstep/configs"
	"lockstep/data"
	"lockstep/model"
	"lockstep/serve"
)

// corpus is what a run learns from and is judged by.
type corpus struct {
	train     *data.Dataset     // samples to learn from; nil: none, preferences or answers to questions are
	eval      *data.Dataset     // held-out samples for the loss; nil: none
	pairs     *data.Preferences // preferences to learn from; nil: none
	heldPairs *data.Preferences // held-out ones; nil: none
	asked     *exam             // what reinforcement learning asks; nil: the run is supervised
	held      *exam             // held-out questions that an evaluation asks; nil: none
}

// lessons is what the run's stream gives; nil: there is none.
func (c *corpus) lessons() data.Lessons {
	switch {
	case c.pairs != nil:
		return c.pairs
	case c.train != nil:
		return c.train
	}
	return nil
}

// conversation is the first sample of messages that the run learns from; false: there is none.
func (c *corpus) conversation() (data.Sample, bool) {
	switch {
	case c.pairs != nil:
		return c.pairs.Conversation()
	case c.train != nil:
		return c.train.Conversation()
	}
	return data.Sample{}, false
}

// ignored names the fields of the run's files that nothing reads.
func (c *corpus) ignored() (list []string) {
	for _, d := range []*data.Dataset{c.train, c.eval} {
		if d != nil {
			list = append(list, d.Ignored...)
		}
	}
	for _, p := range []*data.Preferences{c.pairs, c.heldPairs} {
		if p != nil {
			list = append(list, p.Ignored...)
		}
	}
	for _, e := range []*exam{c.asked, c.held} {
		if e != nil {
			list = append(list, e.Ignored...)
		}
	}
	return list
}

// texts is up to n sequences that the run learns from as they are.
func (c *corpus) texts(n int) (list [][]int32) {
	if c.pairs != nil {
		for i := range min(n, c.pairs.Len()) {
			chosen, _ := c.pairs.Pair(i)
			list = append(list, chosen.IDs)
		}
	}
	if c.train != nil {
		for i := range min(n, c.train.Len()) {
			list = append(list, c.train.Sample(i).IDs)
		}
	}
	return list
}

// longest is how many positions the longest answer has, its prompt included; 0: there are no questions.
func (c *corpus) longest(maxTokens int) (n int) {
	for _, e := range []*exam{c.asked, c.held} {
		if e == nil {
			continue
		}
		for i := range e.Len() {
			n = max(n, len(e.Prompt(i))+maxTokens)
		}
	}
	return n
}

// exam is questions with who judges the answers.
type exam struct {
	*data.Questions
	judge data.Rewarder
	right func(i int) string // an answer that is right, for the report; "" where none is known
}

// dataOptions says how data becomes samples of the model's. l may be nil.
func dataOptions(s *configs.Shape, m *model.Model, l *data.Language) data.Options {
	o := data.Options{
		End: -1, Vocab: m.Vocab, MaxRows: min(s.Data.PackRows, m.MaxLength), PairRows: s.Data.PackRows,
		Long: data.Long(s.Data.Long),
	}
	speak(&o, m, l)
	o.NoEnd = s.Data.NoEnd
	return o
}

// speak says how text becomes tokens of the model, and what ends it. l may be nil.
func speak(o *data.Options, m *model.Model, l *data.Language) {
	if l != nil {
		o.Codec, o.Template, o.End, o.Stops = l, l.Template, l.End, serve.Stops(m, l)
	}
}

func openCorpus(s *configs.Shape, m *model.Model, l *data.Language) (*corpus, error) {
	if s.Data.Task == "countdown" {
		return openTask(s, m, l)
	}
	if s.RL.Objective != "" {
		return openQuestions(s, m, l)
	}
	o := dataOptions(s, m, l)
	var c corpus
	var err error
	if s.Data.Preferences != "" {
		if c.pairs, err = data.LoadPreferences(s.Data.Preferences, o); err == nil && s.Data.EvalPath != "" {
			c.heldPairs, err = data.LoadPreferences(s.Data.EvalPath, o)
		}
		return &c, err
	}
	if c.train, err = data.LoadJSONL(s.Data.Path, o); err != nil {
		return nil, err
	}
	if s.Data.EvalPath != "" {
		c.eval, err = data.LoadJSONL(s.Data.EvalPath, o)
	}
	return &c, err
}

// openTask makes samples and questions of a built-in task.
func openTask(s *configs.Shape, m *model.Model, l *data.Language) (*corpus, error) {
	if l == nil {
		return nil, fmt.Errorf("data.task: %s has no tokenizer.json: the task is text, add one or train on a "+
			"data.path of ids", s.Model.Path)
	}
	task := countdown(s)
	if err := task.Validate(); err != nil {
		return nil, err
	}
	o := dataOptions(s, m, l)
	var c corpus
	var err error
	if c.train, err = data.NewTaskDataset(task, data.Train, o); err != nil {
		return nil, err
	}
	if c.eval, err = data.NewTaskDataset(task, data.Test, o); err != nil {
		return nil, err
	}
	questions := func(split data.Split, o data.Options, judge data.RewardOptions) (*exam, error) {
		q, err := data.NewTaskQuestions(task, split, o)
		if err != nil {
			return nil, err
		}
		return newExam(q, judge, func(i int) string { return task.Example(split, i).Completion })
	}
	if c.held, err = questions(data.Test, o, data.RewardOptions{Kind: "task"}); err != nil || s.RL.Objective == "" {
		return &c, err
	}
	if o, err = questionOptions(s, m, l); err != nil {
		return nil, err
	}
	c.asked, err = questions(data.Train, o, rewardOptions(s.RL))
	return &c, err
}

// openQuestions reads the questions of reinforcement learning from files.
func openQuestions(s *configs.Shape, m *model.Model, l *data.Language) (*corpus, error) {
	o, err := questionOptions(s, m, l)
	if err != nil {
		return nil, err
	}
	o.Judged = s.RL.Reward == "command" || s.RL.Reward == "http"
	open := func(path string) (*exam, error) {
		q, err := data.LoadQuestions(path, o)
		if err != nil {
			return nil, err
		}
		return newExam(q, rewardOptions(s.RL), func(i int) string { return q.Answer(i, "").Want })
	}
	var c corpus
	if c.asked, err = open(s.Data.Path); err != nil || s.Data.EvalPath == "" {
		return &c, err
	}
	c.held, err = open(s.Data.EvalPath)
	return &c, err
}

func newExam(q *data.Questions, judge data.RewardOptions, right func(i int) string) (*exam, error) {
	r, err := data.NewRewarder(judge, q)
	if err != nil {
		return nil, fmt.Errorf("rl.reward: %w", err)
	}
	return &exam{q, r, right}, nil
}

// questionOptions leaves room for answers.
func questionOptions(s *configs.Shape, m *model.Model, l *data.Language) (data.Options, error) {
	o := dataOptions(s, m, l)
	if l == nil {
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

func countdown(s *configs.Shape) data.Countdown {
	c := s.Data.Countdown
	return data.Countdown{
		Numbers: c.Numbers, MinNumber: c.MinNumber, MaxNumber: c.MaxNumber, MaxTarget: c.MaxTarget,
		Operators: c.Operators, Style: c.Style,
		Train: c.Train, Test: c.Test, Seed: uint64(c.Seed),
	}
}

package train

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"time"

	"lockstep/configs"
	"lockstep/data"
	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/model"
	"lockstep/optim"
	"lockstep/serve"
)

// OpenDevice makes the device that a shape names, computing by its definition; broken, where set, is the rule to break.
func OpenDevice(s *configs.Shape, broken kernels.Break) (kernels.Device, error) {
	def := Definition(s)
	def.Break = broken
	return OpenDeviceBy(s, def)
}

// Definition is the shape's.
func Definition(s *configs.Shape) kernels.Definition {
	def := kernels.Default()
	def.Dot, def.Exp2 = kernels.DotMode(s.Definition.Dot), kernels.Exp2Mode(s.Definition.Exp2)
	return def
}

// OpenDeviceBy makes the device that a shape names, computing by another definition than the shape's.
func OpenDeviceBy(s *configs.Shape, def kernels.Definition) (kernels.Device, error) {
	switch s.Device.Kind {
	case "cpu":
	case "cuda":
		return openCUDA(def)
	default:
		return nil, fmt.Errorf("device %s: want cpu or cuda", s.Device.Kind)
	}
	dev, err := cpu.New(def, cpu.Options{Threads: s.Device.Threads, ISA: cpu.ISA(s.Device.ISA)})
	if err != nil {
		return nil, fmt.Errorf("device cpu: %w", err)
	}
	return dev, nil
}

func dtype(s *configs.Shape) kernels.DType {
	if s.Model.DType == "bf16" {
		return kernels.BF16
	}
	return kernels.F32
}

// openModel loads or builds the model that a shape names, adapters included, ready for training. A folder without a tokenizer has no language.
func openModel(dev kernels.Device, s *configs.Shape) (*model.Model, *data.Language, error) {
	var m *model.Model
	var l *data.Language
	var err error
	if s.Model.Path != "" {
		var served *serve.Served
		if served, err = serve.Open(dev, s.Model.Path, "", dtype(s)); err == nil {
			m, l = served.Model, served.Language
		}
	} else {
		m, l, err = buildModel(dev, s)
	}
	if err != nil {
		return nil, nil, err
	}
	if l != nil && l.Vocab() > m.Vocab {
		return nil, nil, fmt.Errorf("model.config.vocab_size is %d and the tokenizer has %d tokens: want at least as many", m.Vocab, l.Vocab())
	}
	if s.LoRA.Rank > 0 {
		c := model.LoRAConfig{Rank: s.LoRA.Rank, Alpha: s.LoRA.Alpha, Targets: s.LoRA.Targets, TargetParameters: s.LoRA.TargetParameters}
		if err := m.AddLoRA(c); err != nil {
			return nil, nil, err
		}
		m.InitialiseAdapters(dev, uint64(s.LoRA.Seed))
	}
	if err := m.FitsTraining(dev); err != nil {
		return nil, nil, err
	}
	m.TrainAll(dev)
	return m, l, nil
}

// buildModel makes a model from the shape's config.json fields, with random weights.
func buildModel(dev kernels.Device, s *configs.Shape) (*model.Model, *data.Language, error) {
	l, err := data.NewLanguage(s.Model.Tokenizer)
	if err != nil {
		return nil, nil, err
	}
	config := maps.Clone(s.Model.Config)
	config["model_type"] = s.Model.Family
	if _, ok := config["eos_token_id"]; !ok {
		config["eos_token_id"] = l.End
	}
	if _, ok := config["architectures"]; !ok {
		if a := model.Architecture(s.Model.Family); a != "" {
			config["architectures"] = []string{a}
		}
	}
	text, err := json.MarshalIndent(config, "", "  ")
	if err != nil {
		return nil, nil, fmt.Errorf("model.config: %w", err)
	}
	m, err := model.Build(dev, text, model.Options{DType: dtype(s)})
	if err != nil {
		return nil, nil, fmt.Errorf("model.config: %w", err)
	}
	m.Initialise(dev, uint64(s.Model.InitSeed))
	return m, l, nil
}

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

// exam is questions with who judges the answers.
type exam struct {
	*data.Questions
	judge data.Rewarder
	right func(i int) string // an answer that is right, for the report; "" where none is known
}

// dataOptions says how data becomes samples of the model's. l may be nil.
func dataOptions(s *configs.Shape, m *model.Model, l *data.Language) data.Options {
	o := data.Options{
		End: -1, Vocab: m.Vocab, MaxRows: min(s.Data.PackRows, m.MaxLength), PairRows: s.Data.PackRows, Long: data.Long(s.Data.Long),
	}
	if l != nil {
		o.Codec, o.Template, o.End = l, l.Template, l.End
	}
	return o
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
		return nil, fmt.Errorf("data.task: %s has no tokenizer.json: the task is text, add one or train on a data.path of ids", s.Model.Path)
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
		return o, fmt.Errorf("rollout.max_tokens: %d leaves no room for a prompt, want less than data.pack_rows %d and the model's length %d", s.Rollout.MaxTokens, s.Data.PackRows, m.MaxLength)
	}
	return o, nil
}

func rewardOptions(s configs.RL) data.RewardOptions {
	return data.RewardOptions{
		Kind: s.Reward, Final: data.Final(s.Final), Marker: s.Marker, Command: s.Command, URL: s.URL, Timeout: time.Duration(s.Timeout * float64(time.Second)),
		Retries: s.Retries, Parallel: s.Parallel,
	}
}

func countdown(s *configs.Shape) data.Countdown {
	c := s.Data.Countdown
	return data.Countdown{
		Numbers: c.Numbers, MinNumber: c.MinNumber, MaxNumber: c.MaxNumber, MaxTarget: c.MaxTarget, Operators: c.Operators, Style: c.Style,
		Train: c.Train, Test: c.Test, Seed: uint64(c.Seed),
	}
}

func newTrainer(s *configs.Shape, steps int) (*trainer, error) {
	o := s.Optim
	t := &trainer{
		objective:  optim.SFT{},
		opt:        optim.AdamW{Beta1: o.Beta1, Beta2: o.Beta2, Eps: o.Eps, WeightDecay: o.WeightDecay, Clip: o.Clip},
		schedule:   optim.Schedule{Kind: o.Schedule, Peak: o.LR, Final: o.FinalLR, Warmup: o.WarmupSteps, Steps: steps},
		microBatch: s.Run.MicroBatch,
		recompute:  s.Run.Recompute,
	}
	return t, t.schedule.Validate()
}

func engineOptions(s *configs.Shape) serve.Options {
	return serve.Options{Slots: s.Rollout.Slots, PageRows: s.Rollout.PageRows, Pages: s.Rollout.Pages, PrefillRows: s.Rollout.PrefillRows}
}

func writeJSON(path string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return writeFile(path, append(text, '\n'))
}

// mustExist reports a folder that is not there.
func mustExist(dir, what string) error {
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return fmt.Errorf("%s %s is not a folder: make it first", what, dir)
	}
	return nil
}

package train

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"

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
	task  data.Task     // nil: files
	train *data.Dataset // samples to learn from
	eval  *data.Dataset // held-out samples for the loss; nil: none
}

// dataOptions says how data becomes samples of the model's. l may be nil.
func dataOptions(s *configs.Shape, m *model.Model, l *data.Language) data.Options {
	o := data.Options{
		End: -1, Vocab: m.Vocab, MaxRows: min(s.Data.PackRows, m.MaxLength), Long: data.Long(s.Data.Long),
	}
	if l != nil {
		o.Codec, o.Template, o.End = l, l.Template, l.End
	}
	return o
}

func openCorpus(s *configs.Shape, m *model.Model, l *data.Language) (*corpus, error) {
	o := dataOptions(s, m, l)
	var c corpus
	var err error
	if s.Data.Task == "countdown" {
		if l == nil {
			return nil, fmt.Errorf("data.task: %s has no tokenizer.json: the task is text, add one or train on a data.path of ids", s.Model.Path)
		}
		task := countdown(s)
		if err := task.Validate(); err != nil {
			return nil, err
		}
		c.task = task
		if c.train, err = data.NewTaskDataset(task, data.Train, o); err != nil {
			return nil, err
		}
		c.eval, err = data.NewTaskDataset(task, data.Test, o)
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

package train

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"

	"lockstep/configs"
	"lockstep/data"
	"lockstep/kernels"
	"lockstep/kernels/devices"
	"lockstep/model"
	"lockstep/optim"
	"lockstep/serve"
)

// Device returns what a shape asks for of its device, for [devices.Open].
func Device(s *configs.Shape) devices.Config {
	return devices.Config{Kind: s.Device.Kind, ISA: s.Device.ISA, Threads: s.Device.Threads, Definition: Definition(s)}
}

// Definition returns the arithmetic that a shape asks for.
func Definition(s *configs.Shape) kernels.Definition {
	def := kernels.Default()
	def.Dot, def.Exp2 = kernels.DotMode(s.Definition.Dot), kernels.Exp2Mode(s.Definition.Exp2)
	if s.Definition.Latent != "auto" {
		def.Latent = kernels.LatentForm(s.Definition.Latent)
	}
	return def
}

func dtype(s *configs.Shape) kernels.DType {
	if s.Model.DType == "bf16" {
		return kernels.BF16
	}
	return kernels.F32
}

func modelOptions(s *configs.Shape) model.Options {
	return model.Options{DType: dtype(s), Indexing: model.IndexerStage(s.Indexer.Stage)}
}

// fillModel makes the model of a shape whose config.json is known, filled with the checkpoint's weights or random ones,
// adapters included.
func fillModel(dev kernels.Device, s *configs.Shape, config []byte) (m *model.Model, err error) {
	if s.Model.Path != "" {
		m, err = model.LoadFolder(dev, s.Model.Path, "", modelOptions(s))
	} else if m, err = model.Build(dev, config, modelOptions(s)); err == nil {
		m.Initialise(uint64(s.Model.InitSeed))
	}
	if err != nil {
		return nil, err
	}
	return m, adapt(s, m)
}

// adapt puts the shape's adapters on a model.
func adapt(s *configs.Shape, m *model.Model) error {
	if s.LoRA.Rank == 0 {
		return nil
	}
	c, err := model.LoRAConfig{
		Rank: s.LoRA.Rank, Alpha: s.LoRA.Alpha, Targets: s.LoRA.Targets, TargetParameters: s.LoRA.TargetParameters,
	}.PEFT(m)
	if err == nil {
		err = m.AddLoRA(c)
	}
	if err != nil {
		return err
	}
	m.InitialiseAdapters(uint64(s.LoRA.Seed))
	return nil
}

// openTrained is openModel with memory for training.
func openTrained(dev kernels.Device, s *configs.Shape) (*model.Model, *data.Language, error) {
	m, l, err := openModel(dev, s)
	if err != nil {
		return nil, nil, err
	}
	if err := m.FitsTraining(); err != nil {
		return nil, nil, err
	}
	m.TrainAll()
	return m, l, nil
}

// openModel loads or builds the model that a shape names, adapters included. A folder without a tokenizer has no
// language.
func openModel(dev kernels.Device, s *configs.Shape) (*model.Model, *data.Language, error) {
	var m *model.Model
	var l *data.Language
	var err error
	if s.Model.Path != "" {
		var served *serve.Served
		if served, err = serve.Open(dev, s.Model.Path, "", modelOptions(s)); err == nil {
			m, l = served.Model, served.Language
		}
	} else {
		m, l, err = buildModel(dev, s)
	}
	if err != nil {
		return nil, nil, err
	}
	if l != nil && l.Vocab() > m.Vocab {
		return nil, nil, fmt.Errorf("model.config.vocab_size is %d and the tokenizer has %d tokens: want at "+
			"least as many", m.Vocab, l.Vocab())
	}
	if err := adapt(s, m); err != nil {
		return nil, nil, err
	}
	return m, l, nil
}

// buildModel makes a model from the shape's config.json fields, with random weights.
func buildModel(dev kernels.Device, s *configs.Shape) (*model.Model, *data.Language, error) {
	l, err := data.NewLanguage(s.Model.Tokenizer)
	if err != nil {
		return nil, nil, err
	}
	if err := misspelt(s.Model.Config); err != nil {
		return nil, nil, fmt.Errorf("model.config: %w", err)
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
	m, err := model.Build(dev, text, modelOptions(s))
	if err != nil {
		return nil, nil, fmt.Errorf("model.config: %w", err)
	}
	m.Initialise(uint64(s.Model.InitSeed))
	return m, l, nil
}

// misspelt refuses keys that no family reads but for a letter or two. Others that none reads pass: published files have
// many.
func misspelt(config map[string]any) error {
	known := model.ConfigKeys()
	for _, key := range slices.Sorted(maps.Keys(config)) {
		if k := configs.Misspelt(key, known); k != "" {
			return fmt.Errorf("%s: nothing reads this key, did you mean %s?", key, k)
		}
	}
	if text, ok := config["text_config"].(map[string]any); ok {
		return misspelt(text)
	}
	return nil
}

func newTrainer(s *configs.Shape, steps int) (*trainer, error) {
	o := s.Optim
	t := &trainer{
		objective:  optim.SFT{},
		opt:        optim.AdamW{Beta1: o.Beta1, Beta2: o.Beta2, Eps: o.Eps, WeightDecay: o.WeightDecay, Clip: o.Clip},
		schedule:   optim.Schedule{Kind: o.Schedule, Peak: o.LR, Final: o.FinalLR, Steps: steps},
		indexers:   s.Indexer.LRFactor,
		microBatch: s.Run.MicroBatch,
	}
	t.schedule.Warmup = optim.WarmupSteps(o.WarmupSteps, o.WarmupRatio, steps)
	return t, t.schedule.Validate()
}

func engineOptions(s *configs.Shape) serve.Options {
	o := s.Rollout
	return serve.Options{
		Slots: o.Slots, PageRows: o.PageRows, Pages: o.Pages, PrefillRows: o.PrefillRows,
	}
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

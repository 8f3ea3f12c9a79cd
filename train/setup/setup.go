package setup

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"lockstep/configs"
	"lockstep/data"
	"lockstep/kernels"
	"lockstep/kernels/devices"
	"lockstep/model"
	"lockstep/model/checkpoint"
	"lockstep/model/peft"
	"lockstep/optim"
	"lockstep/quant"
	"lockstep/serve"
	"lockstep/train/trainer"
)

// Device returns what a shape asks for of its device, for [devices.Open].
func Device(s *configs.Shape) devices.Config {
	return devices.Config{Kind: s.Device.Kind, ISA: s.Device.ISA, Threads: s.Device.Threads, Definition: Definition(s)}
}

// Definition returns the arithmetic that a shape asks for.
func Definition(s *configs.Shape) kernels.Definition {
	def := kernels.Default()
	def.Dot, def.Exp2 = kernels.DotMode(s.Definition.Dot), kernels.Exp2Mode(s.Definition.Exp2)
	def.Segment = s.Definition.Segment
	def.Grads = quant.Encoding(s.Definition.Grads)
	def.Acts, def.Cache = RoundingBy(s.Definition.Acts, s.Definition.Cache, s.Model.Path, s.LoRA.Path)
	if s.Definition.Latent != "auto" {
		def.Latent = kernels.LatentForm(s.Definition.Latent)
	}
	return def
}

// RoundingBy is what inputs of projections in codes, and keys and values, are rounded to by settings: a format, "none",
// or "auto", as the folder of a model says, or that of an adapter on it ("": none). What is wrong with a folder is said
// where it is opened.
func RoundingBy(acts, cache, folder, adapter string) (forActs, forCache quant.Encoding) {
	var says checkpoint.Rounding
	if folder != "" {
		if found, err := model.RoundingOf(folder, adapter); err == nil {
			says = found
		}
	}
	by := func(setting string, says quant.Encoding) quant.Encoding {
		switch setting {
		case "auto":
			return says
		case "none":
			return quant.AsTrained
		}
		return quant.Encoding(setting)
	}
	return by(acts, says.Acts), by(cache, says.Cache)
}

// DType returns the storage type of weights and activations.
func DType(s *configs.Shape) kernels.DType {
	if s.Model.DType == "bf16" {
		return kernels.BF16
	}
	return kernels.F32
}

// modelOptions are those of the first rank's model. ranks are the devices of all.
func modelOptions(s *configs.Shape, ranks []kernels.Device) model.Options {
	o := model.Options{DType: DType(s), Indexing: model.IndexerStage(s.Indexer.Stage),
		StepFloor: s.Model.TimeStepFloor == "reference", Halves: s.Run.Recompute == "halves",
		Offload: model.Offload{Optimizer: s.Offload.Optimizer, Ring: int(s.Offload.Ring * (1 << 30)),
			Activations: s.Offload.Activations}}
	o.Offload.Stay, o.Offload.Weights, _ = s.Offload.Stay() // a rule of shapes
	o.Offload.OnHost, _ = s.Offload.OnHost()                // the same
	switch {
	case EncodesWeights(s):
		o.Encode = EncodeBy(s.Model.Weights, s.Model.Coded)
	case s.Model.Weights == "auto" && (s.LoRA.On() || o.Indexing == model.IndexersDense):
		o.Weights = model.KeepWeights
	}
	CutBy(&o, s.Parallel, ranks)
	o.Chunks = Chunks(s)
	if o.Cut = s.Pipeline.Blocks; len(o.Cut) == 0 {
		o.Cut = s.Pipeline.Planned
	}
	return o
}

// EncodesWeights tells whether a shape puts projections into a format.
func EncodesWeights(s *configs.Shape) bool {
	return s.Model.Weights != "auto" && s.Model.Weights != "open"
}

// EncodeBy is what projections are put into by names of a format and of projections, as in [configs.Model].
func EncodeBy(format, coded string) model.Encode {
	e := model.DefaultEncode(quant.Encoding(format))
	if coded != "auto" {
		e.Projections = coded == "projections"
	}
	return e
}

// LoadModel makes the model of a shape whose config.json is known, filled with the checkpoint's weights or random ones,
// adapters included, for the first of the ranks.
func LoadModel(ranks []kernels.Device, s *configs.Shape, config []byte) (m *model.Model, err error) {
	dev, o := ranks[0], modelOptions(s, ranks)
	if s.Model.Path != "" {
		m, err = model.LoadFolder(dev, s.Model.Path, "", o)
	} else if m, err = model.Build(dev, config, o); err == nil {
		m.Initialise(uint64(s.Model.InitSeed))
	}
	if err == nil {
		err = m.CheckContext(s.Parallel.Context)
	}
	if err != nil {
		return nil, err
	}
	return m, adapt(s, m)
}

// adapt puts the shape's adapters on a model: those of lora.path, or new ones.
func adapt(s *configs.Shape, m *model.Model) error {
	if !s.LoRA.On() {
		return nil
	}
	var c peft.Config
	var err error
	if s.LoRA.Rank > 0 {
		if c, err = m.PEFT(loraConfig(s.LoRA)); err != nil {
			return err
		}
	}
	if s.LoRA.Path == "" {
		if err := m.AddLoRA(c); err != nil {
			return err
		}
		m.InitialiseAdapters(uint64(s.LoRA.Seed))
		return m.SetDropout(s.LoRA.Dropout, uint64(s.LoRA.Seed))
	}
	if err := m.AddAdapter(s.LoRA.Path); err != nil {
		return fmt.Errorf("lora.path: %w", err)
	}
	if s.LoRA.Rank > 0 {
		if err := m.SameAdapters(c); err != nil {
			return fmt.Errorf("lora.path: %s: %w: set lora.rank = 0 to take the adapter as it is", s.LoRA.Path, err)
		}
	}
	return m.SetDropout(s.LoRA.Dropout, uint64(s.LoRA.Seed))
}

// loraConfig is what a shape says of new adapters, with targets as people name them.
func loraConfig(l configs.LoRA) peft.Config {
	values := func(list []string) (values []peft.ModuleValue) {
		for _, item := range list {
			name, value, err := configs.NameValue(item)
			if err != nil {
				panic(err) // a rule of shapes
			}
			values = append(values, peft.ModuleValue{Pattern: name, Value: value})
		}
		return values
	}
	return peft.Config{
		Rank: l.Rank, Alpha: l.Alpha, Targets: l.Targets, TargetParameters: l.TargetParameters,
		RankStabilised: l.UseRSLoRA, RankPattern: values(l.RankPattern), AlphaPattern: values(l.AlphaPattern),
		ModulesToSave: l.ModulesToSave, SharedExperts: l.Experts == "shared",
	}
}

// OpenTrained is [OpenModel] with memory for gradients, moments and masters.
func OpenTrained(dev kernels.Device, s *configs.Shape) (*model.Model, *data.ChatTokenizer, error) {
	m, l, err := OpenModel([]kernels.Device{dev}, s)
	if err != nil {
		return nil, nil, err
	}
	if err := m.FitsTraining(); err != nil {
		return nil, nil, err
	}
	m.TrainAll()
	return m, l, nil
}

// OpenModel loads or builds the model that a shape names, adapters included, for the first of the ranks. The tokenizer
// is nil where a folder has no tokenizer.
func OpenModel(ranks []kernels.Device, s *configs.Shape) (*model.Model, *data.ChatTokenizer, error) {
	var m *model.Model
	var tok *data.ChatTokenizer
	var err error
	if s.Model.Path != "" {
		if m, err = model.LoadFolder(ranks[0], s.Model.Path, "", modelOptions(s, ranks)); err == nil {
			tok, err = serve.LoadTokenizer(s.Model.Path, m)
		}
	} else {
		m, tok, err = buildModel(ranks, s)
	}
	if err != nil {
		return nil, nil, err
	}
	if tok != nil && tok.Vocab() > m.Vocab {
		return nil, nil, fmt.Errorf("model.config.vocab_size is %d and the tokenizer has %d tokens: want at "+
			"least as many", m.Vocab, tok.Vocab())
	}
	if err = m.CheckContext(s.Parallel.Context); err == nil {
		err = adapt(s, m)
	}
	if err != nil {
		return nil, nil, err
	}
	return m, tok, nil
}

// buildModel makes a model from the shape's config.json fields, with random weights.
func buildModel(ranks []kernels.Device, s *configs.Shape) (*model.Model, *data.ChatTokenizer, error) {
	tok, err := data.NewChatTokenizer(s.Model.Tokenizer)
	if err != nil {
		return nil, nil, err
	}
	if err := CheckConfig(s.Model.Config); err != nil {
		return nil, nil, fmt.Errorf("model.config: %w", err)
	}
	config := maps.Clone(s.Model.Config)
	config["model_type"] = s.Model.Family
	if _, ok := config["eos_token_id"]; !ok {
		config["eos_token_id"] = tok.End
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
	m, err := model.Build(ranks[0], text, modelOptions(s, ranks))
	if err != nil {
		return nil, nil, fmt.Errorf("model.config: %w", err)
	}
	m.Initialise(uint64(s.Model.InitSeed))
	return m, tok, nil
}

// CheckConfig returns an error for a key of config.json that no family reads and whose name is nearly that of one that
// is read. Other unknown keys are accepted, as published files have many.
func CheckConfig(config map[string]any) error {
	known := model.ConfigKeys()
	for _, key := range slices.Sorted(maps.Keys(config)) {
		if k := configs.Misspelt(key, known); k != "" {
			return fmt.Errorf("%s: unused key, did you mean %s?", key, k)
		}
	}
	if text, ok := config["text_config"].(map[string]any); ok {
		return CheckConfig(text)
	}
	return nil
}

// TrainerOptions returns how a shape's model is trained by cross entropy, in so many optimizer steps. Keep is what
// blocks keep for the backward pass. The schedule has been validated.
func TrainerOptions(s *configs.Shape, steps int, keep model.Policy) (trainer.Options, error) {
	o := s.Optim
	t := trainer.Options{
		Objective: optim.SFT{},
		Optimizer: optim.AdamW{Beta1: o.Beta1, Beta2: o.Beta2, Eps: o.Eps, WeightDecay: o.WeightDecay,
			Clip: o.Clip},
		Schedule:         optim.Schedule{Kind: o.Schedule, Peak: o.LR, Final: o.FinalLR, Steps: steps},
		IndexerRate:      s.Indexer.LRFactor,
		MicroBatch:       s.Run.MicroBatch,
		Interleave:       s.Parallel.Interleave,
		Breadth:          s.Offload.Breadth,
		RankPacks:        (s.Run.Packs*s.Parallel.Context + s.Parallel.Ranks - 1) / s.Parallel.Ranks,
		Context:          s.Parallel.Context,
		PipelineSchedule: s.Pipeline.Schedule,
		PipelineAhead:    s.Pipeline.Ahead,
		Keep:             keep,
	}
	t.Schedule.Warmup = optim.WarmupSteps(o.WarmupSteps, o.WarmupRatio, steps)
	return t, t.Schedule.Validate()
}

// EngineOptions returns the size of the rollout engine that a shape asks for.
func EngineOptions(s *configs.Shape) serve.Options {
	o := s.Rollout
	return serve.Options{
		Slots: o.Slots, PageRows: o.PageRows, Pages: o.Pages, PrefillRows: o.PrefillRows,
	}
}

// Generates tells whether a run has a rollout engine, for reinforcement learning, or to answer held-out questions.
func Generates(s *configs.Shape) bool {
	return s.RL.Objective != "" || s.Data.Task != "" && s.Data.EvalSamples > 0
}

package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"

	"lockstep/data/safetensors"
	"lockstep/kernels"
)

// LoRAConfig says which projections carry adapters, in the terms of PEFT's adapter_config.json.
type LoRAConfig struct {
	Rank             int
	Alpha            float64
	Targets          []string // modules: "q_proj", or a longer suffix of the module's name
	TargetParameters []string // weights: of experts "mlp.experts.gate_up_proj", of modules "mlp.down_proj.weight"
	Pattern          string   // instead of Targets: a regular expression for whole module names
	RankStabilised   bool     // scale alpha/sqrt(rank) (use_rslora) instead of alpha/rank
}

func (c LoRAConfig) scale() float32 {
	if c.RankStabilised {
		return float32(c.Alpha / math.Sqrt(float64(c.Rank)))
	}
	return float32(c.Alpha / float64(c.Rank))
}

// AddLoRA puts adapters on the model, B zero and A uniform in +-1/sqrt(K) once initialised. A target that matches
// nothing is an error.
func (m *Model) AddLoRA(c LoRAConfig) error {
	if c.Rank <= 0 || len(c.Targets)+len(c.TargetParameters) == 0 && c.Pattern == "" {
		return fmt.Errorf("lora: want a positive rank and at least one target")
	}
	if m.Indexing != IndexersFrozen {
		return fmt.Errorf("lora: adapter folders cannot store trained indexers: leave them frozen, or " +
			"fine-tune in full")
	}
	match, hits, err := c.matcher()
	if err != nil {
		return err
	}
	linears, bytes := m.linears(), 0
	targets := make([][]*Sub, len(linears))
	for i, l := range linears {
		for _, sub := range l.Subs {
			if match(sub.Module, l.Fused) {
				targets[i] = append(targets[i], sub)
			}
		}
		if !l.W.split {
			bytes += l.adapterBytes(targets[i], c.Rank, m.DType)
		}
	}
	for _, t := range slices.Sorted(maps.Keys(hits)) {
		if hits[t] == 0 {
			modules, parameters := m.Targets()
			return fmt.Errorf("lora: target %q matches nothing in this model: want names such as %s", t,
				strings.Join(slices.Concat(modules, parameters), ", "))
		}
	}
	if m.dev != nil {
		m.mem.Reserve(bytes)
	}
	for i, l := range linears {
		l.addLoRA(m, targets[i], c)
	}
	m.LoRA = &c
	return nil
}

// matcher tells whether a module (or, fused, an expert parameter) is targeted, and counts the hits of each target.
func (c LoRAConfig) matcher() (match func(name string, fused bool) bool, hits map[string]int, err error) {
	hits = map[string]int{}
	for _, t := range slices.Concat(c.Targets, c.TargetParameters) {
		hits[t] = 0
	}
	var pattern *regexp.Regexp
	if c.Pattern != "" {
		hits[c.Pattern] = 0
		if pattern, err = regexp.Compile("^(?:" + c.Pattern + ")$"); err != nil {
			return nil, nil, fmt.Errorf("lora: target_modules: %w", err)
		}
	}
	return func(name string, fused bool) bool {
		found := false
		hit := func(name string, targets []string) {
			for _, t := range targets {
				if isSuffix(name, t) {
					hits[t]++
					found = true
				}
			}
		}
		if fused {
			hit(name, c.TargetParameters)
		} else {
			hit(name, c.Targets)
			hit(name+".weight", c.TargetParameters)
		}
		if pattern != nil && !fused && pattern.MatchString(name) {
			hits[c.Pattern]++
			found = true
		}
		return found
	}, hits, nil
}

// adapterBytes is the memory that addLoRA takes: A of all targets, and B of each.
func (l *Linear) adapterBytes(targets []*Sub, rank int, dtype kernels.DType) (n int) {
	w := l.W.W
	for _, s := range targets {
		n += kernels.ArenaBytes(dtype, w.Groups*(s.To-s.From), rank)
	}
	if len(targets) > 0 {
		n += kernels.ArenaBytes(dtype, w.Groups*len(targets)*rank, w.Cols)
	}
	return n
}

// tensor is memory on the model's device; of a described model the shape alone.
func (m *Model) tensor(groups, rows, cols int) kernels.Tensor {
	if m.dev == nil {
		return described(m.DType, groups, rows, cols)
	}
	return m.mem.NewGrouped(m.DType, groups, rows, cols)
}

// addLoRA puts adapters on projections of a Linear. One of experts has one projection: rows of several would lie apart
// in each group.
func (l *Linear) addLoRA(m *Model, targets []*Sub, c LoRAConfig) {
	if len(targets) == 0 {
		return
	}
	groups, in := l.W.matrices(), l.W.W.Cols
	l.Scale = c.scale()
	if !l.W.split {
		l.A = m.tensor(groups, len(targets)*c.Rank, in)
	}
	for i, s := range targets {
		rows := s.To - s.From
		a := Part{Name: s.Module + ".lora_A.weight", Rows: groups * c.Rank, Shape: []int{groups * c.Rank, in}}
		b := Part{Name: s.Module + ".lora_B.weight", Rows: groups * rows, Shape: []int{rows, groups * c.Rank}}
		switch {
		case l.Fused:
			b.Disk = expertsLast(groups, rows, c.Rank, s.Disk)
		case s.Disk != nil:
			b.Disk = rowsOnDisk(s.Disk, c.Rank)
		}
		if l.W.split {
			l.addSplitLoRA(m, s, a, b)
			continue
		}
		own := l.A
		if len(targets) > 1 && m.dev != nil {
			own = l.A.RowRange(i*c.Rank, (i+1)*c.Rank)
		} else if len(targets) > 1 {
			own = described(m.DType, 1, c.Rank, in)
		}
		s.LoRA = &LoRA{
			A: &Param{Name: a.Name, W: own, Parts: []Part{a}, unit: l.W.unit,
				Init: Init{Kind: Uniform, Std: 1 / math.Sqrt(float64(in))}},
			B: &Param{Name: b.Name, W: m.tensor(groups, rows, c.Rank), Parts: []Part{b}, unit: l.W.unit,
				Init: Init{Kind: Zeros}},
		}
		m.Params = append(m.Params, s.LoRA.A, s.LoRA.B)
	}
}

// addSplitLoRA puts an adapter on experts that are cut over ranks, whose parts lie where the experts lie.
func (l *Linear) addSplitLoRA(m *Model, s *Sub, a, b Part) {
	in, rank, rows := l.W.W.Cols, a.Rows/l.W.matrices(), s.To-s.From
	s.LoRA = &LoRA{
		A: m.splitLike(l.W, rank, in, a, Init{Kind: Uniform, Std: 1 / math.Sqrt(float64(in))}),
		B: m.splitLike(l.W, rows, rank, b, Init{Kind: Zeros}),
	}
	l.A = s.LoRA.A.W
}

// linears is every Linear of the model, in order.
func (m *Model) linears() []*Linear {
	var out []*Linear
	for _, b := range m.Blocks {
		for _, sub := range b {
			out = append(out, sub.Layer.Linears()...)
		}
	}
	return out
}

func (m *Model) adapterParams() map[*Param]bool {
	out := map[*Param]bool{}
	for _, l := range m.linears() {
		for _, s := range l.Subs {
			if s.LoRA != nil {
				out[s.LoRA.A], out[s.LoRA.B] = true, true
			}
		}
	}
	return out
}

// adapters is the parameters of adapters, in the model's order.
func (m *Model) adapters() []*Param {
	adapter := m.adapterParams()
	return slices.DeleteFunc(slices.Clone(m.Params), func(p *Param) bool { return !adapter[p] })
}

// peftName is the adapter tensor's name in adapter_model.safetensors. PEFT wraps the experts module once for each of
// its fused parameters that is a target: of two, the one that is not down_proj is the inner layer.
func (m *Model) peftName(name string) string {
	const experts = ".experts."
	if i := strings.Index(name, experts); i >= 0 {
		module, rest := name[:i+len(experts)-1], name[i+len(experts):]
		param, kind, _ := strings.Cut(rest, ".")
		if param != "down_proj" && m.adapted(module+".down_proj") {
			kind = "base_layer." + kind
		}
		name = module + "." + kind
	}
	if m.inMemory != nil {
		name = m.inMemory(name)
	}
	return "base_model.model." + name
}

// adapted tells whether a projection has an adapter.
func (m *Model) adapted(module string) bool {
	return slices.ContainsFunc(m.linears(), func(l *Linear) bool {
		return slices.ContainsFunc(l.Subs, func(s *Sub) bool { return s.Module == module && s.LoRA != nil })
	})
}

// AdapterTensors lists the adapter's tensors by their names in PEFT.
func (m *Model) AdapterTensors() []safetensors.OutTensor {
	return m.adapterTensors(func(p *Param) elements { return p.weight(m.dev) })
}

func (m *Model) adapterTensors(of func(*Param) elements) []safetensors.OutTensor {
	var out []safetensors.OutTensor
	for _, p := range m.adapters() {
		out = append(out, p.out(of(p), p.Parts[0], m.peftName(p.Parts[0].Name)))
	}
	return out
}

// adapterFile is where PEFT says which projections carry adapters.
const adapterFile = "adapter_config.json"

// LoadAdapter fills the adapters that AddLoRA made; missing, misshapen and unused tensors are errors.
func (m *Model) LoadAdapter(c *safetensors.Checkpoint) error {
	w, err := newWeights(c, nil)
	if err != nil {
		return err
	}
	for _, p := range m.adapters() {
		if err := p.load(m.dev, p.Parts[0], m.peftName(p.Parts[0].Name), w, adapterFile); err != nil {
			return err
		}
	}
	return w.unused(func(string) bool { return false }, adapterFile)
}

// adapterConfig is adapter_config.json as PEFT writes and reads it. Settings that would change the arithmetic must be
// absent or off.
type adapterConfig struct {
	PeftType         string          `json:"peft_type"`
	TaskType         string          `json:"task_type"`
	BaseModel        string          `json:"base_model_name_or_path"`
	Rank             int             `json:"r"`
	Alpha            float64         `json:"lora_alpha"`
	Dropout          float64         `json:"lora_dropout"`
	Bias             string          `json:"bias"`
	FanInFanOut      bool            `json:"fan_in_fan_out"`
	InitWeights      json.RawMessage `json:"init_lora_weights"`
	TargetModules    json.RawMessage `json:"target_modules"`
	TargetParameters []string        `json:"target_parameters"`
	RSLora           bool            `json:"use_rslora"`
	Dora             bool            `json:"use_dora"`
	RankPattern      map[string]any  `json:"rank_pattern"`
	AlphaPattern     map[string]any  `json:"alpha_pattern"`
	ModulesToSave    []string        `json:"modules_to_save"`
	InferenceMode    bool            `json:"inference_mode"`
	Invocation       []int           `json:"alora_invocation_tokens,omitempty"`
}

// changesBase tells whether PEFT sets weights of the model itself when it loads the adapter, by how B and A were
// initialised.
func (a *adapterConfig) changesBase() bool {
	var kind string
	if json.Unmarshal(a.InitWeights, &kind) != nil {
		return false // true, false or absent
	}
	return slices.ContainsFunc([]string{"pissa", "olora", "corda", "loftq", "lora_ga"}, func(k string) bool {
		return strings.HasPrefix(kind, k)
	})
}

const mostRank = 1 << 16 // above the width of published models

// ParseAdapterConfig reads adapter_config.json.
func ParseAdapterConfig(text []byte) (LoRAConfig, error) {
	a := adapterConfig{Bias: "none"}
	if err := json.Unmarshal(text, &a); err != nil {
		return LoRAConfig{}, fmt.Errorf(adapterFile+": %w", jsonPlace(text, err))
	}
	refuse := func(what string) (LoRAConfig, error) {
		return LoRAConfig{}, fmt.Errorf(adapterFile+": %s is not supported", what)
	}
	switch {
	case a.PeftType != "LORA":
		return refuse(fmt.Sprintf("peft_type %q (want LORA)", a.PeftType))
	case a.Bias != "none":
		return refuse("bias " + a.Bias)
	case a.FanInFanOut:
		return refuse("fan_in_fan_out")
	case a.Dora:
		return refuse("use_dora")
	case len(a.RankPattern) > 0 || len(a.AlphaPattern) > 0:
		return refuse("a rank_pattern or alpha_pattern")
	case len(a.ModulesToSave) > 0:
		return refuse("modules_to_save")
	case len(a.Invocation) > 0:
		return refuse("alora_invocation_tokens (an adapter that is off before them)")
	case a.changesBase():
		return refuse("init_lora_weights " + string(a.InitWeights) + ", which has changed the weights below the " +
			"adapter: convert it")
	}
	if a.Rank < 1 || a.Rank > mostRank {
		return refuse(fmt.Sprintf("r of %d (want 1 to %d)", a.Rank, mostRank))
	}
	c := LoRAConfig{Rank: a.Rank, Alpha: a.Alpha, TargetParameters: a.TargetParameters, RankStabilised: a.RSLora}
	if len(a.TargetModules) == 0 || string(a.TargetModules) == "null" {
		return c, nil
	}
	if json.Unmarshal(a.TargetModules, &c.Pattern) == nil {
		return c, nil
	}
	if err := json.Unmarshal(a.TargetModules, &c.Targets); err != nil {
		return c, errors.New(adapterFile + ": target_modules: want a list of names or a pattern")
	}
	return c, nil
}

// JSON is adapter_config.json for PEFT; base is the path of the model that the adapter was trained on.
func (c LoRAConfig) JSON(base string) ([]byte, error) {
	targets, err := json.Marshal(c.Targets)
	if c.Pattern != "" {
		targets, err = json.Marshal(c.Pattern)
	} else if c.Targets == nil {
		targets = []byte("[]")
	}
	if err != nil {
		return nil, err
	}
	return json.MarshalIndent(adapterConfig{
		PeftType: "LORA", TaskType: "CAUSAL_LM", BaseModel: base, Rank: c.Rank, Alpha: c.Alpha, Bias: "none",
		InitWeights:   json.RawMessage("true"),
		TargetModules: targets, TargetParameters: c.TargetParameters, RSLora: c.RankStabilised, InferenceMode: true,
		RankPattern: map[string]any{}, AlphaPattern: map[string]any{}, // PEFT reads their keys, so null will not do
	}, "", "  ")
}

package peft

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"lockstep/data/ordered"
	"lockstep/data/pyjson"
)

// File is where PEFT says which projections carry adapters.
const File = "adapter_config.json"

// adapterConfig is adapter_config.json as PEFT writes and reads it.
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
	ExcludeModules   json.RawMessage `json:"exclude_modules"`
	RSLora           bool            `json:"use_rslora"`
	Dora             bool            `json:"use_dora"`
	RankPattern      json.RawMessage `json:"rank_pattern"`
	AlphaPattern     json.RawMessage `json:"alpha_pattern"`
	Layers           json.RawMessage `json:"layers_to_transform"`
	LayersPattern    json.RawMessage `json:"layers_pattern"`
	ModulesToSave    []string        `json:"modules_to_save"`
	InferenceMode    bool            `json:"inference_mode"`
	Own              json.RawMessage `json:"lockstep,omitempty"`
}

// unsupported are fields of adapter_config.json that change the arithmetic. They must be absent or off.
var unsupported = []string{
	"fan_in_fan_out", "use_dora", "lora_bias", "use_qalora", "use_bdlora", "alora_invocation_tokens", "arrow_config",
	"kasa_config", "monteclora_config", "layer_replication", "trainable_token_indices",
}

// Parse reads adapter_config.json. Settings that change the arithmetic and are not supported are errors.
func Parse(text []byte) (Config, error) {
	a, fields := adapterConfig{Bias: "none"}, map[string]json.RawMessage{}
	if err := json.Unmarshal(text, &fields); err != nil {
		return Config{}, fmt.Errorf(File+": %w", pyjson.Place(text, err))
	}
	if err := json.Unmarshal(text, &a); err != nil {
		return Config{}, fmt.Errorf(File+": %w", pyjson.Place(text, err))
	}
	if what := a.refused(fields); what != "" {
		return Config{}, fmt.Errorf(File+": %s is not supported", what)
	}
	c := Config{Rank: a.Rank, Alpha: a.Alpha, TargetParameters: a.TargetParameters, RankStabilised: a.RSLora,
		ModulesToSave: a.ModulesToSave, Dropout: a.Dropout}
	if c.Rank < 1 || c.Rank > maxRank {
		return c, fmt.Errorf(File+": r is %d: want 1 to %d", c.Rank, maxRank)
	}
	c.Init = a.init()
	var err [6]error
	c.Pattern, c.Targets, err[0] = namesOrPattern(a.TargetModules, "target_modules")
	c.ExcludePattern, c.Exclude, err[1] = namesOrPattern(a.ExcludeModules, "exclude_modules")
	c.RankPattern, err[2] = moduleValues(a.RankPattern, "rank_pattern", 1, maxRank)
	c.AlphaPattern, err[3] = moduleValues(a.AlphaPattern, "alpha_pattern", -math.MaxFloat64, math.MaxFloat64)
	c.Layers, err[4] = oneOrMore[int](a.Layers, "layers_to_transform", "numbers")
	c.LayersPattern, err[5] = oneOrMore[string](a.LayersPattern, "layers_pattern", "names")
	for _, e := range err {
		if e != nil {
			return Config{}, e
		}
	}
	if c.SharedExperts, c.Own, err[0] = takeExperts(a.Own); err[0] != nil {
		return Config{}, err[0]
	}
	for _, v := range c.RankPattern {
		if v.Value != math.Trunc(v.Value) {
			return Config{}, fmt.Errorf(File+": rank_pattern: %q is %v: want an integer", v.Pattern, v.Value)
		}
	}
	return c, nil
}

// refused names a setting that changes the arithmetic and is not supported; "": none.
func (a *adapterConfig) refused(fields map[string]json.RawMessage) string {
	switch {
	case a.PeftType != "LORA":
		return fmt.Sprintf("peft_type %q (want LORA)", a.PeftType)
	case a.Bias != "none":
		return "bias " + a.Bias
	}
	for _, name := range unsupported {
		if v := bytes.TrimSpace(fields[name]); len(v) > 0 && !slices.Contains(off, string(v)) {
			return name
		}
	}
	switch kind := a.init(); {
	case kind == "" || kind == PiSSA || kind == OLoRA:
		return ""
	case strings.HasPrefix(kind, PiSSA):
		return fmt.Sprintf("init_lora_weights %q, by which the base is changed at random (supported: %q): convert it",
			kind, PiSSA)
	default:
		return fmt.Sprintf("init_lora_weights %q, which has changed the weights below the adapter: convert it", kind)
	}
}

// off are the JSON values of a setting that is not used.
var off = []string{"null", "false", "[]", "{}"}

// init is how B and A were initialised where PEFT does more than draw them when it loads the adapter; "": no more.
func (a *adapterConfig) init() string {
	var kind string
	if json.Unmarshal(a.InitWeights, &kind) != nil {
		return "" // true, false or absent
	}
	switch kind = strings.ToLower(kind); kind {
	case "gaussian", "orthogonal", "eva", "true", "false": // EVA draws A by data, and leaves the base as it is
		return ""
	}
	return kind
}

// namesOrPattern reads a list of names, or a string that is a regular expression.
func namesOrPattern(text json.RawMessage, field string) (pattern string, names []string, err error) {
	if len(text) == 0 || string(text) == "null" || json.Unmarshal(text, &pattern) == nil {
		return pattern, nil, nil
	}
	if err := json.Unmarshal(text, &names); err != nil {
		return "", nil, fmt.Errorf(File+": %s: want a list of names or a pattern", field)
	}
	return "", names, nil
}

// oneOrMore reads a value or a list of them.
func oneOrMore[T any](text json.RawMessage, field, what string) (list []T, err error) {
	var one T
	if len(text) == 0 || string(text) == "null" || json.Unmarshal(text, &list) == nil {
		return list, nil
	}
	if err := json.Unmarshal(text, &one); err != nil {
		return nil, fmt.Errorf(File+": %s: want a list of %s", field, what)
	}
	return []T{one}, nil
}

// moduleValues reads an object of numbers, in the order of its keys.
func moduleValues(text json.RawMessage, field string, least, most float64) (list []ModuleValue, err error) {
	if len(text) == 0 || string(text) == "null" {
		return nil, nil
	}
	v, err := ordered.Decode(text)
	object, ok := v.(*ordered.Dict)
	if err != nil || !ok {
		return nil, fmt.Errorf(File+": %s: want an object of numbers", field)
	}
	for key, value := range object.All() {
		var n float64
		switch x := value.(type) {
		case int64:
			n = float64(x)
		case float64:
			n = x
		default:
			n = math.NaN()
		}
		if !(n >= least && n <= most) {
			return nil, fmt.Errorf(File+": %s: %q is %v: want a number from %v to %v", field, key, value, least,
				most)
		}
		list = append(list, ModuleValue{key.(string), n})
	}
	return list, nil
}

// JSON is adapter_config.json for PEFT; base is the path of the model that the adapter was trained on.
func (c Config) JSON(base string) ([]byte, error) {
	a := adapterConfig{
		PeftType: "LORA", TaskType: "CAUSAL_LM", BaseModel: base, Rank: c.Rank, Alpha: c.Alpha, Bias: "none",
		TargetParameters: c.TargetParameters, RSLora: c.RankStabilised, InferenceMode: true,
		Dropout:       c.Dropout,
		ModulesToSave: c.ModulesToSave,
	}
	var failed error
	encode := func(v any) json.RawMessage {
		text, err := json.Marshal(v)
		failed = errors.Join(failed, err)
		return text
	}
	a.Own = c.Own
	if c.SharedExperts {
		own := map[string]json.RawMessage{}
		if c.Own != nil {
			failed = json.Unmarshal(c.Own, &own)
		}
		own[expertsField] = encode(sharedFactors)
		a.Own = encode(own)
	}
	a.InitWeights = encode(true)
	if c.Init != "" {
		a.InitWeights = encode(c.Init)
	}
	a.TargetModules = encode(append([]string{}, c.Targets...)) // PEFT takes null for its own choice
	if c.Pattern != "" {
		a.TargetModules = encode(c.Pattern)
	}
	a.ExcludeModules = encode(c.Exclude)
	if c.ExcludePattern != "" {
		a.ExcludeModules = encode(c.ExcludePattern)
	}
	a.RankPattern, a.AlphaPattern = object(c.RankPattern, encode), object(c.AlphaPattern, encode)
	a.Layers, a.LayersPattern = encode(c.Layers), encode(c.LayersPattern)
	if failed != nil {
		return nil, failed
	}
	return json.MarshalIndent(a, "", "  ")
}

// object is values as JSON, in their order. PEFT reads their keys, so that null will not do.
func object(values []ModuleValue, encode func(any) json.RawMessage) json.RawMessage {
	var pairs []string
	for _, v := range values {
		pairs = append(pairs, fmt.Sprintf("%s: %s", encode(v.Pattern), encode(v.Value)))
	}
	return json.RawMessage("{" + strings.Join(pairs, ", ") + "}")
}

const expertsField, sharedFactors = "experts", "shared"

// takeExperts tells whether the field "lockstep" says that experts share factors, and what else it says.
func takeExperts(own json.RawMessage) (shared bool, rest json.RawMessage, err error) {
	var said map[string]json.RawMessage
	if json.Unmarshal(own, &said) != nil || said[expertsField] == nil {
		return false, own, nil // what it is if not an object is refused by whoever reads the rest
	}
	var value string
	if json.Unmarshal(said[expertsField], &value) != nil || value != sharedFactors {
		return false, nil, fmt.Errorf(File+": lockstep: %s is %s: want %q", expertsField, said[expertsField],
			sharedFactors)
	}
	if delete(said, expertsField); len(said) == 0 {
		return true, nil, nil
	}
	rest, err = json.Marshal(said)
	return true, rest, err
}

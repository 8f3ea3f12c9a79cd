package model

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"lockstep/data"
	"lockstep/data/pyjson"
	"lockstep/kernels"
	"lockstep/model/checkpoint"
)

// family is an architecture: the class name that config.json gives it, the function that reads a config.json and
// describes the model in a builder, and the struct that it reads (of a wrapped text model: text_config).
type family struct {
	architecture string
	build        func(config []byte, b *builder) (*Model, error)
	config       any
}

// families by model_type; a family's file registers itself.
var families = map[string]family{}

// Families lists the model types that can be built, sorted.
func Families() []string { return slices.Sorted(maps.Keys(families)) }

// Options are what a config.json does not say.
type Options struct {
	DType     kernels.DType // storage of weights and activations
	MaxLength int           // positions to prepare; 0: the config's max_position_embeddings
	Indexing  IndexerStage  // whether indexers of sparse attention are trained

	// Ranks are devices over whose memory weights are cut, the model's own the first of them; one or none: the model
	// has all weights.
	Ranks   []kernels.Device
	Experts bool        // experts are cut, and computed where they lie (expert parallel)
	Blocks  bool        // the other weights of blocks are cut, and copied to compute with them (FSDP)
	Stages  int         // the blocks are cut into so many parts, one for each rank, which each computes alone; 0: 1
	Chunks  int         // of blocks, that each stage has, first one of each; 0: 1
	Cut     []float64   // blocks of each chunk of all stages, in order, and halves; nil: evenly by weights
	Halves  bool        // blocks are halved, see [Model.HalveBlocks]
	Weights WeightsMode // of a checkpoint's weights in codes
	Encode  Encode      // of any weights
	// StepFloor bounds the time steps of Nemotron-H as transformers does; see withStepFloor.
	StepFloor bool
	Offload   Offload // what is kept in the host's memory
	home      *Model  // of the first rank, whose cut weights are this one's too; nil: none
	rank      int     // of Ranks
}

// Build makes the graph of a config.json on a device, with zero weights: load or initialise them next.
func Build(dev kernels.Device, config []byte, o Options) (*Model, error) {
	m, err := describeOn(dev, config, o)
	if err == nil {
		err = m.encodeWeights(dev, o.Encode)
	}
	if err == nil {
		err = m.checkRounding(dev.Definition())
	}
	if err == nil {
		err = m.allocate(dev, o)
	}
	if err != nil {
		return nil, err
	}
	return m, nil
}

// describeOn is the graph of a config.json for a device, without memory.
func describeOn(dev kernels.Device, config []byte, o Options) (*Model, error) {
	if dev.Definition().Dot == kernels.DotTC16 && o.DType != kernels.BF16 {
		return nil, fmt.Errorf("dot mode tc16 multiplies bf16: set the model's dtype to bf16")
	}
	if o.StepFloor {
		var err error
		if config, err = withStepFloor(config); err != nil {
			return nil, fmt.Errorf("config.json: %w", err)
		}
	}
	return describe(config, &builder{dev: dev, dtype: o.DType, limit: o.MaxLength, indexing: o.Indexing})
}

// Describe is the graph of a config.json with the shapes of its parameters and no memory: to count, not to run.
func Describe(config []byte, dtype kernels.DType) (*Model, error) {
	return describe(config, &builder{dtype: dtype})
}

// describe builds the graph of a config.json.
func describe(text []byte, b *builder) (*Model, error) {
	m, err := describeConfig(text, b)
	if err != nil {
		return nil, fmt.Errorf("config.json: %w", err)
	}
	return m, nil
}

func describeConfig(text []byte, b *builder) (*Model, error) {
	config := pyjson.Plain(text)
	head, err := readHead(config)
	if err != nil {
		return nil, err
	}
	b.std = head.std
	kept, err := checkpoint.ParseFormat(config)
	if err == nil {
		_, err = checkpoint.ParseRounding(config)
	}
	if err != nil {
		return nil, err
	}
	b.ops = &operations{}
	b.ops.bind(b.dev)
	f := families[head.modelType]
	if err := checkSizes(config, reflect.TypeOf(f.config)); err != nil {
		return nil, err
	}
	m, err := f.build(config, b)
	if err == nil {
		err = b.refusal
	}
	if err == nil && kept != nil {
		text, err = checkpoint.WithoutQuantization(text)
	}
	if err != nil {
		return nil, err
	}
	b.place(b.placed, m.headUnit())
	if err := data.WithinVocabulary(head.eos, m.Vocab); err != nil {
		return nil, fmt.Errorf("eos_token_id: %w", err)
	}
	m.Family, m.DType, m.EOS, m.Config, m.kept, m.Params, m.indexers = head.modelType, b.dtype, head.eos, text, kept,
		b.params, b.indexers
	m.ropes, m.ops = b.ropes, b.ops
	return m, m.setIndexing(b.indexing)
}

// configHead is the part of config.json that all families share.
type configHead struct {
	Initializer *float64        `json:"initializer_range"`
	EOS         json.RawMessage `json:"eos_token_id"`
}

// modelHead is what it says.
type modelHead struct {
	modelType string
	eos       []int32
	std       float64 // of random weights
}

// readHead reads it; a model that wraps a text model may have it in text_config.
func readHead(config []byte) (h modelHead, err error) {
	var head struct {
		ModelType string `json:"model_type"`
		configHead
		Text configHead `json:"text_config"`
	}
	if err := json.Unmarshal(config, &head); err != nil {
		return h, pyjson.Place(config, err)
	}
	if _, ok := families[head.ModelType]; !ok {
		return h, fmt.Errorf("model_type %q is not known: want one of %s", head.ModelType,
			strings.Join(Families(), ", "))
	}
	if head.EOS == nil {
		head.EOS = head.Text.EOS
	}
	h = modelHead{modelType: head.ModelType, std: 0.02}
	if h.eos, err = data.TokenIDs(head.EOS); err != nil {
		return h, fmt.Errorf("eos_token_id: %w", err)
	}
	if of := cmp.Or(head.Initializer, head.Text.Initializer); of != nil {
		h.std = *of
	}
	return h, nil
}

// Architecture is the class name that config.json gives a family for other tools.
func Architecture(modelType string) string { return families[modelType].architecture }

// ConfigKeys are the keys of config.json, or of its text_config, that some family reads, sorted.
func ConfigKeys() []string {
	keys := append(jsonKeys(reflect.TypeFor[configHead]()), "model_type", "architectures", "text_config",
		checkpoint.ConfigKey, checkpoint.OwnKey)
	for _, f := range families {
		keys = append(keys, jsonKeys(reflect.TypeOf(f.config))...)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// jsonKeys are the names that encoding/json reads into a struct.
func jsonKeys(t reflect.Type) (keys []string) {
	for _, f := range jsonFields(t) {
		keys = append(keys, f.name)
	}
	return keys
}

// jsonField is a field that encoding/json reads into a struct.
type jsonField struct {
	name string
	typ  reflect.Type
}

func jsonFields(t reflect.Type) (fields []jsonField) {
	for i := range t.NumField() {
		f := t.Field(i)
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			fields = append(fields, jsonField{name, f.Type})
		} else if f.Anonymous {
			fields = append(fields, jsonFields(f.Type)...)
		}
	}
	return fields
}

const (
	mostSize     = 1 << 24 // of a field of config.json
	mostElements = 1 << 44 // of a model: sixteen times those of the largest published one
)

// checkSizes refuses a config.json with an integer so large that a product with it might overflow. typ is the struct
// that the family reads.
func checkSizes(config []byte, typ reflect.Type) error {
	var fields map[string]json.RawMessage
	var wrapped struct {
		Text map[string]json.RawMessage `json:"text_config"`
	}
	if json.Unmarshal(config, &fields) != nil || json.Unmarshal(config, &wrapped) != nil {
		return nil // the family says what is wrong
	}
	for _, f := range jsonFields(typ) {
		if !holdsInts(f.typ) {
			continue
		}
		for _, text := range []json.RawMessage{fields[f.name], wrapped.Text[f.name]} {
			for _, v := range integers(text) {
				if v < -1 || v > mostSize {
					return fmt.Errorf("%s is %d: want a number from 0 to %d", f.name, v, mostSize)
				}
			}
		}
	}
	return nil
}

// holdsInts tells whether a field is an int, or a list of them.
func holdsInts(t reflect.Type) bool {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	return t.Kind() == reflect.Int
}

// integers of a JSON value: one, or a list of them.
func integers(text json.RawMessage) []int64 {
	var one int64
	if json.Unmarshal(text, &one) == nil {
		return []int64{one}
	}
	var list []int64
	if json.Unmarshal(text, &list) != nil {
		return nil
	}
	return list
}

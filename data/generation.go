package data

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"lockstep/data/atomicfile"
	"lockstep/kernels"
)

// Generation is what generation_config.json of a model folder says, by the meaning that transformers gives its keys:
// the ids that end a text, and defaults for sampling. A nil field is one that the file does not give.
type Generation struct {
	EOS         []int32  // eos_token_id, a number or a list
	Temperature *float64 // 0, the likeliest token, where do_sample is false
	TopP        *float64
	TopK        *int // 0: all
	MinP        *float64
	Repetition  *float64 // repetition_penalty
	MaxTokens   *int     // max_new_tokens
	Unsupported []string // sampling that the file asks for and this program does not have: "num_beams = 4"
}

const generationFile = "generation_config.json"

// LoadGeneration reads generation_config.json of the folder of a model with a vocabulary of so many ids; a folder
// without one has no defaults. Errors are one line with the file and the key.
func LoadGeneration(dir string, vocab int) (g Generation, err error) {
	path := filepath.Join(dir, generationFile)
	text, err := atomicfile.Read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return g, nil
	}
	if err != nil {
		return g, err
	}
	if g, err = parseGeneration(text, vocab); err != nil {
		return Generation{}, fmt.Errorf("%s: %w", path, err)
	}
	return g, nil
}

func parseGeneration(text []byte, vocab int) (g Generation, err error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return g, fmt.Errorf("not a JSON object: %w", err)
	}
	if g.EOS, err = TokenIDs(fields["eos_token_id"]); err == nil {
		err = WithinVocabulary(g.EOS, vocab)
	}
	if err != nil {
		return g, fmt.Errorf("eos_token_id: %w", err)
	}
	r := generationReader{fields: fields}
	g.Temperature = r.number("temperature", 0, kernels.MostTemperature)
	g.TopP = r.number("top_p", 0, 1)
	g.TopK = r.integer("top_k", -1)
	g.MinP = r.number("min_p", 0, 1)
	g.Repetition = r.number("repetition_penalty", kernels.LeastRepetition, kernels.MostRepetition)
	g.MaxTokens = r.integer("max_new_tokens", 1)
	if sample := r.flag("do_sample"); sample != nil && !*sample {
		g.Temperature = new(float64)
	}
	if t := g.Temperature; t != nil && *t > 0 && *t < kernels.LeastTemperature {
		r.refuse("temperature", fmt.Sprintf("0, or at least %g", kernels.LeastTemperature))
	}
	if g.TopP != nil && *g.TopP == 0 {
		r.refuse("top_p", "a number above 0")
	}
	if g.TopK != nil {
		*g.TopK = max(*g.TopK, 0) // -1 is how other engines write all
	}
	g.Unsupported = unsupportedSampling(fields)
	return g, r.err
}

// neutralSampling is what other ways to sample are set to where they change nothing.
var neutralSampling = map[string]float64{
	"encoder_repetition_penalty": 1, "typical_p": 1, "epsilon_cutoff": 0, "eta_cutoff": 0, "no_repeat_ngram_size": 0,
	"num_beams": 1, "num_beam_groups": 1, "penalty_alpha": 0, "min_new_tokens": 0, "min_length": 0,
}

// unsupportedSampling lists what a file asks for beyond the fields of Generation, sorted.
func unsupportedSampling(fields map[string]json.RawMessage) (list []string) {
	for _, key := range slices.Sorted(maps.Keys(neutralSampling)) {
		var x *float64
		if raw, ok := fields[key]; ok && (json.Unmarshal(raw, &x) != nil || x != nil && *x != neutralSampling[key]) {
			list = append(list, fmt.Sprintf("%s = %.40s", key, raw))
		}
	}
	return list
}

// generationReader reads fields and keeps the first error. null is as if the field were not there.
type generationReader struct {
	fields map[string]json.RawMessage
	err    error
}

func (r *generationReader) read(key string, to any, want string) bool {
	raw, ok := r.fields[key]
	if !ok || string(raw) == "null" {
		return false
	}
	if json.Unmarshal(raw, to) == nil {
		return true
	}
	r.refuse(key, want)
	return false
}

func (r *generationReader) refuse(key, want string) {
	if r.err == nil {
		r.err = fmt.Errorf("%s: want %s, got %.40s", key, want, r.fields[key])
	}
}

func (r *generationReader) number(key string, least, most float64) *float64 {
	var x float64
	want := fmt.Sprintf("a number from %g to %g", least, most)
	if !r.read(key, &x, want) {
		return nil
	}
	if !(x >= least && x <= most) {
		r.refuse(key, want)
	}
	return &x
}

func (r *generationReader) integer(key string, least int) *int {
	var x int
	want := fmt.Sprintf("an integer of at least %d", least)
	if !r.read(key, &x, want) {
		return nil
	}
	if x < least || x > math.MaxInt32 {
		r.refuse(key, want)
	}
	return &x
}

func (r *generationReader) flag(key string) *bool {
	var x bool
	if !r.read(key, &x, "true or false") {
		return nil
	}
	return &x
}

// TokenIDs reads a field of JSON that is null, a token id or a list of token ids.
func TokenIDs(raw json.RawMessage) ([]int32, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	var list []*int32 // a null in a list is nil, where a number would be 0
	var one int32
	if json.Unmarshal(raw, &one) == nil {
		list = []*int32{&one}
	} else if json.Unmarshal(raw, &list) != nil || slices.Contains(list, nil) {
		return nil, errors.New("want a token id or a list of them")
	}
	var ids []int32
	for _, id := range list {
		ids = append(ids, *id)
	}
	if slices.ContainsFunc(ids, func(id int32) bool { return id < 0 }) {
		return nil, fmt.Errorf("want token ids of at least 0, got %.40s", raw)
	}
	return ids, nil
}

// WithinVocabulary is an error that names the first id that a model with a vocabulary of so many ids does not have.
func WithinVocabulary(ids []int32, vocab int) error {
	for _, id := range ids {
		if int(id) >= vocab {
			return fmt.Errorf("%d is not an id of the model, whose vocab_size is %d", id, vocab)
		}
	}
	return nil
}

// Union is the ids of all lists in order, each once.
func Union(lists ...[]int32) (all []int32) {
	for _, id := range slices.Concat(lists...) {
		if !slices.Contains(all, id) {
			all = append(all, id)
		}
	}
	return all
}

// Sampling says in words what a file gives for sampling; "": nothing.
func (g Generation) Sampling() string {
	var list []string
	if g.Temperature != nil {
		list = append(list, fmt.Sprintf("temperature %g", *g.Temperature))
	}
	if g.TopP != nil {
		list = append(list, fmt.Sprintf("top-p %g", *g.TopP))
	}
	if g.TopK != nil {
		list = append(list, fmt.Sprintf("top-k %d", *g.TopK))
	}
	if g.MinP != nil && *g.MinP != 0 {
		list = append(list, fmt.Sprintf("min-p %g", *g.MinP))
	}
	if g.Repetition != nil && *g.Repetition != 1 {
		list = append(list, fmt.Sprintf("repetition-penalty %g", *g.Repetition))
	}
	if g.MaxTokens != nil {
		list = append(list, fmt.Sprintf("at most %d tokens", *g.MaxTokens))
	}
	return strings.Join(list, ", ")
}

package peft

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Matcher finds the adapters of projections by their names, as PEFT 0.21 does.
type Matcher struct {
	c       Config
	hits    map[string]int // of each target
	whole   *regexp.Regexp // instead of Targets; nil: none
	exclude *regexp.Regexp // instead of Exclude; nil: none
	layer   []*regexp.Regexp
	saved   []*regexp.Regexp
	ranks   []moduleValue
	alphas  []moduleValue
}

// moduleValue is the value of modules whose names match.
type moduleValue struct {
	*regexp.Regexp
	value float64
}

// Placement is the adapter of a projection.
type Placement struct {
	Rank  int
	Scale float32 // alpha / rank
}

// NewMatcher compiles the patterns of a config.
func NewMatcher(c Config) (*Matcher, error) {
	w := &Matcher{c: c, hits: map[string]int{}}
	for _, t := range slices.Concat(c.Targets, c.TargetParameters) {
		w.hits[t] = 0
	}
	if c.Pattern != "" {
		w.hits[c.Pattern] = 0
	}
	var failed error
	compile := func(field, pattern, form string) *regexp.Regexp {
		if pattern == "" {
			return nil
		}
		compiled, err := regexp.Compile(fmt.Sprintf(form, pattern))
		if err != nil && failed == nil {
			failed = fmt.Errorf("lora: %s: %w", field, err)
		}
		return compiled
	}
	w.whole = compile("target_modules", c.Pattern, "^(?:%s)$")
	w.exclude = compile("exclude_modules", c.ExcludePattern, "^(?:%s)$")
	for _, p := range c.LayersPattern {
		w.layer = append(w.layer, compile("layers_pattern", p, `^(?:|.*?\.)(?:%s)\.(\d+)\.`))
	}
	if w.layer == nil {
		w.layer = []*regexp.Regexp{regexp.MustCompile(`^.*?\.[^.]*\.(\d+)\.`)}
	}
	for _, s := range c.ModulesToSave {
		w.saved = append(w.saved, compile("modules_to_save", s, `^(?:|.*\.)(?:%s)(?:$|\.)`))
	}
	for _, v := range c.RankPattern {
		w.ranks = append(w.ranks, moduleValue{compile("rank_pattern", v.Pattern, moduleForm), v.Value})
	}
	for _, v := range c.AlphaPattern {
		w.alphas = append(w.alphas, moduleValue{compile("alpha_pattern", v.Pattern, moduleForm), v.Value})
	}
	return w, failed
}

// moduleForm is how a key of rank_pattern or alpha_pattern matches the name of a module: all of it, or its last parts.
const moduleForm = `^(?:.*\.)?(?:%s)$`

// Place is the adapter of a module or, fused, of a weight of experts; ok is false where it has none.
func (w *Matcher) Place(name string, fused bool) (at Placement, ok bool) {
	key := name
	switch {
	case fused:
		ok = w.hit(name, w.c.TargetParameters)
	case w.excluded(name):
	default:
		ok = w.module(name)
	}
	if weight := name + ".weight"; !fused && w.hit(weight, w.c.TargetParameters) && !ok {
		key, ok = weight, true
	}
	if !ok {
		return Placement{}, false
	}
	rank := valueOf(w.ranks, key, float64(w.c.Rank))
	return Placement{int(rank), w.c.scale(valueOf(w.alphas, key, w.c.Alpha), rank)}, true
}

// module tells whether target_modules has a module in the layers that are asked for.
func (w *Matcher) module(name string) bool {
	if w.whole != nil {
		if !w.whole.MatchString(name) {
			return false
		}
		w.hits[w.c.Pattern]++
		return true
	}
	if !w.inLayers(name) && !slices.Contains(w.c.Targets, name) {
		return false
	}
	return w.hit(name, w.c.Targets)
}

// excluded tells whether a module is named by exclude_modules, or lies in a module that is saved.
func (w *Matcher) excluded(name string) bool {
	if w.exclude != nil && w.exclude.MatchString(name) {
		return true
	}
	return slices.ContainsFunc(w.c.Exclude, func(t string) bool { return IsSuffix(name, t) }) ||
		slices.ContainsFunc(w.saved, func(s *regexp.Regexp) bool { return s.MatchString(name) })
}

// inLayers tells whether a module lies in one of layers_to_transform, where those are given.
func (w *Matcher) inLayers(name string) bool {
	if len(w.c.Layers) == 0 {
		return true
	}
	for _, pattern := range w.layer {
		if found := pattern.FindStringSubmatch(name); found != nil {
			layer, err := strconv.Atoi(found[len(found)-1])
			return err == nil && slices.Contains(w.c.Layers, layer)
		}
	}
	return false
}

// hit tells whether a name is one of the targets, and counts each that it is.
func (w *Matcher) hit(name string, targets []string) (found bool) {
	for _, t := range targets {
		if IsSuffix(name, t) {
			w.hits[t]++
			found = true
		}
	}
	return found
}

// valueOf is the value of the first pattern that matches.
func valueOf(list []moduleValue, name string, otherwise float64) float64 {
	for _, v := range list {
		if v.MatchString(name) {
			return v.value
		}
	}
	return otherwise
}

// Unmatched is a target that no module had; "": none.
func (w *Matcher) Unmatched() string {
	for _, t := range slices.Sorted(maps.Keys(w.hits)) {
		if w.hits[t] == 0 {
			return t
		}
	}
	return ""
}

// IsSuffix tells whether a target means a module or parameter: by its full name, or the last parts of it.
func IsSuffix(name, target string) bool { return name == target || strings.HasSuffix(name, "."+target) }

// InModule tells whether a tensor belongs to a module that is named by its last parts.
func InModule(tensor, module string) bool {
	for at := strings.LastIndexByte(tensor, '.'); at > 0; at = strings.LastIndexByte(tensor[:at], '.') {
		if IsSuffix(tensor[:at], module) {
			return true
		}
	}
	return false
}

func (p Placement) String() string {
	if p == (Placement{}) {
		return "no adapter"
	}
	return fmt.Sprintf("an adapter of rank %d and scale %g", p.Rank, p.Scale)
}

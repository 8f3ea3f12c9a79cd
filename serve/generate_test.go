package serve

import (
	"testing"

	"lockstep/data"
)

// generation_config.json sets a field unless its flag was given.
func TestSamplingWith(t *testing.T) {
	temperature, topP, topK, minP, repetition, most := 0.5, 0.25, 3, 0.125, 1.5, 9
	g := data.Generation{Temperature: &temperature, TopP: &topP, TopK: &topK, MinP: &minP, Repetition: &repetition,
		MaxTokens: &most}
	base := Sampling{Temperature: 1, TopP: 1, TopK: 0, Repetition: 1, MaxTokens: 100, N: 2, Seed: 7, IgnoreEOS: true}
	all := base
	all.Temperature, all.TopP, all.TopK, all.MinP, all.Repetition, all.MaxTokens = 0.5, 0.25, 3, 0.125, 1.5, 9
	if got := base.WithDefaults(g, func(string) bool { return false }); got != all {
		t.Errorf("%+v, want %+v", got, all)
	}
	if got := base.WithDefaults(data.Generation{}, func(string) bool { return false }); got != base {
		t.Errorf("of no file: %+v, want %+v", got, base)
	}
	for flag, keep := range map[string]func(q *Sampling){
		"temperature": func(q *Sampling) { q.Temperature = 1 },
		"top-p":       func(q *Sampling) { q.TopP = 1 },
		"top-k":       func(q *Sampling) { q.TopK = 0 },
		"min-p":       func(q *Sampling) { q.MinP = 0 },

		"repetition-penalty": func(q *Sampling) { q.Repetition = 1 },
		"max-tokens":         func(q *Sampling) { q.MaxTokens = 100 },
	} {
		want := all
		keep(&want)
		if got := base.WithDefaults(g, func(name string) bool { return name == flag }); got != want {
			t.Errorf("with --%s: %+v, want %+v", flag, got, want)
		}
	}
}

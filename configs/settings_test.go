package configs

import (
	"os"
	"strings"
	"testing"
)

// Every setting, given as an override of a shape that has all of them, is one that the shape already has; and every
// line of the printed shape is among them.
func TestSettings(t *testing.T) {
	text, err := os.ReadFile("countdown-sft.toml")
	if err != nil {
		t.Fatal(err)
	}
	s, err := Parse("countdown-sft.toml", text, nil)
	if err != nil {
		t.Fatal(err)
	}
	printed, settings := s.TOML(), s.Settings()
	lines := 0
	for _, line := range strings.Split(string(printed), "\n") {
		if strings.Contains(line, " = ") && !strings.HasPrefix(line, "#") {
			lines++
		}
	}
	if lines != len(settings) {
		t.Errorf("%d settings, and %d lines of the printed shape", len(settings), lines)
	}
	seen := map[string]bool{}
	for _, x := range settings {
		seen[x.Key] = true
		again, err := Parse("printed.toml", printed, []string{x.Key + "=" + x.Value})
		if err != nil || string(again.TOML()) != string(printed) {
			t.Errorf("%s = %s is not what the shape has (%v)", x.Key, x.Value, err)
		}
	}
	for _, key := range []string{"model.config.hidden_size", "data.countdown.seed", "run.steps",
		"rollout.numerics.weights"} {
		if !seen[key] {
			t.Errorf("no setting %s", key)
		}
	}
}

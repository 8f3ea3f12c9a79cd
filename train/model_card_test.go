package train

import (
	"path/filepath"
	"strings"
	"testing"
)

// The card of a result says how it was made and what was proved, and names no folder.
func TestModelCard(t *testing.T) {
	pairs := tinyPairs(t)
	for name, c := range map[string]struct {
		set  []string
		want []string
	}{
		"model": {[]string{"run.steps=2", "optim.warmup_steps=0"}, []string{"library_name: transformers", "- sft",
			"not compared", "300 samples, digest `", "run.steps = 2"}},
		"adapter": {append(pairs, "run.steps=2", "lora.rank=2", "run.verify_tokens=64"), []string{"library_name: peft",
			"- dpo", "0 of ", "KL 0", "`pairs.jsonl`, 60 pairs, digest `", `data.preferences = "pairs.jsonl"`}},
	} {
		out := filepath.Join(t.TempDir(), "run")
		if _, err := runTiny(t, out, false, c.set...); err != nil {
			t.Fatal(err)
		}
		card := readBytes(t, filepath.Join(out, name, cardFile))
		for _, want := range append(c.want, "definition") {
			if !strings.Contains(card, want) {
				t.Errorf("%s: no %q in\n%s", name, want, card)
			}
		}
		if strings.Contains(card, filepath.Dir(out)) || strings.Contains(card, `"/`) || strings.Contains(card, "tmp") {
			t.Errorf("%s: a folder in\n%s", name, card)
		}
	}
}

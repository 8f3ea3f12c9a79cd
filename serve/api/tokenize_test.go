package api

import (
	"strings"
	"testing"
)

func TestTokenize(t *testing.T) {
	_, url, _ := running(t, small())
	_, text := post(t, url+"/tokenize", map[string]any{"prompt": "hé", "model": "tiny"})
	got := decode[struct{ Tokens []int32 }](t, text)
	if len(got.Tokens) != 3 {
		t.Errorf("%s", text)
	}
	if _, text = post(t, url+"/detokenize", map[string]any{"tokens": got.Tokens}); decode[map[string]string](t,
		text)["prompt"] != "hé" {
		t.Errorf("%s", text)
	}
	if status, text := post(t, url+"/tokenize", `{"messages": [{"role": "user", "content": "x"}]}`); status != 200 ||
		!strings.Contains(string(text), `"count":`) {
		t.Errorf("%d %s", status, text)
	}
}

package api

import (
	"net/http"
	"slices"
	"strings"
	"testing"
)

// logit_bias, min_p and penalties change what is drawn, and no log-probability: those of the drawn tokens are what an
// echo of them has.
func TestAdjustFields(t *testing.T) {
	_, url, _ := running(t, small())
	base := map[string]any{"prompt": "hello", "max_tokens": 30, "seed": 4, "ignore_eos": true, "logprobs": 1,
		"return_token_ids": true, "temperature": 1.0}
	plain := complete(t, url, base).Choices[0]
	for name, value := range map[string]any{"logit_bias": map[string]int{"65": 100}, "frequency_penalty": 2.0,
		"presence_penalty": 2, "repetition_penalty": 3.5, "min_p": 1} {
		body := map[string]any{name: value}
		for k, v := range base {
			body[k] = v
		}
		c := complete(t, url, body).Choices[0]
		if slices.Equal(c.IDs, plain.IDs) {
			t.Errorf("%s changes nothing: %v", name, c.IDs)
		}
		if name == "logit_bias" && c.Text != strings.Repeat("A", 30) {
			t.Errorf("a bias of 100 for A draws %q", c.Text)
		}
		ids := slices.Concat([]int32{'h', 'e', 'l', 'l', 'o'}, c.IDs)
		l := complete(t, url, map[string]any{"prompt": ids, "max_tokens": 0, "echo": true, "logprobs": 1}).Choices[0]
		for i, x := range c.LogProbs.LogProbs {
			if want := *l.LogProbs.LogProbs[5+i]; *x != want {
				t.Errorf("%s: token %d is told with %v, want %v", name, i, *x, want)
			}
		}
	}
	// A chat's fields are the same.
	status, text := post(t, url+"/v1/chat/completions", `{"messages": [{"role": "user", "content": "x"}], `+
		`"max_tokens": 5, "logit_bias": {"66": 100}}`)
	if got := decode[chatResponse](t, text); status != http.StatusOK || *got.Choices[0].Message.Content != "BBBBB" {
		t.Errorf("%d %s", status, text)
	}
}

package api

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"lockstep/kernels"
	"lockstep/parallel"
	"lockstep/serve"
)

// scored is what an engine by itself gives for a prompt of bytes, with top of the most likely tokens.
func scored(t *testing.T, text string, top int) (tokens []serve.PromptToken) {
	t.Helper()
	err := onRank(func(r *parallel.Rank, m *serve.ServedModel) error {
		e, err := serve.NewEngine(r, m.Model, kernels.NewArena(r.Dev), serve.Options{Slots: 1, PageRows: 64,
			PrefillRows: 1000})
		if err != nil {
			return err
		}
		res, err := e.Run(context.Background(), []serve.Request{{Prompt: m.Tokenizer.Encode(text), TopP: 1,
			PromptLogProbs: true, PromptTop: top}})
		if err == nil {
			tokens = res[0].Prompt
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return tokens
}

// checkEcho holds a completion's log-probabilities against those of its prompt, which it echoes.
func checkEcho(t *testing.T, name, prompt string, l *completionLogProbs, want []serve.PromptToken, generated, top int) {
	t.Helper()
	n := len(want) + 1
	if len(l.LogProbs) != n+generated || len(l.Tokens) != n+generated || len(l.Top) != n+generated ||
		l.LogProbs[0] != nil || l.Top[0] != nil {
		t.Fatalf("%s: %d tokens of %d and %d: %+v", name, len(l.LogProbs), n, generated, l)
	}
	for i, x := range want {
		own := l.Tokens[i+1]
		if *l.LogProbs[i+1] != x.LogProb || l.Top[i+1][own] < x.LogProb {
			t.Errorf("%s: token %d, %q, is listed with %v and %v, want %v", name, i+1, own, *l.LogProbs[i+1],
				l.Top[i+1], x.LogProb)
		}
		best := x.Top[0].LogProb
		for _, p := range l.Top[i+1] {
			best = max(best, p)
		}
		if best != x.Top[0].LogProb || len(l.Top[i+1]) > top+1 {
			t.Errorf("%s: token %d lists %v, the largest is %v", name, i+1, l.Top[i+1], x.Top[0].LogProb)
		}
	}
	if !slices.Equal(l.Offsets[:5], []int{0, 1, 2, 3, 4}) || l.Offsets[n-1] != len(prompt)-1 {
		t.Errorf("%s: offsets %v", name, l.Offsets)
	}
}

// What lm-eval's local-completions sends for the log-likelihood of an answer: an echo with the log-probabilities of the
// prompt's tokens, whose bits are those of Score, whatever pages others have filled, of texts and of ids, streamed too.
func TestEcho(t *testing.T) {
	const prompt = "the quick brown fox jumps over the lazy dog, and the dog"
	want := scored(t, prompt, 2)
	_, url, _ := running(t, small())
	ids := make([]int, len(prompt))
	for i, b := range []byte(prompt) {
		ids[i] = int(b)
	}
	for k, body := range []map[string]any{
		{"prompt": prompt, "max_tokens": 1, "logprobs": 1, "echo": true, "temperature": 0},
		{"prompt": ids, "max_tokens": 1, "logprobs": 2, "echo": true, "temperature": 0, "seed": 1234},
		{"prompt": [][]int{ids, ids}, "max_tokens": 0, "logprobs": 1, "echo": true},
		{"prompt": []string{prompt, prompt}, "max_tokens": 5, "logprobs": 2, "echo": true, "ignore_eos": true, "n": 2,
			"temperature": 1.3, "stop": "quick"},
	} {
		status, text := post(t, url+"/v1/completions", body)
		if status != http.StatusOK {
			t.Fatalf("%v: %d %s", body, status, text)
		}
		whole := decode[completionResponse](t, text)
		for i, c := range whole.Choices {
			name := fmt.Sprintf("request %d, choice %d", k, i)
			most := body["max_tokens"].(int)
			checkEcho(t, name, prompt, c.LogProbs, want, most, body["logprobs"].(int))
			if !strings.HasPrefix(c.Text, prompt) || most == 0 && c.Text != prompt || *c.Finish != serve.FinishLength {
				t.Errorf("%s: %q, %s", name, c.Text, *c.Finish)
			}
		}
		if u := whole.Usage; u.Completion != len(whole.Choices)*body["max_tokens"].(int) {
			t.Errorf("%+v", u)
		}
		body["stream"], body["seed"] = true, 5
		_, text = post(t, url+"/v1/completions", body)
		body["stream"] = false
		again := complete(t, url, body)
		for i, c := range again.Choices {
			all, joined := &completionLogProbs{}, ""
			for _, e := range events(t, text) {
				for _, part := range decode[completionResponse](t, e).Choices {
					if part.Index == i {
						joined += part.Text
						all.Tokens, all.LogProbs = append(all.Tokens, part.LogProbs.Tokens...), append(all.LogProbs,
							part.LogProbs.LogProbs...)
						all.Top, all.Offsets = append(all.Top, part.LogProbs.Top...), append(all.Offsets,
							part.LogProbs.Offsets...)
					}
				}
			}
			if joined != c.Text || !reflect.DeepEqual(all, c.LogProbs) {
				t.Errorf("request %d, choice %d: streamed %q %+v, whole %q %+v", k, i, joined, all, c.Text, c.LogProbs)
			}
		}
	}
	// Without log-probabilities an echo is the prompt's text and the answer; ids are those of the answer.
	c := complete(t, url, map[string]any{"prompt": prompt, "max_tokens": 3, "echo": true, "ignore_eos": true,
		"return_token_ids": true}).Choices[0]
	if !strings.HasPrefix(c.Text, prompt) || len(c.IDs) != 3 || len(c.PromptIDs) != len(prompt) || c.LogProbs != nil {
		t.Errorf("%+v", c)
	}
	if c := complete(t, url, map[string]any{"prompt": prompt, "max_tokens": 0}).Choices[0]; c.Text != "" {
		t.Errorf("%+v", c)
	}
}

// prompt_logprobs is vLLM's field, of completions and of chats.
func TestPromptLogProbsField(t *testing.T) {
	const prompt = "hello there, hello there"
	want := scored(t, prompt, 2)
	_, url, _ := running(t, small())
	check := func(name string, got []promptLogProbs, want []serve.PromptToken) {
		t.Helper()
		if len(got) != len(want)+1 || got[0] != nil {
			t.Fatalf("%s: %d entries, want %d: %v", name, len(got), len(want)+1, got)
		}
		for i, x := range want {
			own, ok := got[i+1][fmt.Sprint(x.ID)]
			if !ok || own.LogProb != x.LogProb || own.Rank != x.Rank || own.Text != string(prompt[i+1]) {
				t.Errorf("%s: token %d is %+v, want %+v", name, i+1, got[i+1], x)
			}
			for k, top := range x.Top {
				if e := got[i+1][fmt.Sprint(top.ID)]; e.LogProb != top.LogProb || e.Rank != k+1 && top.ID != x.ID {
					t.Errorf("%s: token %d lists %+v, want %+v", name, i+1, got[i+1], x)
				}
			}
		}
	}
	for _, c := range complete(t, url, map[string]any{"prompt": []string{prompt, prompt}, "prompt_logprobs": 2,
		"max_tokens": 2}).Choices {
		check(fmt.Sprint("choice ", c.Index), c.Prompt, want)
		if c.LogProbs != nil || strings.HasPrefix(c.Text, prompt) {
			t.Errorf("%+v", c)
		}
	}
	_, text := post(t, url+"/v1/chat/completions", map[string]any{"prompt_logprobs": 0, "max_tokens": 1, "n": 2,
		"messages": []map[string]string{{"role": "user", "content": prompt}}})
	got := decode[chatResponse](t, text)
	if n := len(got.Prompt); n != got.Usage.Prompt || n < len(prompt) || got.Prompt[0] != nil ||
		len(got.Prompt[1]) != 1 {
		t.Errorf("%s", text)
	}
}

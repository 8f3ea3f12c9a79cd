package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"lockstep/data"
	"lockstep/parallel"
	"lockstep/serve"
)

func TestChat(t *testing.T) {
	_, url, _ := running(t, small())
	body := map[string]any{
		"model": "tiny", "messages": []map[string]string{{"role": "user", "content": "hé"}}, "max_tokens": 12,
		"seed": 5, "n": 2, "logprobs": true, "top_logprobs": 2, "return_token_ids": true, "user": "me",
	}
	status, text := post(t, url+"/v1/chat/completions", body)
	if status != http.StatusOK {
		t.Fatalf("%d: %s", status, text)
	}
	whole := decode[chatResponse](t, text)
	for _, c := range whole.Choices {
		if n := len(c.IDs); n == 0 || n > 12 || n < 12 && *c.Finish != serve.FinishStop || n == 12 && *c.Finish == "" {
			t.Errorf("%d tokens of at most 12, then %q", n, *c.Finish)
		}
	}
	if len(whole.Choices) != 2 || whole.Object != "chat.completion" || whole.Usage.Prompt != len(whole.PromptIDs) ||
		whole.Usage.Total != whole.Usage.Prompt+whole.Usage.Completion {
		t.Errorf("%s", text)
	}
	for _, c := range whole.Choices {
		if c.Message.Role != "assistant" || len(c.LogProbs.Content) != len(c.IDs) || len(c.LogProbs.Content[0].Top) !=
			2 {
			t.Errorf("%s", text)
		}
	}
	body["stream"], body["stream_options"] = true, map[string]bool{"include_usage": true}
	_, text = post(t, url+"/v1/chat/completions", body)
	contents, roles, parts := make([]string, 2), 0, events(t, text)
	for i, e := range parts {
		b := decode[chatResponse](t, e)
		if b.Object != "chat.completion.chunk" || (b.Usage != nil) != (i == len(parts)-1) {
			t.Errorf("chunk %d: %s", i, e)
		}
		for _, c := range b.Choices {
			contents[c.Index] += *c.Delta.Content
			if c.Delta.Role != "" {
				roles++
			}
		}
	}
	if roles != 2 || contents[0] != *whole.Choices[0].Message.Content ||
		contents[1] != *whole.Choices[1].Message.Content {
		t.Errorf("%d roles, %q, in one delta %s", roles, contents, text)
	}
	// Without a bound a sample fills the context.
	_, text = post(t, url+"/v1/chat/completions",
		`{"messages": [{"role": "user", "content": "x"}], "ignore_eos": true}`)
	if b := decode[chatResponse](t, text); b.Usage.Total != 256 || *b.Choices[0].Finish != serve.FinishLength {
		t.Errorf("%s", text)
	}
}

// A template without end fails the request that it renders, soon and without a path of the server, and it ends when the
// client leaves.
func TestSpinningTemplate(t *testing.T) {
	loop := "{% for i in range(100000) %}"
	spin, err := data.NewTemplate("/models/secret/chat_template.jinja", loop+"{{ messages[0].content }}"+loop+
		"{% endfor %}{% endfor %}", nil)
	if err != nil {
		t.Fatal(err)
	}
	s, url, _ := running(t, small(), func(_ *parallel.Rank, m *serve.ServedModel) {
		changed := *m.Tokenizer
		changed.Template, m.Tokenizer = spin, &changed
	})
	chat := `{"messages": [{"role": "user", "content": "x"}]}`
	good := map[string]any{"prompt": "hello", "max_tokens": 5, "seed": 4, "ignore_eos": true}
	failed := make(chan string)
	go func() {
		status, text := post(t, url+"/v1/chat/completions", chat)
		failed <- fmt.Sprint(status, string(text))
	}()
	complete(t, url, good)
	if got := <-failed; !strings.HasPrefix(got, "400") || strings.Contains(got, "secret") ||
		!strings.Contains(got, "chat_template.jinja: line 1: the template ") {
		t.Error(got)
	}
	complete(t, url, good)
	ctx, leave := context.WithCancel(t.Context())
	leave()
	f, err := newFields(ctx, []byte(chat))
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	_, err = s.encode(f, "messages")
	if took := time.Since(start); !errors.Is(err, context.Canceled) || took > 200*time.Millisecond {
		t.Errorf("%v, after %v", err, took)
	}
}

// max_tokens and max_completion_tokens both bound a chat completion; the latter wins.
func TestChatMaxTokens(t *testing.T) {
	_, url, _ := running(t, small())
	for more, want := range map[string]int{
		`"max_tokens": 5`: 5, `"max_completion_tokens": 7`: 7, `"max_tokens": 5, "max_completion_tokens": 7`: 7,
	} {
		_, text := post(t, url+"/v1/chat/completions",
			`{"messages": [{"role": "user", "content": "x"}], "ignore_eos": true, "n": 2, `+more+`}`)
		if got := decode[chatResponse](t, text).Usage.Completion; got != 2*want {
			t.Errorf("%s: %d tokens of two choices: %s", more, got, text)
		}
	}
	// A prompt that leaves no room is rejected for its length, not for max_tokens, which the request does not have.
	status, text := post(t, url+"/v1/chat/completions", map[string]any{
		"messages": []map[string]string{{"role": "user", "content": strings.Repeat("a", 400)}},
	})
	if status != http.StatusBadRequest || !strings.Contains(string(text), "tokens and the model 256") {
		t.Errorf("%d %s", status, text)
	}
}

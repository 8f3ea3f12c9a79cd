package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"reflect"
	"strings"
	"testing"

	"lockstep/data"
	"lockstep/data/tokenizer"
	"lockstep/parallel"
	"lockstep/serve"
	"lockstep/serve/api/toolcalls"
)

// sampled is a choice of a request whose model writes a text, a token for each byte.
func sampled(t *testing.T, o toolcalls.Options) (*data.ChatTokenizer, *choice) {
	t.Helper()
	tok, err := data.NewChatTokenizer("bytes")
	if err != nil {
		t.Fatal(err)
	}
	return tok, &choice{decoder: &tokenizer.Decoder{Tokenizer: tok.Tokenizer}, answer: toolcalls.NewParser(o)}
}

// A whole answer and the chunks of a stream say the same calls, with all tokens that were sampled.
func TestToolCallsOfAnswer(t *testing.T) {
	const text = "<think>\nHm.\n</think>\n\nI look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": " +
		"\"Bern\"}}\n" +
		"</tool_call>\n<tool_call>\n{\"name\": \"now\"}\n</tool_call>"
	o := toolcalls.Options{Format: toolcalls.Hermes, Calls: true, Reasoning: true, Thinking: toolcalls.MayThink}
	header, req := responseHeader{ID: "chatcmpl-ab"}, &samplingRequest{n: 1, logprobs: true, tokenIDs: true,
		prompts: [][]int32{{1}}}
	const want = `{"role":"assistant","content":"I ` +
		`look.","reasoning_content":"Hm.","tool_calls":[{"id":"call_ab_0_0",` +
		`"type":"function","function":{"name":"weather","arguments":"{\"city\": ` +
		`\"Bern\"}"}},{"id":"call_ab_0_1","type":` +
		`"function","function":{"name":"now","arguments":"{}"}}]}`

	tok, c := sampled(t, o)
	format := chatFormat{tok}
	var tokens []token
	for _, id := range tok.Encode(text) {
		tokens = append(tokens, token{id: id})
	}
	end := token{id: tok.End}
	d := c.add(append(tokens, end), serve.FinishStop)
	whole := format.response(header, req, []*choice{c}, []delta{d}).(chatResponse)
	message, err := json.Marshal(whole.Choices[0].Message)
	if err != nil || string(message) != want || *whole.Choices[0].Finish != "tool_calls" {
		t.Errorf("%s, %s, %v", message, *whole.Choices[0].Finish, err)
	}

	_, c = sampled(t, o)
	var told chatMessage
	var content, finish string
	ids, logprobs := 0, 0
	add := func(list []any) {
		for _, x := range list {
			part := x.(chatResponse).Choices[0]
			ids += len(part.IDs)
			if part.LogProbs != nil {
				logprobs += len(part.LogProbs.Content)
			}
			if finish != "" {
				t.Error("a chunk behind the end")
			}
			if part.Finish != nil {
				finish = string(*part.Finish)
			}
			if part.Delta.Content != nil {
				content += *part.Delta.Content
			}
			told.Reasoning += part.Delta.Reasoning
			for _, call := range part.Delta.Calls {
				i := *call.Index
				if call.Index = nil; i == len(told.Calls) && call.Function.Name != "" {
					told.Calls = append(told.Calls, call)
				} else {
					told.Calls[i].Function.Arguments += call.Function.Arguments
				}
			}
		}
	}
	for _, x := range tokens {
		add(format.chunks(header, req, c, c.add([]token{x}, ""), nil))
	}
	add(format.chunks(header, req, c, c.add([]token{end}, serve.FinishStop), nil))
	told.Role, told.Content = "assistant", &content
	if !reflect.DeepEqual(&told, whole.Choices[0].Message) || finish != "tool_calls" || ids != len(tokens)+1 ||
		logprobs != ids || c.tokens != ids {
		t.Errorf("%+v, content %q, %s, %d ids, %d log-probabilities, %d tokens", told, content, finish, ids, logprobs,
			c.tokens)
	}
}

// An answer of calls alone has null for content; one that runs out of tokens says so, and other answers are as ever.
func TestContentOfAnswer(t *testing.T) {
	const call = "<tool_call>{\"name\": \"now\"}</tool_call>"
	for _, a := range []struct {
		text    string
		calls   bool
		end     serve.FinishReason
		content string
		finish  string
	}{
		{call, true, serve.FinishStop, "null", "tool_calls"}, {call, true, serve.FinishLength, "null", "length"},
		{call, false, serve.FinishStop, fmt.Sprintf("%q", call), "stop"}, {"", true, serve.FinishStop, `""`, "stop"},
		{"<think>a</think> b", true, serve.FinishStop, `"<think>a</think> b"`, "stop"},
	} {
		tok, c := sampled(t, toolcalls.Options{Format: toolcalls.Hermes, Calls: a.calls, Thinking: toolcalls.MayThink})
		var tokens []token
		for _, id := range tok.Encode(a.text) {
			tokens = append(tokens, token{id: id})
		}
		if a.end == serve.FinishStop {
			tokens = append(tokens, token{id: tok.End})
		}
		d := c.add(tokens, a.end)
		content, err := json.Marshal(newChatMessage(responseHeader{}, c, d.answer).Content)
		if got := strings.NewReplacer(`\u003c`, "<", `\u003e`, ">").Replace(string(content)); err != nil ||
			got != a.content || string(*c.finishReason()) != a.finish {
			t.Errorf("%q, %v: content %s, %s, want %s, %s", a.text, a.calls, got, *c.finishReason(), a.content,
				a.finish)
		}
	}
}

// What a prompt says of thinking is read from its last tokens.
func TestThinkingOfPrompt(t *testing.T) {
	tok, err := data.NewChatTokenizer("bytes")
	if err != nil {
		t.Fatal(err)
	}
	if got := thinking(tok, tok.Encode("<think>\n")); got != toolcalls.Thinks {
		t.Errorf("opened: %v", got)
	}
	if got := thinking(tok, tok.Encode("<think>\n\n</think>\n\n")); got != toolcalls.NeverThinks {
		t.Errorf("a template without thinking: %v", got)
	}
	if tok.Template, err = data.NewTemplate("x", "{{ '<think>' }}", nil); err != nil {
		t.Fatal(err)
	}
	if got := thinking(tok, tok.Encode("<think>\n\n</think>\n\n")); got != toolcalls.MayThink {
		t.Errorf("a template with thinking: %v", got)
	}
}

// tool_choice and parallel_tool_calls are read, and what cannot be done is refused.
func TestToolFields(t *testing.T) {
	source, err := os.ReadFile("../../data/testdata/templates/thinking.jinja")
	if err != nil {
		t.Fatal(err)
	}
	s, url, _ := running(t, small(), func(_ *parallel.Rank, m *serve.ServedModel) {
		changed := *m.Tokenizer
		if changed.Template, err = data.NewTemplate("thinking.jinja", string(source), nil); err != nil {
			t.Error(err)
		}
		m.Tokenizer = &changed
	})
	const tools = `"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]`
	for fields, want := range map[string]*toolcalls.Options{
		`"user": "me"`: {}, tools: {Calls: true}, tools + `, "tool_choice": "auto"`: {Calls: true},
		tools + `, "tool_choice": "none"`: {}, `"tool_choice": "none"`: {}, `"tools": [], "tool_choice": "auto"`: {},
		tools + `, "parallel_tool_calls": false`: {Calls: true, First: true},
		tools + `, "parallel_tool_calls": true`:  {Calls: true},
		tools + `, "tool_choice": "required"`:    nil, tools + `, "parallel_tool_calls": "no"`: nil,
		tools + `, "tool_choice": {"type": "function", "function": {"name": "f"}}`: nil,
	} {
		body := `{"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, ` + fields + `}`
		f, err := newFields(t.Context(), []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		req, err := s.parseChatCompletion(f)
		switch {
		case want == nil && (err == nil || strings.Contains(err.Error(), "\n")):
			t.Errorf("%s: %v", fields, err)
		case want != nil && (err != nil || req.answer.Calls != want.Calls || req.answer.First != want.First ||
			req.answer.Format != toolcalls.Hermes || req.answer.Thinking != toolcalls.MayThink):
			t.Errorf("%s: %+v, %v", fields, req, err)
		}
	}
	status, text := post(t, url+"/v1/chat/completions", `{"messages": [{"role": "user", "content": "x"}], `+
		`"max_tokens": 4, "tool_choice": "none", `+tools+`}`)
	if status != http.StatusOK || decode[chatResponse](t, text).Choices[0].Message.Content == nil {
		t.Errorf("%d %s", status, text)
	}
}

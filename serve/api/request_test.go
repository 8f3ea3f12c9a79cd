package api

import (
	"context"
	"encoding/json"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"lockstep/data"
	"lockstep/data/tokenizer"
	"lockstep/serve"
)

// completed posts to /v1/completions and wants an answer.
func completed(t *testing.T, url string, body map[string]any) textBody {
	t.Helper()
	status, text := post(t, url+"/v1/completions", body)
	if status != http.StatusOK {
		t.Fatalf("%v: %d %s", body, status, text)
	}
	return decode[textBody](t, text)
}

// stop_token_ids end an answer with and without the model's own ends of text, and max_tokens by its length.
func TestStopTokens(t *testing.T) {
	_, url, _ := running(t, small())
	body := map[string]any{"prompt": "stop", "seed": 3, "max_tokens": 40, "return_token_ids": true, "ignore_eos": true}
	free := completed(t, url, body).Choices[0].IDs
	if len(free) != 40 {
		t.Fatalf("%d tokens of 40", len(free))
	}
	at := slices.IndexFunc(free, func(id int32) bool { return slices.Index(free, id) > 4 }) // not among the first
	if at < 0 {
		t.Fatalf("%v", free)
	}
	for _, ignore := range []bool{true, false} {
		body["ignore_eos"], body["stop_token_ids"] = ignore, []int32{free[at]}
		c := completed(t, url, body).Choices[0]
		if !slices.Equal(c.IDs, free[:at+1]) || *c.Finish != serve.FinishStop {
			t.Errorf("ignore_eos %v: %v (%s), want %v", ignore, c.IDs, *c.Finish, free[:at+1])
		}
	}
}

// A chat is bounded by either name of its bound; the one of today's interface wins.
func TestChatBounds(t *testing.T) {
	_, url, _ := running(t, small())
	for more, want := range map[string]int{
		`"max_tokens": 5`: 5, `"max_completion_tokens": 7`: 7, `"max_tokens": 5, "max_completion_tokens": 7`: 7,
	} {
		_, text := post(t, url+"/v1/chat/completions",
			`{"messages": [{"role": "user", "content": "x"}], "ignore_eos": true, "n": 2, `+more+`}`)
		if got := decode[talkBody](t, text).Usage.Completion; got != 2*want {
			t.Errorf("%s: %d tokens of two answers: %s", more, got, text)
		}
	}
	// A prompt that leaves no room is refused for its length, not for a bound that nobody gave.
	status, text := post(t, url+"/v1/chat/completions", map[string]any{
		"messages": []map[string]string{{"role": "user", "content": strings.Repeat("a", 400)}},
	})
	if status != http.StatusBadRequest || !strings.Contains(string(text), "tokens and the model 256") {
		t.Errorf("%d %s", status, text)
	}
}

// Choices of several prompts tell their own prompt's tokens.
func TestPromptsOfChoices(t *testing.T) {
	_, url, _ := running(t, small())
	prompts := [][]int32{{3, 4, 5}, {6, 7}, {8}}
	b := completed(t, url, map[string]any{"prompt": prompts, "n": 2, "max_tokens": 2, "return_token_ids": true})
	if len(b.Choices) != 6 {
		t.Fatalf("%+v", b)
	}
	for i, c := range b.Choices {
		if c.Index != i || !slices.Equal(c.PromptIDs, prompts[i/2]) {
			t.Errorf("choice %d: index %d of prompt %v, want %v", i, c.Index, c.PromptIDs, prompts[i/2])
		}
	}
}

// A text stop ends the engine's request at once, and its tokens are told up to the one that completed the stop.
func TestTextStopCancels(t *testing.T) {
	s, url, _ := running(t, small())
	body := map[string]any{"prompt": "a", "seed": 8, "max_tokens": 200, "ignore_eos": true}
	text := completed(t, url, body).Choices[0].Text
	runes := []rune(text)
	stop := string(runes[5:7])
	body["stop"] = stop
	c := completed(t, url, body).Choices[0]
	if want, _, _ := strings.Cut(text, stop); c.Text != want || *c.Finish != serve.FinishStop {
		t.Errorf("%q (%s), want %q", c.Text, *c.Finish, want)
	}
	var flying, cancelled int
	err := s.do(context.Background(), func() { flying, cancelled = s.engine.InFlight(), s.engine.Cancelled })
	if err != nil {
		t.Fatal(err)
	}
	if flying != 0 || cancelled != 1 {
		t.Errorf("%d requests in flight, %d cancelled", flying, cancelled)
	}
}

// Offsets of tokens count characters of the text before each, in an answer that comes in many pieces too.
func TestOffsets(t *testing.T) {
	tok := tokenizer.NewBytes(nil)
	c := &choice{decoder: &tokenizer.Decoder{Tokenizer: tok}}
	var all piece
	for _, id := range tok.Encode("hé…x") {
		p := c.add([]token{{id: id}}, "")
		all.text, all.offsets = all.text+p.text, append(all.offsets, p.offsets...)
	}
	if want := []int{0, 1, 1, 2, 2, 2, 3}; !slices.Equal(all.offsets, want) || all.text != "hé…x" {
		t.Errorf("%q at %v, want %v", all.text, all.offsets, want)
	}
	_, url, _ := running(t, small())
	body := map[string]any{"prompt": "a", "seed": 2, "max_tokens": 60, "logprobs": 1, "ignore_eos": true}
	b := completed(t, url, body).Choices[0]
	l := b.LogProbs
	if len(l.Offsets) != 60 || len(l.Tokens) != 60 || len(l.LogProbs) != 60 || len(l.Top) != 60 {
		t.Fatalf("%d tokens at %d offsets", len(l.Tokens), len(l.Offsets))
	}
	if l.Offsets[0] != 0 || !slices.IsSorted(l.Offsets) || l.Offsets[59] > utf8.RuneCountInString(b.Text) {
		t.Errorf("offsets %v of %d characters", l.Offsets, utf8.RuneCountInString(b.Text))
	}
	if l.Offsets[59] < 20 { // bytes make characters, of one to four
		t.Errorf("offsets %v", l.Offsets)
	}
}

// What JSON has no number for is told as the nearest one, and an answer that cannot be told is an error, never empty.
func TestInfiniteLogProbs(t *testing.T) {
	l, err := data.NewLanguage("bytes")
	if err != nil {
		t.Fatal(err)
	}
	low := float32(math.Inf(-1))
	a := &ask{n: 1, prompts: [][]int32{{1}}, logprobs: true, top: 1}
	drawn := token{id: 97, logprob: low, likely: []serve.Likely{{ID: 98, LogProb: low}}}
	p := piece{text: "a", offsets: []int{0}, tokens: []token{drawn}}
	for _, v := range []voice{text{l}, talk{l}} {
		w := httptest.NewRecorder()
		c := &choice{prompt: a.prompts[0], finish: serve.FinishStop}
		reply(w, http.StatusOK, v.body(header{}, a, []*choice{c}, []piece{p}))
		if w.Code != http.StatusOK || !json.Valid(w.Body.Bytes()) || strings.Count(w.Body.String(), "-3.4028235e+38") <
			2 {
			t.Errorf("%T: %d %s", v, w.Code, w.Body)
		}
	}
	w := httptest.NewRecorder()
	reply(w, http.StatusOK, map[string]float64{"x": math.NaN()})
	told := strings.Contains(w.Body.String(), "NaN") && json.Valid(w.Body.Bytes())
	if w.Code != http.StatusInternalServerError || !told {
		t.Errorf("%d %q", w.Code, w.Body)
	}
}

// consistent says what a request that was taken asks for that no request may; "": nothing.
func consistent(s *Server, a *ask) string {
	q, vocab := a.request, int32(s.served.Model.Vocab)
	outside := func(ids []int32) bool {
		return slices.ContainsFunc(ids, func(id int32) bool { return id < 0 || id >= vocab })
	}
	switch {
	case a.n < 1 || len(a.prompts) == 0 || a.n*len(a.prompts) > mostSamples:
		return "samples"
	case slices.ContainsFunc(a.prompts, outside) || outside(q.Stop):
		return "tokens outside the vocabulary"
	case a.rest != (q.MaxTokens == 0) || q.MaxTokens < 0:
		return "max_tokens"
	case !(q.Temperature >= 0 && q.Temperature <= 100) || !(q.TopP >= 0 && q.TopP <= 1) || q.TopK < 0:
		return "sampling"
	case a.top < 0 || a.top > mostTop || q.Top != a.top || a.top > 0 && !a.logprobs:
		return "logprobs"
	case slices.Contains(a.stops, ""):
		return "stop"
	}
	return ""
}

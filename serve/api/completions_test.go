package api

import (
	"bytes"
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"lockstep/data/tokenizer"
	"lockstep/parallel"
	"lockstep/serve"
)

// complete posts to /v1/completions and returns the response.
func complete(t *testing.T, url string, body map[string]any) completionResponse {
	t.Helper()
	status, text := post(t, url+"/v1/completions", body)
	if status != http.StatusOK {
		t.Fatalf("%v: %d %s", body, status, text)
	}
	return decode[completionResponse](t, text)
}

// Samples of one prompt differ. Equal requests differ without a seed and agree with one.
func TestSeeds(t *testing.T) {
	_, url, _ := running(t, small())
	sample := func(more string) (texts []string) {
		status, text := post(t, url+"/v1/completions",
			`{"prompt": "hello", "n": 4, "max_tokens": 20, "ignore_eos": true`+more+`}`)
		if status != http.StatusOK {
			t.Fatalf("%d: %s", status, text)
		}
		for _, c := range decode[completionResponse](t, text).Choices {
			texts = append(texts, c.Text)
		}
		return texts
	}
	seeded, again := sample(`, "seed": -7`), sample(`, "seed": -7`)
	other, unseeded, unseeded2 := sample(`, "seed": 8`), sample(""), sample("")
	if !slices.Equal(seeded, again) {
		t.Errorf("one seed, different samples: %q and %q", seeded, again)
	}
	all := slices.Concat(seeded, other, unseeded, unseeded2)
	slices.Sort(all)
	if n := len(slices.Compact(all)); n != 16 {
		t.Errorf("%d different samples of 16", n)
	}
}

// Top log-probabilities are those of each position: a greedy sample has the largest of each list.
func TestTopLogProbsOfEachToken(t *testing.T) {
	_, url, _ := running(t, small())
	_, text := post(t, url+"/v1/completions",
		`{"prompt": "hello", "max_tokens": 20, "ignore_eos": true, "temperature": 0, "logprobs": 2}`)
	l := decode[completionResponse](t, text).Choices[0].LogProbs
	if len(l.Top) != 20 {
		t.Fatalf("%d lists for 20 tokens", len(l.Top))
	}
	for i, top := range l.Top {
		own, ok := top[l.Tokens[i]]
		if !ok || own != *l.LogProbs[i] {
			t.Errorf("token %d, %q with %v, is not in its list %v", i, l.Tokens[i], *l.LogProbs[i], top)
		}
		for token, logprob := range top {
			if logprob > own {
				t.Errorf("at token %d, %q with %v is more likely than the sampled token with %v", i, token, logprob,
					own)
			}
		}
	}
}

// stop_token_ids end a sample, with and without the model's end-of-sequence tokens.
func TestStopTokens(t *testing.T) {
	_, url, _ := running(t, small())
	body := map[string]any{"prompt": "stop", "seed": 3, "max_tokens": 40, "return_token_ids": true, "ignore_eos": true}
	unstopped := complete(t, url, body).Choices[0].IDs
	if len(unstopped) != 40 {
		t.Fatalf("%d tokens of 40", len(unstopped))
	}
	// not among the first
	at := slices.IndexFunc(unstopped, func(id int32) bool { return slices.Index(unstopped, id) > 4 })
	if at < 0 {
		t.Fatalf("%v", unstopped)
	}
	for _, ignore := range []bool{true, false} {
		body["ignore_eos"], body["stop_token_ids"] = ignore, []int32{unstopped[at]}
		c := complete(t, url, body).Choices[0]
		if !slices.Equal(c.IDs, unstopped[:at+1]) || *c.Finish != serve.FinishStop {
			t.Errorf("ignore_eos %v: %v (%s), want %v", ignore, c.IDs, *c.Finish, unstopped[:at+1])
		}
	}
}

// A stop string cancels the sample in the engine at once.
func TestStopStringCancels(t *testing.T) {
	s, url, _ := running(t, small())
	body := map[string]any{"prompt": "a", "seed": 8, "max_tokens": 200, "ignore_eos": true}
	text := complete(t, url, body).Choices[0].Text
	runes := []rune(text)
	stop := string(runes[5:7])
	body["stop"] = stop
	c := complete(t, url, body).Choices[0]
	if want, _, _ := strings.Cut(text, stop); c.Text != want || *c.Finish != serve.FinishStop {
		t.Errorf("%q (%s), want %q", c.Text, *c.Finish, want)
	}
	var inFlight, cancelled int
	err := s.betweenSteps(context.Background(), func() {
		inFlight, cancelled = s.engine.InFlight(), s.engine.Counters().Cancelled
	})
	if err != nil {
		t.Fatal(err)
	}
	if inFlight != 0 || cancelled != 1 {
		t.Errorf("%d requests in flight, %d cancelled", inFlight, cancelled)
	}
}

// Each choice has the token ids of its own prompt.
func TestPromptsOfChoices(t *testing.T) {
	_, url, _ := running(t, small())
	prompts := [][]int32{{3, 4, 5}, {6, 7}, {8}}
	b := complete(t, url, map[string]any{"prompt": prompts, "n": 2, "max_tokens": 2, "return_token_ids": true})
	if len(b.Choices) != 6 {
		t.Fatalf("%+v", b)
	}
	for i, c := range b.Choices {
		if c.Index != i || !slices.Equal(c.PromptIDs, prompts[i/2]) {
			t.Errorf("choice %d: index %d of prompt %v, want %v", i, c.Index, c.PromptIDs, prompts[i/2])
		}
	}
}

// Offsets count the characters of the text before each token, across deltas too.
func TestOffsets(t *testing.T) {
	tok := tokenizer.NewBytes(nil)
	c := &choice{decoder: &tokenizer.Decoder{Tokenizer: tok}}
	var all delta
	for _, id := range tok.Encode("hé…x") {
		p := c.add([]token{{id: id}}, "")
		all.text, all.offsets = all.text+p.text, append(all.offsets, p.offsets...)
	}
	if want := []int{0, 1, 1, 2, 2, 2, 3}; !slices.Equal(all.offsets, want) || all.text != "hé…x" {
		t.Errorf("%q at %v, want %v", all.text, all.offsets, want)
	}
	_, url, _ := running(t, small())
	body := map[string]any{"prompt": "a", "seed": 2, "max_tokens": 60, "logprobs": 1, "ignore_eos": true}
	b := complete(t, url, body).Choices[0]
	l := b.LogProbs
	if len(l.Offsets) != 60 || len(l.Tokens) != 60 || len(l.LogProbs) != 60 || len(l.Top) != 60 {
		t.Fatalf("%d tokens at %d offsets", len(l.Tokens), len(l.Offsets))
	}
	if l.Offsets[0] != 0 || !slices.IsSorted(l.Offsets) || l.Offsets[59] > utf8.RuneCountInString(b.Text) {
		t.Errorf("offsets %v of %d characters", l.Offsets, utf8.RuneCountInString(b.Text))
	}
	if l.Offsets[59] < 20 { // a character has one to four bytes
		t.Errorf("offsets %v", l.Offsets)
	}
}

// A request for which the model computes no numbers gets an error of its own, in one piece or as an event of its
// stream; a concurrent request and the server go on.
func TestNotFinite(t *testing.T) {
	_, url, _ := running(t, small(), func(r *parallel.Rank, m *serve.ServedModel) {
		row := m.Model.Embed.Param.W.RowRange('M', 'M'+1)
		r.Dev.Write(row, bytes.Repeat([]byte{0xff}, row.Bytes()))
	})
	good := map[string]any{"prompt": "hello", "max_tokens": 30, "seed": 4, "ignore_eos": true}
	want := complete(t, url, good)
	concurrent := make(chan completionResponse)
	go func() { concurrent <- complete(t, url, good) }()
	for _, body := range []string{
		`{"prompt": "MODEL", "max_tokens": 30}`,
		`{"prompt": ["hello", "a M b"], "max_tokens": 30, "temperature": 0, "logprobs": 2}`,
	} {
		status, text := post(t, url+"/v1/completions", body)
		if status != http.StatusInternalServerError || !strings.Contains(string(text), "logits are not finite") ||
			!strings.Contains(string(text), `"server_error"`) {
			t.Errorf("%s: %d %s", body, status, text)
		}
		_, text = post(t, url+"/v1/completions", strings.Replace(body, "{", `{"stream": true, `, 1))
		if !strings.Contains(string(text), "logits are not finite") || strings.Contains(string(text), "[DONE]") {
			t.Errorf("%s, as a stream: %s", body, text)
		}
	}
	if got := <-concurrent; got.Choices[0].Text != want.Choices[0].Text {
		t.Errorf("concurrent with a request that fails: %q, want %q", got.Choices[0].Text, want.Choices[0].Text)
	}
	if got := complete(t, url, good); got.Choices[0].Text != want.Choices[0].Text {
		t.Errorf("after a request that failed: %q, want %q", got.Choices[0].Text, want.Choices[0].Text)
	}
}

package api

import (
	"math/rand/v2"
	"strings"
	"testing"

	"lockstep/data/tokenizer"
	"lockstep/serve"
)

// cutAtStop returns the text before the stop string that is complete first, reading byte by byte.
func cutAtStop(text string, stops []string) (string, bool) {
	for end := range len(text) + 1 {
		first := -1
		for _, s := range stops {
			if i := strings.Index(text[:end], s); i >= 0 && (first < 0 || i < first) {
				first = i
			}
		}
		if first >= 0 {
			return text[:first], true
		}
	}
	return text, false
}

// However tokens are split, the deltas join to the text up to the first stop string, and no byte of one is sent.
func TestStopStrings(t *testing.T) {
	tok := tokenizer.NewBytes([]string{"<end>"})
	end, _ := tok.ID("<end>")
	rng := rand.New(rand.NewPCG(1, 1))
	random := func(n int) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = "abc"[rng.IntN(3)]
		}
		return string(b)
	}
	stopped := 0
	for range 3000 {
		text, stops := random(rng.IntN(20)), make([]string, rng.IntN(3))
		for i := range stops {
			stops[i] = random(1 + rng.IntN(4))
		}
		ids, last := tok.Encode(text), serve.FinishLength
		if rng.IntN(2) == 0 {
			ids, last = append(ids, end), serve.FinishStop
		}
		want, stop := cutAtStop(text, stops)
		if stop {
			stopped++
		}
		c := &choice{decoder: &tokenizer.Decoder{Tokenizer: tok}, stops: stops}
		got, at := "", 0
		for c.finish == "" {
			n := min(rng.IntN(4), len(ids)-at)
			var tokens []token
			for _, id := range ids[at : at+n] {
				tokens = append(tokens, token{id: id})
			}
			at += n
			finish := serve.FinishReason("")
			if at == len(ids) {
				finish = last
			}
			got += c.add(tokens, finish).text
			if !strings.HasPrefix(want, got) {
				t.Fatalf("%q with stops %q: sent %q", text, stops, got)
			}
		}
		if got != want || stop && c.finish != serve.FinishStop || !stop && c.finish != last {
			t.Fatalf("%q with stops %q: %q (%s), want %q", text, stops, got, c.finish, want)
		}
	}
	if stopped < 300 {
		t.Errorf("only %d texts had a stop string", stopped)
	}
}

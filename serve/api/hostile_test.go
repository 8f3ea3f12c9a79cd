package api

import (
	"bytes"
	"flag"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"
)

var manyBodies = flag.Int("hostile", 200, "bodies that TestHostileBodies sends")

// damagedBody is a request with what a client or an attacker might do to it.
func damagedBody(rng *rand.Rand) []byte {
	bodies := []string{
		`{"prompt": "hello", "max_tokens": 4, "n": 2, "seed": 4, "temperature": 0.5, "top_p": 0.9, "top_k": 5}`,
		`{"prompt": [1, 2, 3], "max_tokens": 3, "stop": ["a", "b"], "logprobs": 2, "stream": true}`,
		`{"prompt": ["a", "b"], "max_tokens": 2, "stop_token_ids": [1], "ignore_eos": true, "user": "me"}`,
		`{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "top_logprobs": 2, "logprobs": true}`,
	}
	values := []string{"null", "-1", "0", "1e308", "4611686018427387904", "9223372036854775808", "[]", "{}", `""`,
		"true", `"\ud800"`, "\xff", "nan", `"x"`, "[[1]]",
		strings.Repeat("[", 20000), `"` + strings.Repeat("y", 1<<20) + `"`,
		`{"a": 1}`, "65536", "0.1"}
	text := []byte(bodies[rng.IntN(len(bodies))])
	value := values[rng.IntN(len(values))]
	at := rng.IntN(len(text))
	switch rng.IntN(4) {
	case 0: // another value of a field
		if from := bytes.IndexByte(text[at:], ':'); from >= 0 {
			from += at + 1
			to := from + max(0, bytes.IndexAny(text[from:], ",}"))
			return append(append(append([]byte{}, text[:from]...), value...), text[to:]...)
		}
		return text[:at]
	case 1:
		return text[:at]
	case 2:
		text[at] ^= 1 << rng.IntN(8)
		return text
	}
	return append(append(append([]byte{}, text[:at]...), value...), text[at:]...)
}

// Damaged bodies are answered soon, never by an error of the server, and the next client gets what it would alone.
func TestHostileBodies(t *testing.T) {
	_, url, _ := running(t, small())
	good := map[string]any{"prompt": "hello", "max_tokens": 8, "seed": 4, "ignore_eos": true}
	want := complete(t, url, good)
	client := &http.Client{Timeout: 5 * time.Second}
	rng := rand.New(rand.NewPCG(19, 2))
	statuses := map[int]int{}
	for i := range *manyBodies {
		body := damagedBody(rng)
		path := "/v1/completions"
		if bytes.Contains(body, []byte(`"messages"`)) {
			path = "/v1/chat/completions"
		} else if rng.IntN(8) == 0 {
			path = []string{"/tokenize", "/detokenize"}[rng.IntN(2)]
		}
		resp, err := client.Post(url+path, "application/json", bytes.NewReader(body))
		if err != nil {
			t.Fatalf("case %d, %.300s: %v", i, body, err)
		}
		text, err := io.ReadAll(resp.Body)
		if resp.Body.Close() != nil || err != nil || resp.StatusCode >= 500 || len(text) > 1<<20 {
			t.Errorf("case %d, %.300s: %d, %v: %.300s", i, body, resp.StatusCode, err, text)
		}
		statuses[resp.StatusCode]++
	}
	if got := complete(t, url, good); got.Choices[0].Text != want.Choices[0].Text {
		t.Errorf("%q, before %q", got.Choices[0].Text, want.Choices[0].Text)
	}
	t.Logf("%d bodies, by status %v", *manyBodies, statuses)
}

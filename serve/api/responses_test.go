package api

import (
	"encoding/json"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"lockstep/data"
	"lockstep/serve"
)

// A log-probability of -Inf is sent as the least finite number. A response that cannot be encoded is an error, not an
// empty body.
func TestInfiniteLogProbs(t *testing.T) {
	tok, err := data.NewChatTokenizer("bytes")
	if err != nil {
		t.Fatal(err)
	}
	low := float32(math.Inf(-1))
	a := &samplingRequest{n: 1, prompts: [][]int32{{1}}, logprobs: true, sample: serve.Request{TopLogProbs: 1}}
	sampled := token{id: 97, logprob: low, top: []serve.TokenLogProb{{ID: 98, LogProb: low}}}
	p := delta{text: "a", offsets: []int{0}, tokens: []token{sampled}}
	for _, v := range []responseFormat{completionFormat{tok}, chatFormat{tok}} {
		w := httptest.NewRecorder()
		c := &choice{prompt: a.prompts[0], finish: serve.FinishStop}
		writeJSON(w, http.StatusOK, v.response(responseHeader{}, a, []*choice{c}, []delta{p}))
		finite := strings.Count(w.Body.String(), "-3.4028235e+38")
		if w.Code != http.StatusOK || !json.Valid(w.Body.Bytes()) || finite < 2 {
			t.Errorf("%T: %d %s", v, w.Code, w.Body)
		}
	}
	w := httptest.NewRecorder()
	writeJSON(w, http.StatusOK, map[string]float64{"x": math.NaN()})
	valid := strings.Contains(w.Body.String(), "NaN") && json.Valid(w.Body.Bytes())
	if w.Code != http.StatusInternalServerError || !valid {
		t.Errorf("%d %q", w.Code, w.Body)
	}
}

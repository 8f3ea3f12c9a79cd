package data

import (
	"math"
	"reflect"
	"strings"
	"testing"
)

func TestRecorded(t *testing.T) {
	want := Recorded{Prompt: []int32{1, 2}, IDs: []int32{3, 4}, LogProbs: []float32{-0.1, 0}, Temperature: 1}
	for _, text := range []string{
		`{"prompt_ids": [1, 2], "ids": [3, 4], "logprobs": [-0.1, 0], "text": "x"}`,
		`{"prompt_token_ids": [1, 2], "token_ids": [3, 4], "logprobs": [-0.10000000149011612, 0.0]}`,
		`{"input_ids": [1, 2], "output_ids": [3, 4], "output_token_logprobs": [[-0.1, 3, "a"], [0, 4, null]]}`,
		`{"prompt_ids": [1, 2], "ids": [3, 4], "rollout_log_probs": [-0.1, -0.0]}`,
	} {
		d, err := object([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := ReadRecorded(d, 5, 4); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v (%v)", text, got, err)
		} else if math.Signbit(float64(got.LogProbs[1])) {
			t.Errorf("%s: -0 stays", text)
		}
	}
	d, err := object([]byte(`{"prompt_ids": [1], "ids": [3], "logprobs": [-1], "temperature": 0.6}`))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ReadRecorded(d, 5, 4); err != nil || got.Temperature != 0.6 {
		t.Errorf("%+v (%v)", got, err)
	}
	for text, words := range map[string]string{
		`{"ids": [3], "logprobs": [-1]}`:                                                "prompt_ids",
		`{"prompt_ids": [], "ids": [3], "logprobs": [-1]}`:                              "at least 1",
		`{"prompt_ids": [1], "ids": [], "logprobs": []}`:                                "at least 1",
		`{"prompt_ids": [1], "ids": [5], "logprobs": [-1]}`:                             "ids[0] is 5",
		`{"prompt_ids": [1], "input_ids": [1], "ids": [3], "logprobs": [-1]}`:           "both",
		`{"prompt_ids": [1], "ids": [3]}`:                                               "logprobs",
		`{"prompt_ids": [1], "ids": [3], "logprobs": -1}`:                               "not a list",
		`{"prompt_ids": [1], "ids": [3], "logprobs": [null]}`:                           "logprobs[0]",
		`{"prompt_ids": [1], "ids": [3], "logprobs": [{"3": -1}]}`:                      "logprobs[0]",
		`{"prompt_ids": [1], "ids": [3], "logprobs": [0.5]}`:                            "at most 0",
		`{"prompt_ids": [1], "ids": [3, 4], "logprobs": [-1]}`:                          "2 tokens and 1",
		`{"prompt_ids": [1, 1, 1], "ids": [3, 4], "logprobs": [-1, -1]}`:                "4 positions",
		`{"prompt_ids": [1], "ids": [3], "logprobs": [-1], "temperature": "hot"}`:       "temperature is not a number",
		`{"prompt_ids": [1], "ids": [3], "output_token_logprobs": [["-1", 3, "text"]]}`: "output_token_logprobs[0]",
	} {
		d, err := object([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ReadRecorded(d, 5, 4); err == nil || !strings.Contains(err.Error(), words) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", text, err, words)
		}
	}
}

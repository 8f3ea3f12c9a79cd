package pyjson

import (
	"encoding/json"
	"math"
	"testing"
)

func TestPythonNumbers(t *testing.T) {
	const text = `{"a": [0.0, Infinity], "b Infinity": "\" NaN", "c": -Infinity, "d": 3, "Infinity": NaN}`
	plain := Plain([]byte(text))
	var c struct {
		A []Float `json:"a"`
		B string  `json:"b Infinity"`
		C Float   `json:"c"`
		D Float   `json:"d"`
	}
	if err := json.Unmarshal(plain, &c); err != nil {
		t.Fatalf("%s: %v", plain, err)
	}
	if len(c.A) != 2 || c.A[0] != 0 || !math.IsInf(float64(c.A[1]), 1) || c.B != `" NaN` ||
		!math.IsInf(float64(c.C), -1) || c.D != 3 {
		t.Errorf("%+v", c)
	}
	if got := string(Bare(plain)); got != text {
		t.Errorf("%s, want %s", got, text)
	}
	if again := Plain(plain); string(again) != string(plain) {
		t.Errorf("%s, want %s", again, plain)
	}
	for _, bad := range []string{`"x"`, `{}`, `{"__float__": "1"}`, `[1]`} {
		if err := json.Unmarshal([]byte(bad), new(Float)); err == nil {
			t.Errorf("%s is taken as a number", bad)
		}
	}
}

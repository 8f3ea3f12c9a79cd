package model

import (
	"encoding/json"
	"math"
	"testing"
)

func TestPythonNumbers(t *testing.T) {
	const text = `{"a": [0.0, Infinity], "b Infinity": "\" NaN", "c": -Infinity, "d": 3, "Infinity": NaN}`
	plain := plainJSON([]byte(text))
	var c struct {
		A []pyFloat `json:"a"`
		B string    `json:"b Infinity"`
		C pyFloat   `json:"c"`
		D pyFloat   `json:"d"`
	}
	if err := json.Unmarshal(plain, &c); err != nil {
		t.Fatalf("%s: %v", plain, err)
	}
	if len(c.A) != 2 || c.A[0] != 0 || !math.IsInf(float64(c.A[1]), 1) || c.B != `" NaN` ||
		!math.IsInf(float64(c.C), -1) || c.D != 3 {
		t.Errorf("%+v", c)
	}
	if got := string(bareJSON(plain)); got != text {
		t.Errorf("%s, want %s", got, text)
	}
	if again := plainJSON(plain); string(again) != string(plain) {
		t.Errorf("%s, want %s", again, plain)
	}
	for _, bad := range []string{`"x"`, `{}`, `{"__float__": "1"}`, `[1]`} {
		if err := json.Unmarshal([]byte(bad), new(pyFloat)); err == nil {
			t.Errorf("%s is taken as a number", bad)
		}
	}
}

package ordered

import (
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"
)

// pairs are the keys and values of a dict, in turn.
func pairs(d *Dict) (list []any) {
	for k, v := range d.All() {
		list = append(list, k, v)
	}
	return list
}

func TestDecode(t *testing.T) {
	v, err := Decode([]byte(`{"b": 1, "a": [2.0, 1e3, null, true, "x"], "b": {"z": 0, "y": -5}}`))
	if err != nil {
		t.Fatal(err)
	}
	list := pairs(v.(*Dict))
	if len(list) != 4 || list[0] != "b" || list[2] != "a" {
		t.Fatalf("keys and values %v", list)
	}
	if got, want := pairs(list[1].(*Dict)), []any{"z", int64(0), "y", int64(-5)}; !reflect.DeepEqual(got, want) {
		t.Errorf("inner dict %v, want %v", got, want)
	}
	if want := []any{2.0, 1000.0, nil, true, "x"}; !reflect.DeepEqual(list[3], want) {
		t.Errorf("list %v, want %v", list[3], want)
	}
	for text, want := range map[string]string{
		``: "unexpected EOF", `{"a":`: "unexpected EOF", `{} {}`: "more text", `[1,]`: "invalid character",
		`1e999`: "too large", `99999999999999999999`: "too large", strings.Repeat("[", 1000): "nested",
	} {
		if _, err := Decode([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: %v, want %q", text, err, want)
		}
	}
}

// Keys that are equal in Python are one key.
func TestDictKeys(t *testing.T) {
	d := NewDict()
	d.Set(int64(1), "int")
	d.Set("1", "text")
	d.Set(1.0, "float")
	d.Set(true, "bool")
	d.Set(nil, "none")
	d.Set(1.5, "half")
	if got, want := pairs(d), []any{int64(1), "bool", "1", "text", nil, "none", 1.5, "half"}; !reflect.DeepEqual(got,
		want) {
		t.Errorf("%v, want %v", got, want)
	}
	c := d.Clone()
	c.Set("2", "new")
	if _, ok := d.Get("2"); ok || c.Len() != d.Len()+1 {
		t.Error("a key of the clone is in the original")
	}
	if _, ok := Hash([]any{}); ok {
		t.Error("a list has a hash")
	}
}

func TestEqual(t *testing.T) {
	decode := func(text string) any {
		v, err := Decode([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{`1`, `1.0`, true}, {`1`, `true`, true}, {`0`, `false`, true}, {`0`, `null`, false}, {`"1"`, `1`, false},
		{`""`, `null`, false}, {`9007199254740993`, `9007199254740992.0`, false}, {`1e300`, `1e300`, true},
		{`[1, [2]]`, `[1.0, [2]]`, true}, {`[1]`, `[1, 1]`, false}, {`[]`, `{}`, false}, {`[]`, `null`, false},
		{`{"a": 1, "b": 2}`, `{"b": 2, "a": 1}`, true}, {`{"a": 1}`, `{"a": 2}`, false},
		{`{"a": 1}`, `{"b": 1}`, false},
		{`{"a": 1}`, `{"a": 1, "b": 2}`, false}, {`{"a": {"b": []}}`, `{"a": {"b": []}}`, true},
	} {
		a, b := decode(c.a), decode(c.b)
		if Equal(a, b) != c.want || Equal(b, a) != c.want {
			t.Errorf("%s == %s: want %t", c.a, c.b, c.want)
		}
	}
	if nan := math.NaN(); Equal(nan, nan) {
		t.Error("NaN equals itself")
	}
}

// Decode accepts what encoding/json accepts, but for its bounds, and reads the same values.
func FuzzDecode(f *testing.F) {
	for _, text := range []string{`{"b": 1, "a": [2.0, null, true, "x"], "b": {}}`, `[1,]`, `1e999`, `"\ud800"`,
		` 1 2`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := Decode(text)
		var want any
		if wantErr := json.Unmarshal(text, &want); err == nil && wantErr != nil {
			t.Fatalf("%q: decoded to %v, encoding/json says %v", text, got, wantErr)
		} else if err != nil {
			if wantErr == nil && !strings.Contains(err.Error(), "too large") &&
				!strings.Contains(err.Error(), "nested") {
				t.Fatalf("%q: %v, encoding/json reads %v", text, err, want)
			}
			return
		}
		if !reflect.DeepEqual(unordered(got), want) {
			t.Fatalf("%q: %v, want %v", text, unordered(got), want)
		}
		if !Equal(got, got) {
			t.Fatalf("%q: not equal to itself", text)
		}
	})
}

// unordered is a value as encoding/json gives it.
func unordered(v any) any {
	switch v := v.(type) {
	case int64:
		return float64(v)
	case []any:
		list := make([]any, len(v))
		for i, x := range v {
			list[i] = unordered(x)
		}
		return list
	case *Dict:
		m := map[string]any{}
		for k, x := range v.All() {
			m[k.(string)] = unordered(x)
		}
		return m
	}
	return v
}

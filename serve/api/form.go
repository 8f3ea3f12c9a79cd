package api

import (
	"crypto/subtle"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"

	"lockstep/data/ordered"
)

// fault is a request that is refused.
type fault struct {
	status  int // of HTTP
	field   string
	message string
}

func (f *fault) Error() string { return f.message }

// mostBody bounds a request: a million tokens as text or as numbers.
const mostBody = 16 << 20

// form reads the fields of a request's JSON object, null ones as if they were not there. It keeps the first fault; what
// nobody has read is one too.
type form struct {
	d     *ordered.Dict
	known map[string]bool
	fault *fault
}

func readForm(w http.ResponseWriter, r *http.Request) (*form, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, mostBody))
	if err != nil {
		return nil, &fault{status: http.StatusRequestEntityTooLarge, message: fmt.Sprintf("the body: %v", err)}
	}
	v, err := ordered.Decode(body)
	if err != nil {
		return nil, bad("", "the body is no JSON: %v", err)
	}
	d, ok := v.(*ordered.Dict)
	if !ok {
		return nil, bad("", "the body is no JSON object")
	}
	return &form{d: d, known: map[string]bool{}}, nil
}

func bad(field, format string, args ...any) *fault {
	return &fault{status: http.StatusBadRequest, field: field, message: fmt.Sprintf(format, args...)}
}

// get is a field's value, nil if it is not there.
func (f *form) get(name string) any {
	f.known[name] = true
	v, _ := f.d.Get(name)
	return v
}

func (f *form) refuse(name, format string, args ...any) {
	if f.fault == nil {
		f.fault = bad(name, name+": "+format, args...)
	}
}

func (f *form) integer(name string, otherwise, least, most int64) int64 {
	switch v := f.get(name).(type) {
	case nil:
		return otherwise
	case int64:
		if v >= least && v <= most {
			return v
		}
	}
	f.refuse(name, "want a whole number from %d to %d", least, most)
	return otherwise
}

func (f *form) number(name string, otherwise, least, most float64) float64 {
	x := math.NaN()
	switch v := f.get(name).(type) {
	case nil:
		return otherwise
	case int64:
		x = float64(v)
	case float64:
		x = v
	}
	if x >= least && x <= most {
		return x
	}
	f.refuse(name, "want a number from %g to %g", least, most)
	return otherwise
}

func (f *form) flag(name string) bool {
	switch v := f.get(name).(type) {
	case nil:
		return false
	case bool:
		return v
	}
	f.refuse(name, "want true or false")
	return false
}

// texts is a list of strings, which may be given as one.
func (f *form) texts(name string) (list []string) {
	v := f.get(name)
	switch v := v.(type) {
	case nil:
		return nil
	case string:
		return []string{v}
	case []any:
		for _, x := range v {
			if s, ok := x.(string); ok {
				list = append(list, s)
			}
		}
		if len(list) == len(v) {
			return list
		}
	}
	f.refuse(name, "want a string or a list of strings")
	return nil
}

// tokens is a list of token ids; v is the value of a field or an element of it.
func (f *form) tokens(name string, v any) []int32 {
	list, ok := v.([]any)
	ids := make([]int32, 0, len(list))
	for _, x := range list {
		if id, ok := x.(int64); ok && id >= 0 && id <= math.MaxInt32 {
			ids = append(ids, int32(id))
		}
	}
	if !ok || len(ids) != len(list) {
		f.refuse(name, "want a list of token ids")
	}
	return ids
}

// only refuses a field whose value is none of those, which ask for what happens anyway.
func (f *form) only(name, why string, values ...any) {
	if v := f.get(name); v != nil && !slices.ContainsFunc(values, func(x any) bool { return ordered.Equal(v, x) }) {
		f.refuse(name, "%s", why)
	}
}

// ignore knows fields that change no answer.
func (f *form) ignore(names ...string) {
	for _, n := range names {
		f.known[n] = true
	}
}

// err is a field that nobody has read, for it may be the one that is missed, or else the first fault.
func (f *form) err() error {
	for _, k := range f.d.Keys() {
		if name, _ := k.(string); !f.known[name] {
			return bad(name, "%q: this server knows no such field", name)
		}
	}
	if f.fault != nil {
		return f.fault
	}
	return nil
}

// sameKey compares in a time that says nothing about how much is right.
func sameKey(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

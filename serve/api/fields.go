package api

import (
	"context"
	"math"
	"net/http"
	"slices"

	"lockstep/data"
	"lockstep/data/ordered"
)

// fields reads the fields of a request's JSON object. A null field counts as absent. It keeps the first error, which
// err returns; a field that no method has read is an error too.
type fields struct {
	ctx    context.Context // of the request
	object *ordered.Dict
	known  map[string]bool // fields that were read or ignored
	first  *apiError
}

// parse reads a request's body and calls read with its fields, which are not kept.
func (s *Server) parse(w http.ResponseWriter, r *http.Request, read func(*fields) error) error {
	ctx, cancel := context.WithTimeout(r.Context(), s.options.Limits.Read)
	defer cancel()
	release, err := s.bodies.hold(ctx, r.ContentLength)
	if err != nil {
		return err
	}
	defer release()
	body, err := s.readBody(w, r)
	if err != nil {
		return err
	}
	f, err := newFields(r.Context(), body)
	if err != nil {
		return err
	}
	return read(f)
}

// newFields are those of a body.
func newFields(ctx context.Context, body []byte) (*fields, error) {
	if err := data.CheckEncoding("body", body); err != nil {
		return nil, badRequest("", "%v", err)
	}
	v, err := ordered.Decode(body)
	if err != nil {
		return nil, badRequest("", "the body is not JSON: %v", err)
	}
	object, ok := v.(*ordered.Dict)
	if !ok {
		return nil, badRequest("", "the body is not a JSON object")
	}
	return &fields{ctx: ctx, object: object, known: map[string]bool{}}, nil
}

// get returns a field's value, nil if it is absent.
func (f *fields) get(name string) any {
	f.known[name] = true
	v, _ := f.object.Get(name)
	return v
}

// reject records an error of a field.
func (f *fields) reject(name, format string, args ...any) {
	if f.first == nil {
		f.first = badRequest(name, name+": "+format, args...)
	}
}

// integer reads an integer in [low, high].
func (f *fields) integer(name string, absent, low, high int64) int64 {
	switch v := f.get(name).(type) {
	case nil:
		return absent
	case int64:
		if v >= low && v <= high {
			return v
		}
	}
	f.reject(name, "want an integer from %d to %d", low, high)
	return absent
}

// number reads a number in [low, high].
func (f *fields) number(name string, absent, low, high float64) float64 {
	x := math.NaN()
	switch v := f.get(name).(type) {
	case nil:
		return absent
	case int64:
		x = float64(v)
	case float64:
		x = v
	}
	if x >= low && x <= high {
		return x
	}
	f.reject(name, "want a number from %g to %g", low, high)
	return absent
}

// boolean reads true or false; false if absent.
func (f *fields) boolean(name string) bool {
	switch v := f.get(name).(type) {
	case nil:
		return false
	case bool:
		return v
	}
	f.reject(name, "want true or false")
	return false
}

// strings reads a list of at most so many strings of at most so many bytes; a single string is a list of one.
func (f *fields) strings(name string, most, bytes int) []string {
	list := f.stringList(name)
	if len(list) > most || slices.ContainsFunc(list, func(s string) bool { return len(s) > bytes }) {
		f.reject(name, "want at most %d strings of at most %d bytes", most, bytes)
		return nil
	}
	return list
}

func (f *fields) stringList(name string) (list []string) {
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
	f.reject(name, "want a string or a list of strings")
	return nil
}

// tokenIDs converts v, the value of a field or an element of it, to ids of a vocabulary of vocab tokens.
func (f *fields) tokenIDs(name string, v any, vocab int) []int32 {
	list, ok := v.([]any)
	ids := make([]int32, 0, len(list))
	for _, x := range list {
		if id, ok := x.(int64); ok && id >= 0 && id <= math.MaxInt32 {
			ids = append(ids, int32(id))
		}
	}
	if !ok || len(ids) != len(list) {
		f.reject(name, "want a list of token ids")
	}
	for _, id := range ids {
		if int(id) >= vocab {
			f.reject(name, "token %d: the vocabulary has %d tokens", id, vocab)
		}
	}
	return ids
}

// allow rejects a field, with this reason, unless its value is absent or one of values.
func (f *fields) allow(name, reason string, values ...any) {
	if v := f.get(name); v != nil && !slices.ContainsFunc(values, func(x any) bool { return ordered.Equal(v, x) }) {
		f.reject(name, "%s", reason)
	}
}

// ignore accepts fields that change no response.
func (f *fields) ignore(names ...string) {
	for _, n := range names {
		f.known[n] = true
	}
}

// err returns an error for a field that no method has read, otherwise the first error. An unknown field comes first
// because it may be the misspelled name of one that is missed.
func (f *fields) err() error {
	for _, k := range f.object.Keys() {
		if name, _ := k.(string); !f.known[name] {
			return badRequest(name, "%q: unknown field", name)
		}
	}
	if f.first != nil {
		return f.first
	}
	return nil
}

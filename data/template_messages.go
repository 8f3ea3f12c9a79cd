package data

import (
	"context"
	"regexp"
	"time"

	"lockstep/data/jinja"
	"lockstep/data/ordered"
)

// takesTexts is how a template says that arguments of calls may be a text.
var takesTexts = regexp.MustCompile(`arguments['"]?\]?\s+is\s+(not\s+)?string`)

// takesNull is how a template says that content may be null.
var takesNull = regexp.MustCompile(`content['"]?\]?\s+is\s+(not\s+)?none`)

// messagesAs are the forms in which a template may want messages, the likeliest first. Arguments of calls are an
// object, as templates print them item by item or as JSON; a text, as OpenAI's interface has them, where the template
// asks which of the two they are, or fails otherwise. Content that is null is an empty text, which others would print
// as "None", but for templates that ask for it.
func (t *Template) messagesAs(given []any) (forms [][]any) {
	given, calls, empty := withoutNull(given)
	if !calls {
		return [][]any{given}
	}
	objects, texts := withArguments(given, asObject), withArguments(given, asText)
	forms = [][]any{objects, texts}
	if t.matches(takesTexts) {
		forms = [][]any{given, objects, texts}
	}
	if !empty {
		return forms
	}
	var filled [][]any
	for _, form := range forms {
		filled = append(filled, withContent(form))
	}
	if t.matches(takesNull) {
		return append(forms, filled...)
	}
	return append(filled, forms...)
}

// matches tells whether a variant of the template has what r finds.
func (t *Template) matches(r *regexp.Regexp) bool {
	for _, source := range t.source {
		if r.MatchString(source) {
			return true
		}
	}
	return false
}

// withoutNull leaves out tool_calls that are null or none. calls tells whether there are others, and empty whether they
// stand in a message without content.
func withoutNull(messages []any) (list []any, calls, empty bool) {
	list = make([]any, len(messages))
	for i, x := range messages {
		m := x.(*ordered.Dict)
		v, has := m.Get("tool_calls")
		some, _ := v.([]any)
		if has && len(some) == 0 {
			m = changed(m, func(key, v any) (any, bool) { return v, key != "tool_calls" })
		}
		content, _ := m.Get("content")
		calls = calls || len(some) > 0
		empty = empty || len(some) > 0 && content == nil
		list[i] = m
	}
	return list, calls, empty
}

// withContent makes content that is null an empty text.
func withContent(messages []any) []any {
	list := make([]any, len(messages))
	for i, m := range messages {
		list[i] = changed(m.(*ordered.Dict), func(key, v any) (any, bool) {
			if key == "content" && v == nil {
				v = ""
			}
			return v, true
		})
	}
	return list
}

// withArguments changes the arguments of each call, which is {"function": {"arguments": ...}} or the function alone.
func withArguments(messages []any, as func(any) any) []any {
	var function func(key, v any) (any, bool)
	function = func(key, v any) (any, bool) {
		f, ok := v.(*ordered.Dict)
		switch {
		case key == "function" && ok:
			v = changed(f, function)
		case key == "arguments":
			v = as(v)
		}
		return v, true
	}
	list := make([]any, len(messages))
	for i, m := range messages {
		list[i] = changed(m.(*ordered.Dict), func(key, v any) (any, bool) {
			calls, ok := v.([]any)
			if key != "tool_calls" || !ok {
				return v, true
			}
			own := make([]any, len(calls))
			for i, call := range calls {
				if own[i] = call; isDict(call) {
					own[i] = changed(call.(*ordered.Dict), function)
				}
			}
			return own, true
		})
	}
	return list
}

func isDict(v any) bool { _, ok := v.(*ordered.Dict); return ok }

// changed is a copy of d with other values, or without some.
func changed(d *ordered.Dict, value func(key, v any) (any, bool)) *ordered.Dict {
	own := ordered.NewDict()
	for key, v := range d.All() {
		if v, keep := value(key, v); keep {
			own.Set(key, v)
		}
	}
	return own
}

// asObject is arguments as an object, where they are the JSON of one, or empty.
func asObject(v any) any {
	text, ok := v.(string)
	if !ok {
		return v
	}
	if text == "" {
		return ordered.NewDict()
	}
	if object, err := ordered.Decode([]byte(text)); err == nil && isDict(object) {
		return object
	}
	return v
}

// asText is arguments as JSON.
func asText(v any) any {
	if !isDict(v) {
		return v
	}
	res, err := toJSON.Render(context.Background(), map[string]any{"v": v}, time.Time{})
	if err != nil {
		return v // too large for a template: the rendering says so
	}
	return res.Text
}

// toJSON writes a value as templates do.
var toJSON = func() *jinja.Template {
	t, err := jinja.Parse("{{ v | tojson }}")
	if err != nil {
		panic(err) // it is ours
	}
	return t
}()

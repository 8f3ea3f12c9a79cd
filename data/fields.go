package data

import (
	"fmt"
	"slices"

	"lockstep/data/ordered"
)

// elsewhere are fields of a line that mean something to other programs, and what says the same here. A line that has
// one which nothing reads is refused, for it would mean less than it says.
var elsewhere = map[string]string{
	"weight":          "give weight 0 or 1 to assistant messages, or weights to tokens next to ids",
	"weights":         "token weights need ids",
	"labels":          "token labels need ids",
	"loss_mask":       "a token loss mask needs ids",
	"label":           "labels of answers (KTO) are not supported, give pairs as chosen and rejected",
	"margin":          "margins of preferences are not supported",
	"images":          textAlone,
	"image":           textAlone,
	"videos":          textAlone,
	"video":           textAlone,
	"audio":           textAlone,
	"audios":          textAlone,
	"functions":       "give tools",
	"function_call":   "give tools",
	"system":          "give it as a message of the role system",
	"documents":       "chat templates are given none, write them into a message",
	"chat_template":   "the template comes from the model's folder",
	"input_ids":       "give ids",
	"target_tokens":   "give labels, aligned with ids",
	"attention_mask":  "give ids without padding",
	"position_ids":    "positions count from 0",
	"train_on_input":  "give loss_mask next to ids",
	"train_on_inputs": "give loss_mask next to ids",
}

// elsewhereInMessages are the same of messages.
var elsewhereInMessages = map[string]string{
	"weights":       "token weights need ids",
	"loss":          sayWeight,
	"loss_mask":     sayWeight,
	"mask":          sayWeight,
	"masked":        sayWeight,
	"train":         sayWeight,
	"trainable":     sayWeight,
	"training":      sayWeight,
	"train_detail":  sayWeight,
	"images":        textAlone,
	"image":         textAlone,
	"videos":        textAlone,
	"video":         textAlone,
	"audio":         textAlone,
	"audios":        textAlone,
	"function_call": "give tool_calls",
}

const (
	textAlone = "only text is supported"
	sayWeight = "give weight 0 or 1"
)

// fields checks the fields of a file's lines. Each is read, refused, or named once in Ignored.
type fields struct {
	Ignored []string // "FILE:LINE: field X is ignored", the first line of each

	name     string
	template *Template
	prompts  []string // fields with messages of a prompt, which get no labels
	passed   bool     // fields that are not read here are passed to the reward program
	seen     map[string]bool
}

func newFields(name string, o Options, prompts ...string) *fields {
	return &fields{name: name, template: o.Template, prompts: prompts, passed: o.Judged, seen: map[string]bool{}}
}

// read checks line n, counted from 0, whose kind knows some fields.
func (f *fields) read(n int, d *ordered.Dict, known ...string) error {
	for _, k := range d.Keys() {
		key := k.(string) // JSON's are
		v, _ := d.Get(key)
		switch {
		case v == nil:
		case slices.Contains(known, key):
			if err := f.messages(n, key, v); err != nil {
				return err
			}
		case f.passed && elsewhere[key] != textAlone:
		case elsewhere[key] != "":
			return fmt.Errorf("%s is not supported here, %s", key, elsewhere[key])
		default:
			f.ignore(n, key)
		}
	}
	return nil
}

func (f *fields) ignore(n int, key string) {
	if !f.seen[key] {
		f.seen[key] = true
		f.Ignored = append(f.Ignored, Shown(fmt.Sprintf("%s:%d: field %.80s is ignored", f.name, n+1, key)))
	}
}

// messages checks the fields of a message or of a list of messages. A value of another kind is refused by its reader.
func (f *fields) messages(n int, key string, v any) error {
	if d, ok := v.(*ordered.Dict); ok {
		if key == "input" { // of OpenAI's preferences
			return f.read(n, d, "messages", "tools", "chat_template_kwargs", "parallel_tool_calls")
		}
		v = []any{d}
	}
	list, _ := v.([]any)
	for i, x := range list {
		m, ok := x.(*ordered.Dict)
		if !ok {
			continue
		}
		if _, ok := m.Get("role"); !ok {
			continue
		}
		if err := f.message(n, m, slices.Contains(f.prompts, key)); err != nil {
			return fmt.Errorf("%s[%d]: %w", key, i, err)
		}
	}
	return nil
}

// messageFields are those of OpenAI's messages and of reasoning models. The template uses those that it knows.
var messageFields = []string{"role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content", "reasoning",
	"thinking"}

func (f *fields) message(n int, m *ordered.Dict, prompt bool) error {
	for _, k := range m.Keys() {
		key := k.(string)
		v, _ := m.Get(key)
		switch {
		case v == nil || slices.Contains(messageFields, key):
		case key == "weight":
			if err := checkWeight(m, v, prompt); err != nil {
				return err
			}
		case elsewhereInMessages[key] != "":
			return fmt.Errorf("%s is not supported here, %s", key, elsewhereInMessages[key])
		case f.template == nil || !f.template.Mentions(key):
			f.ignore(n, "messages."+key)
		}
	}
	return nil
}

// checkWeight accepts the weight of a message if it is 0 or 1, as in OpenAI's fine-tuning, and 1 only for messages with
// labels.
func checkWeight(m *ordered.Dict, v any, prompt bool) error {
	zero, one := ordered.Equal(v, int64(0)), ordered.Equal(v, int64(1))
	role, _ := m.Get("role")
	switch {
	case !zero && !one:
		return fmt.Errorf("the weight of a message is 0 or 1, token weights need ids")
	case one && prompt:
		return fmt.Errorf("the weight of a message of the prompt is 1, but a prompt is not learned, remove it")
	case one && role != "assistant":
		return fmt.Errorf("the weight of a message of the role %v is 1, but assistant messages alone are learned, "+
			"remove it", role)
	}
	return nil
}

// muted reports whether a message's weight is 0: it is part of the context and has no labels.
func muted(message any) bool {
	v, ok := message.(*ordered.Dict).Get("weight")
	return ok && v != nil && ordered.Equal(v, int64(0))
}

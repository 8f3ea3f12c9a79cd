package data

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"lockstep/data/atomicfile"
	"lockstep/data/jinja"
	"lockstep/data/ordered"
)

// Template renders conversations as a model family writes them, by the Jinja template that came with the checkpoint.
type Template struct {
	name   string                     // in errors: the file
	source map[string]string          // by variant: "default" and others, such as "tool_use"
	parsed map[string]*jinja.Template // of the same variants
	tokens map[string]any             // bos_token, eos_token, ...
}

// ChatML is the template of models that are built from nothing: <|im_start|>ROLE, a newline, the content and
// <|im_end|>.
//
//go:embed template_chatml.jinja
var ChatML string

// savedChatML is [ChatML] as it is saved with a model: the same text, with {% generation %} around what the assistant
// says, so that TRL's assistant_only_loss learns the tokens that are learned here.
//
//go:embed template_chatml_saved.jinja
var savedChatML string

// DefaultTemplate renders [ChatML].
func DefaultTemplate() *Template {
	t, err := NewTemplate("ChatML", ChatML, nil)
	if err != nil {
		panic(err) // it is ours
	}
	return t
}

// NewTemplate parses one template; tokens are the variables bos_token, eos_token and the like. name is for errors.
func NewTemplate(name, source string, tokens map[string]string) (*Template, error) {
	t := &Template{name: name, tokens: map[string]any{}}
	for k, v := range tokens {
		t.tokens[k] = v
	}
	return t, t.parse(map[string]string{"default": source})
}

func (t *Template) parse(sources map[string]string) error {
	t.source, t.parsed = sources, map[string]*jinja.Template{}
	for variant, source := range sources {
		p, err := jinja.Parse(source)
		if err != nil {
			return fmt.Errorf("%s: chat template %q: %w", t.name, variant, err)
		}
		t.parsed[variant] = p
	}
	return nil
}

// LoadTemplate reads the template of a checkpoint folder: chat_template.jinja, else chat_template in
// tokenizer_config.json, which is a string or a list of named templates. Special tokens come from
// tokenizer_config.json. Without any template the error is [ErrNoTemplate].
func LoadTemplate(dir string) (*Template, error) {
	path := filepath.Join(dir, "tokenizer_config.json")
	t := &Template{name: path, tokens: map[string]any{}}
	sources := map[string]string{}
	text, err := atomicfile.Read(path)
	switch {
	case err == nil:
		if sources, err = t.readConfig(text); err != nil {
			return nil, err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("chat template: %w", err)
	}
	file := filepath.Join(dir, "chat_template.jinja")
	if text, err := atomicfile.Read(file); err == nil {
		t.name, sources = file, map[string]string{"default": string(text)}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("chat template: %w", err)
	}
	if len(sources) == 0 {
		return nil, fmt.Errorf("%s: %w", dir, ErrNoTemplate)
	}
	return t, t.parse(sources)
}

// ErrNoTemplate says that a checkpoint has no chat template; [DefaultTemplate] may do.
var ErrNoTemplate = errors.New("has neither chat_template.jinja nor chat_template in tokenizer_config.json, add one")

// readConfig reads the special tokens and templates of tokenizer_config.json.
func (t *Template) readConfig(text []byte) (map[string]string, error) {
	var config map[string]json.RawMessage
	if err := json.Unmarshal(text, &config); err != nil {
		return nil, fmt.Errorf("%s: %w", t.name, err)
	}
	for key, raw := range config {
		var token struct{ Content *string }
		var plain string
		switch {
		case !strings.HasSuffix(key, "_token"):
		case json.Unmarshal(raw, &plain) == nil && string(raw) != "null":
			t.tokens[key] = plain
		case json.Unmarshal(raw, &token) == nil && token.Content != nil:
			t.tokens[key] = *token.Content
		}
	}
	raw, ok := config["chat_template"]
	if !ok || string(raw) == "null" {
		return nil, nil
	}
	return readTemplates(t.name, raw)
}

func readTemplates(file string, raw json.RawMessage) (map[string]string, error) {
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return map[string]string{"default": one}, nil
	}
	var list []struct{ Name, Template string }
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("%s: chat_template is neither a string nor a list of named templates", file)
	}
	sources := map[string]string{}
	for _, e := range list {
		sources[e.Name] = e.Template
	}
	if _, ok := sources["default"]; !ok {
		return nil, fmt.Errorf(`%s: chat_template has no template named "default"`, file)
	}
	return sources, nil
}

// Source is the text of the default template, for a folder that is written.
func (t *Template) Source() string { return t.source["default"] }

// Mentions tells whether a text stands anywhere in the templates.
func (t *Template) Mentions(text string) bool {
	for _, source := range t.source {
		if strings.Contains(source, text) {
			return true
		}
	}
	return false
}

// EndOfTurn is the checkpoint's eos_token, "" if it names none.
func (t *Template) EndOfTurn() string {
	s, _ := t.tokens["eos_token"].(string)
	return s
}

// Chat is what a template renders. Values are those of package jinja: ordered dicts, lists, strings.
type Chat struct {
	Messages []any         // dicts with role, content and what else the template knows
	Tools    any           // list of tools, or nil
	Kwargs   *ordered.Dict // further variables, such as enable_thinking; may be nil
}

// Message is a turn of a conversation.
func Message(role, content string) *ordered.Dict {
	m := ordered.NewDict()
	m.Set("role", role)
	m.Set("content", content)
	return m
}

// Render is the text of a conversation; with prompt it goes on to where the assistant's next turn starts. now is the
// time for strftime_now; with the zero time a template that calls it is an error. Rendering ends where ctx does.
func (t *Template) Render(ctx context.Context, c Chat, prompt bool, now time.Time) (string, error) {
	res, err := t.render(ctx, c, prompt, now)
	return res.Text, err
}

// render tries the forms of messages that the template may want. The error is that of the first.
func (t *Template) render(ctx context.Context, c Chat, prompt bool, now time.Time) (jinja.Result, error) {
	var first error
	for _, c.Messages = range t.messagesAs(c.Messages) {
		res, err := t.renderAs(ctx, c, prompt, now)
		if err == nil {
			return res, nil
		}
		if first == nil {
			first = err
		}
		if ctx.Err() != nil {
			break
		}
	}
	return jinja.Result{}, first
}

// renderAs renders messages as they are.
func (t *Template) renderAs(ctx context.Context, c Chat, prompt bool, now time.Time) (jinja.Result, error) {
	vars := map[string]any{}
	for k, v := range t.tokens {
		vars[k] = v
	}
	if c.Kwargs != nil {
		for _, k := range c.Kwargs.Keys() {
			vars[k.(string)], _ = c.Kwargs.Get(k) // JSON keys are strings
		}
	}
	vars["messages"], vars["tools"], vars["documents"], vars["add_generation_prompt"] = c.Messages, c.Tools, nil, prompt
	p := t.parsed["default"]
	if with, ok := t.parsed["tool_use"]; ok && c.Tools != nil {
		p = with
	}
	res, err := p.Render(ctx, vars, now)
	if err != nil {
		return res, fmt.Errorf("%s: %w", filepath.Base(t.name), err) // clients read it too
	}
	return res, nil
}

package data

import (
	"fmt"
	"strings"

	"lockstep/data/ordered"
)

// roles of messages, as OpenAI names them.
var roles = map[any]bool{"system": true, "developer": true, "user": true, "assistant": true, "tool": true}

// readChat takes tools and chat_template_kwargs from a line.
func readChat(d *ordered.Dict, messages []any) (Chat, error) {
	c := Chat{Messages: messages}
	if tools, ok := d.Get("tools"); ok && tools != nil {
		list, ok := tools.([]any)
		if !ok {
			return c, fmt.Errorf("tools is not a list, give a list of objects")
		}
		c.Tools = list
	}
	if v, ok := d.Get("chat_template_kwargs"); ok && v != nil {
		if c.Kwargs, ok = v.(*ordered.Dict); !ok {
			return c, fmt.Errorf("chat_template_kwargs is not an object, give variables of the chat template by name")
		}
	}
	return c, nil
}

// readMessages checks a list of messages and makes content given in text parts one string. Other fields (tool_calls,
// reasoning_content, name, ...) stay for the template as they are.
func readMessages(key string, v any) ([]any, error) {
	list, ok := v.([]any)
	if !ok || len(list) == 0 {
		return nil, fmt.Errorf(`%s is not a list of messages, give [{"role": ..., "content": ...}, ...]`, key)
	}
	for i, x := range list {
		m, ok := x.(*ordered.Dict)
		if !ok {
			return nil, fmt.Errorf(`%s[%d] is not an object, give {"role": ..., "content": ...}`, key, i)
		}
		if err := readMessage(m); err != nil {
			return nil, fmt.Errorf("%s[%d]: %w", key, i, err)
		}
	}
	return list, nil
}

func readMessage(m *ordered.Dict) error {
	if role, _ := m.Get("role"); !known(role) {
		return fmt.Errorf("the role is %v, want system, developer, user, assistant or tool", describe(role))
	}
	if calls, ok := m.Get("tool_calls"); ok && calls != nil {
		if _, ok := calls.([]any); !ok {
			return fmt.Errorf("tool_calls is not a list, give a list of objects")
		}
	}
	switch content, _ := m.Get("content"); c := content.(type) {
	case string:
	case []any:
		text, err := joinParts(c)
		if err != nil {
			return err
		}
		m.Set("content", text)
	case nil:
		if calls, _ := m.Get("tool_calls"); calls == nil {
			return fmt.Errorf("there is neither content nor tool_calls, add one")
		}
	default:
		return fmt.Errorf("the content is neither a string nor a list of text parts, make it one")
	}
	return nil
}

func known(role any) bool {
	s, ok := role.(string)
	return ok && roles[s]
}

// describe names a value in an error.
func describe(v any) string {
	if s, ok := v.(string); ok {
		return fmt.Sprintf("%.40q", s)
	}
	return "missing or not a string"
}

// joinParts joins [{"type": "text", "text": ...}, ...].
func joinParts(parts []any) (string, error) {
	var b strings.Builder
	for i, x := range parts {
		p, ok := x.(*ordered.Dict)
		if !ok {
			return "", fmt.Errorf(`content[%d] is not an object, give {"type": "text", "text": ...}`, i)
		}
		kind, _ := p.Get("type")
		text, _ := p.Get("text")
		s, ok := text.(string)
		if kind != "text" || !ok {
			return "", fmt.Errorf("content[%d] is not a text part: only text is supported, leave images and other "+
				"parts out", i)
		}
		b.WriteString(s)
	}
	return b.String(), nil
}

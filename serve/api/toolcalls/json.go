package toolcalls

import (
	"encoding/json"
	"strings"
)

// The marks of formats whose arguments are JSON.
const (
	toolCallBegin = "<tool_call>"
	toolCallEnd   = "</tool_call>"

	kimiBegin     = "<|tool_calls_section_begin|>"
	kimiEnd       = "<|tool_calls_section_end|>"
	kimiCall      = "<|tool_call_begin|>"
	kimiArguments = "<|tool_call_argument_begin|>"
	kimiCallEnd   = "<|tool_call_end|>"

	deepseekBegin   = "<｜tool▁calls▁begin｜>"
	deepseekEnd     = "<｜tool▁calls▁end｜>"
	deepseekCall    = "<｜tool▁call▁begin｜>"
	deepseekSep     = "<｜tool▁sep｜>"
	deepseekCallEnd = "<｜tool▁call▁end｜>"

	pythonTag = "<|python_tag|>"
)

// callOf reads {"name": text, "arguments": object}. The arguments may be called parameters, or be a text that has the
// object.
func callOf(raw json.RawMessage) (Call, bool) {
	var x struct {
		Name                  string
		Arguments, Parameters json.RawMessage
	}
	if json.Unmarshal(raw, &x) != nil || x.Name == "" {
		return Call{}, false
	}
	given := x.Arguments
	if given == nil {
		given = x.Parameters
	}
	var text string
	if json.Unmarshal(given, &text) == nil && text != "" {
		given = json.RawMessage(text)
	}
	call := Call{Name: x.Name, Arguments: string(given)}
	switch {
	case given == nil, string(given) == "null":
		call.Arguments = "{}"
	case given[0] != '{' || !json.Valid(given):
		return Call{}, false
	}
	return call, true
}

// matchHermes reads <tool_call>{"name": ..., "arguments": {...}}</tool_call>.
func matchHermes(c *cursor, _ Tools) ([]Call, bool) {
	if !c.literal(toolCallBegin) {
		return nil, false
	}
	c.space()
	raw, ok := c.object()
	if !ok {
		return nil, false
	}
	call, ok := callOf(raw)
	c.space()
	return []Call{call}, ok && c.closed(toolCallEnd)
}

// matchLlama reads {"name": ..., "parameters": {...}}, also behind <|python_tag|>, and behind the semicolon that
// divides several.
func matchLlama(c *cursor, _ Tools) ([]Call, bool) {
	c.space()
	if c.literal(";") {
		c.space()
	}
	if c.literal(pythonTag) {
		c.space()
	}
	raw, ok := c.object()
	if !ok {
		return nil, false
	}
	var has map[string]json.RawMessage
	if json.Unmarshal(raw, &has) != nil || has["parameters"] == nil && has["arguments"] == nil {
		return nil, false
	}
	call, ok := callOf(raw)
	return []Call{call}, ok
}

// matchKimi reads a section of calls functions.NAME:INDEX, which is the call's id too.
func matchKimi(c *cursor, _ Tools) ([]Call, bool) {
	return c.section(kimiBegin, kimiEnd, func() (Call, bool) {
		if !c.literal(kimiCall) {
			return Call{}, false
		}
		id, ok := c.until(kimiArguments)
		if !ok {
			return Call{}, false
		}
		c.space()
		raw, ok := c.object()
		if !ok {
			return Call{}, false
		}
		c.space()
		id = strings.TrimSpace(id)
		name := strings.TrimPrefix(id, "functions.")
		if i := strings.LastIndexByte(name, ':'); i >= 0 {
			name = name[:i]
		}
		return Call{ID: id, Name: name, Arguments: string(raw)}, c.literal(kimiCallEnd) && name != ""
	})
}

// matchDeepSeek reads a section of calls: NAME, a separator and JSON (V3.1), or "function", the separator, NAME and a
// fenced block of JSON (V3).
func matchDeepSeek(c *cursor, _ Tools) ([]Call, bool) {
	return c.section(deepseekBegin, deepseekEnd, func() (Call, bool) {
		if !c.literal(deepseekCall) {
			return Call{}, false
		}
		name, ok := c.until(deepseekSep)
		if !ok {
			return Call{}, false
		}
		c.space()
		raw, ok := c.object()
		if !ok && !c.short {
			name, raw, ok = c.fenced()
		}
		name = strings.TrimSpace(name)
		return Call{Name: name, Arguments: string(raw)}, ok && name != "" && c.literal(deepseekCallEnd)
	})
}

// fenced takes a name and a block of JSON.
func (c *cursor) fenced() (name string, raw json.RawMessage, ok bool) {
	if name, ok = c.name(); !ok {
		return name, nil, false
	}
	c.space()
	if !c.literal("```json") {
		return name, nil, false
	}
	c.space()
	if raw, ok = c.object(); !ok {
		return name, nil, false
	}
	c.space()
	return name, raw, c.literal("```")
}

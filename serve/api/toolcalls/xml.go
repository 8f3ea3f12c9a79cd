package toolcalls

import "strings"

// The marks of formats that write each argument by itself.
const (
	functionBegin  = "<function="
	functionEnd    = "</function>"
	parameterBegin = "<parameter="
	parameterEnd   = "</parameter>"

	keyBegin   = "<arg_key>"
	keyEnd     = "</arg_key>"
	valueBegin = "<arg_value>"
	valueEnd   = "</arg_value>"

	minimaxBegin   = "<minimax:tool_call>"
	minimaxEnd     = "</minimax:tool_call>"
	invokeBegin    = "<invoke name="
	invokeEnd      = "</invoke>"
	namedParameter = "<parameter name="
)

// matchQwenXML reads <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>. Models leave
// out the outer mark at times, or only its beginning.
func matchQwenXML(c *cursor, tools Tools) ([]Call, bool) {
	outer := c.literal(toolCallBegin)
	c.space()
	if !c.literal(functionBegin) {
		return nil, false
	}
	name, ok := c.until(">")
	if !ok || !plain(name) {
		return nil, false
	}
	args := tools.arguments(name)
	for c.space(); !c.literal(functionEnd); c.space() {
		if !c.literal(parameterBegin) {
			return nil, false
		}
		key, ok := c.until(">")
		if !ok {
			return nil, false
		}
		value, ok := c.value(parameterEnd, parameterBegin, functionEnd)
		if !ok {
			return nil, false
		}
		args.set(key, trimNewline(value))
	}
	end := c.at
	c.space()
	if !c.closed(toolCallEnd) {
		if outer {
			return nil, false
		}
		c.at = end
	}
	return []Call{{Name: name, Arguments: args.json()}}, true
}

// matchGLM reads <tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>.
func matchGLM(c *cursor, tools Tools) ([]Call, bool) {
	if !c.literal(toolCallBegin) {
		return nil, false
	}
	c.space()
	name, ok := c.name()
	if !ok {
		return nil, false
	}
	args := tools.arguments(name)
	for c.space(); !c.literal(toolCallEnd); c.space() {
		if !c.literal(keyBegin) {
			return nil, false
		}
		key, ok := c.until(keyEnd)
		if !ok {
			return nil, false
		}
		c.space()
		if !c.literal(valueBegin) {
			return nil, false
		}
		value, ok := c.value(valueEnd, keyBegin, toolCallEnd)
		if !ok {
			return nil, false
		}
		args.set(strings.TrimSpace(key), value)
	}
	return []Call{{Name: name, Arguments: args.json()}}, true
}

// matchMiniMax reads a section of <invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>.
func matchMiniMax(c *cursor, tools Tools) ([]Call, bool) {
	return c.section(minimaxBegin, minimaxEnd, func() (Call, bool) {
		if !c.literal(invokeBegin) {
			return Call{}, false
		}
		name, ok := c.until(">")
		if name = unquoted(name); !ok || !plain(name) {
			return Call{}, false
		}
		args := tools.arguments(name)
		for c.space(); !c.literal(invokeEnd); c.space() {
			if !c.literal(namedParameter) {
				return Call{}, false
			}
			key, ok := c.until(">")
			if !ok {
				return Call{}, false
			}
			value, ok := c.value(parameterEnd, namedParameter, invokeEnd)
			if !ok {
				return Call{}, false
			}
			args.set(unquoted(key), trimNewline(value))
		}
		return Call{Name: name, Arguments: args.json()}, true
	})
}

// plain tells whether a name is one: it has no marks and no blanks.
func plain(name string) bool { return name != "" && !strings.ContainsAny(name, "<>{}\"| \t\r\n") }

func unquoted(name string) string { return strings.Trim(strings.TrimSpace(name), `"'`) }

// trimNewline takes off the newline that templates put on either side of a value.
func trimNewline(s string) string { return strings.TrimSuffix(strings.TrimPrefix(s, "\n"), "\n") }

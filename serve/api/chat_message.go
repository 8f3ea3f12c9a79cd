package api

import (
	"fmt"
	"strings"

	"lockstep/data"
	"lockstep/serve/api/toolcalls"
)

// answerOptions says how the answer to a chat completion is read. Calls are looked for where the request has tools; for
// the model of another family they stay content. "none" does not keep the model from writing them: they are content.
func (s *Server) answerOptions(f *fields, prompt []int32) *toolcalls.Options {
	f.allow("tool_choice", `a call of a tool cannot be forced: give "auto", or "none"`, "none", "auto")
	tools, _ := f.get("tools").([]any)
	o := &toolcalls.Options{
		Format: s.tools, Tools: toolcalls.ReadTools(tools), Calls: len(tools) > 0 && f.get("tool_choice") != "none",
		First: !f.boolean("parallel_tool_calls") && f.get("parallel_tool_calls") != nil, Reasoning: s.options.Reasoning,
	}
	if tok := s.served.Tokenizer; tok != nil && tok.Template != nil {
		o.Thinking = thinking(tok, prompt)
	}
	return o
}

// thinking is what a prompt says of thinking. Templates may open it for the model.
func thinking(tok *data.ChatTokenizer, prompt []int32) toolcalls.Thinking {
	const tail = 32 // tokens, which have the mark and white space behind it
	end := tok.Decode(prompt[max(0, len(prompt)-tail):])
	switch {
	case strings.HasSuffix(strings.TrimRight(end, " \n"), "<think>"):
		return toolcalls.Thinks
	case tok.Template.Mentions("think>"):
		return toolcalls.MayThink
	}
	return toolcalls.NeverThinks
}

// chatMessage is a whole answer.
type chatMessage struct {
	Role      string     `json:"role"`
	Content   *string    `json:"content"` // null: it has calls alone
	Reasoning string     `json:"reasoning_content,omitempty"`
	Calls     []toolCall `json:"tool_calls,omitempty"`
}

// chatDelta is a part of one.
type chatDelta struct {
	Role      string     `json:"role,omitempty"`
	Content   *string    `json:"content,omitempty"`
	Reasoning string     `json:"reasoning_content,omitempty"`
	Calls     []toolCall `json:"tool_calls,omitempty"`
}

type toolCall struct {
	Index    *int         `json:"index,omitempty"` // in streams
	ID       string       `json:"id,omitempty"`
	Type     string       `json:"type,omitempty"`
	Function functionCall `json:"function"`
}

type functionCall struct {
	Name      string `json:"name,omitempty"`
	Arguments string `json:"arguments"` // JSON
}

// newToolCall is call number i of a choice. Kimi's calls have ids, which its template reads again.
func newToolCall(h responseHeader, c *choice, i int, call toolcalls.Call) toolCall {
	id := call.ID
	if id == "" {
		id = fmt.Sprintf("call_%s_%d_%d", strings.TrimPrefix(h.ID, "chatcmpl-"), c.index, i)
	}
	return toolCall{ID: id, Type: "function", Function: functionCall{call.Name, call.Arguments}}
}

func newChatMessage(h responseHeader, c *choice, answer toolcalls.Delta) *chatMessage {
	m := &chatMessage{Role: "assistant", Reasoning: answer.Reasoning}
	for i, call := range answer.Calls {
		m.Calls = append(m.Calls, newToolCall(h, c, i, call))
	}
	if answer.Content != "" || m.Calls == nil {
		m.Content = &answer.Content
	}
	return m
}

// newChatDeltas are what is said with the names of calls, and their arguments.
func newChatDeltas(h responseHeader, c *choice, answer toolcalls.Delta) []chatDelta {
	said := chatDelta{Reasoning: answer.Reasoning}
	if answer.Content != "" || answer.Reasoning == "" && answer.Calls == nil {
		said.Content = &answer.Content
	}
	var arguments chatDelta
	for _, call := range answer.Calls {
		i := c.called
		c.called++
		named := newToolCall(h, c, i, call)
		arguments.Calls = append(arguments.Calls, toolCall{Index: &i, Function: functionCall{"", call.Arguments}})
		named.Index, named.Function.Arguments = &i, ""
		said.Calls = append(said.Calls, named)
	}
	if said.Calls == nil {
		return []chatDelta{said}
	}
	return []chatDelta{said, arguments}
}

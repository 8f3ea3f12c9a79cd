package data

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"lockstep/data/ordered"
)

// The token that ends an answer gets a label like the answer, also where the template makes it part of another message:
// the model stops by it. It is in one of three places.
//
//   - At the end of what the template writes for the answer: <|im_end|> (ChatML), <|eot_id|> (Llama 3), <|return|> or
//     <|call|> (gpt-oss), [e~[ (MiniMax). Where several follow each other (Phi: <|end|>, <|endoftext|>), generation
//     stops at
//     the first; what comes behind it is not learned.
//   - At the beginning of what follows: GLM's <|user|> and <|observation|> open the next message, and end the answer
//     before.
//   - Nowhere, behind the last answer of such a template. It is then what the template would write next: GLM's
//     <|user|>, or
//     <|observation|> behind a call of a tool.

// tokenised is the tokens and labels of a rendered conversation.
func (o Options) tokenised(part rendered, c Chat) (q sequence, err error) {
	open := -1 // where the tokens start that follow an answer without an end; -1: none
	missing, reply, closed, after := 0, "", "", ""
	for _, s := range part.segments {
		ids := o.Codec.Encode(s.text)
		if s.learn {
			if open >= 0 {
				missing++
			}
			reply, open = s.text, -1
			n, ended := o.answer(ids)
			q.add(ids[:n], true)
			if !ended {
				open = len(q.ids)
			}
			q.add(ids[n:], false)
			continue
		}
		q.add(ids, false)
		if open < 0 {
			continue
		}
		switch n, blank := o.opening(q.ids[open:]); {
		case n > 0:
			q.learn(open, open+n)
			open = -1
		case !blank:
			missing, closed, after, open = missing+1, reply, s.text, -1
		}
	}
	if open >= 0 {
		id, follows := o.ending(c, part.last)
		if id >= 0 {
			q.learn(open, len(q.ids))
			q.add([]int32{id}, true)
		} else {
			missing, closed, after = missing+1, reply, follows
		}
	}
	if missing > max(part.partial, 0) && !o.NoEnd {
		return q, o.noEnd(closed, after)
	}
	return q, nil
}

// answer is the number of tokens of an answer that get labels: up to the first of the end tokens at its end, between
// which there may be blanks. Without an end token all get labels.
func (o Options) answer(ids []int32) (n int, ended bool) {
	from := len(ids)
	for from > 0 && (o.ends(ids[from-1]) || o.blank(ids[from-1])) {
		from--
	}
	for i := from; i < len(ids); i++ {
		if o.ends(ids[i]) {
			return i + 1, true
		}
	}
	return len(ids), false
}

// opening is the number of tokens up to and including an end token that only blanks precede; 0: there is none. blank:
// all tokens are blanks.
func (o Options) opening(ids []int32) (n int, blank bool) {
	for i, id := range ids {
		switch {
		case o.ends(id):
			return i + 1, false
		case !o.blank(id):
			return 0, false
		}
	}
	return 0, true
}

// ends tells whether an id ends an answer.
func (o Options) ends(id int32) bool {
	if id == o.End {
		return id >= 0
	}
	for _, stop := range o.Stops {
		if id == stop {
			return true
		}
	}
	return false
}

func (o Options) blank(id int32) bool { return strings.TrimSpace(o.Codec.Decode([]int32{id})) == "" }

// ending is the end token with which the message after an answer begins, -1 if it begins with none, and the text of
// that beginning. It is found by rendering a conversation of two words, because a template may render the last answer
// differently from earlier ones.
func (o Options) ending(c Chat, answer int) (id int32, follows string) {
	role := followed(c.Messages, answer)
	reply, next := Message("assistant", "a"), Message(role, "b")
	if role == "tool" {
		reply.Set("tool_calls", []any{probeCall()})
		next.Set("tool_call_id", probeID)
	}
	probe := Chat{[]any{Message("user", "b"), reply}, c.Tools, c.Kwargs}
	before, err := o.Template.Render(context.Background(), probe, false, o.Now)
	if err != nil {
		return -1, "" // the template has its own rules for messages
	}
	probe.Messages = append(probe.Messages, next)
	after, err := o.Template.Render(context.Background(), probe, false, o.Now)
	if err != nil {
		return -1, ""
	}
	follows, ok := strings.CutPrefix(after, before)
	if !ok {
		return -1, ""
	}
	ids := o.Codec.Encode(follows)
	if n, _ := o.opening(ids); n > 0 {
		return ids[n-1], follows
	}
	return -1, follows
}

// probeID is the id of a tool call in the form that the strictest templates demand: nine letters and digits.
const probeID = "call00001"

func probeCall() *ordered.Dict {
	function, call := ordered.NewDict(), ordered.NewDict()
	function.Set("name", "f")
	function.Set("arguments", ordered.NewDict())
	call.Set("id", probeID)
	call.Set("type", "function")
	call.Set("function", function)
	return call
}

// followed is the role of the message after an answer: that of the conversation, or tool if the answer is a tool call.
func followed(messages []any, answer int) string {
	if answer+1 < len(messages) {
		if role, _ := messages[answer+1].(*ordered.Dict).Get("role"); role == "tool" {
			return "tool"
		}
		return "user"
	}
	if calls, _ := messages[answer].(*ordered.Dict).Get("tool_calls"); calls != nil && len(calls.([]any)) > 0 {
		return "tool"
	}
	return "user"
}

// noEnd is the error of an answer without an end token. It quotes the end of the answer and the text that follows.
func (o Options) noEnd(reply, after string) error {
	var ends []string
	for _, id := range Union([]int32{o.End}, o.Stops) {
		if id >= 0 {
			ends = append(ends, o.Codec.Decode([]int32{id}))
		}
	}
	what := "this model has no end-of-sequence token"
	if len(ends) > 0 {
		what = fmt.Sprintf("no answer ends with one of %q", ends)
	}
	if after != "" {
		what += fmt.Sprintf(", %.40q follows %.20q", after, lastRunes(reply, 20))
	}
	return fmt.Errorf("%s: %s: a model trained on this never stops; %s", o.Template.name, what, nameEnd)
}

// lastRunes is the end of a text, of n characters at most.
func lastRunes(text string, n int) string {
	runes := []rune(text)
	return string(runes[max(0, len(runes)-n):])
}

// errNoEnd is the error of completions, which are not rendered by a template.
var errNoEnd = errors.New("this model has no end-of-sequence token; " + nameEnd)

const nameEnd = "set eos_token_id in generation_config.json, or data.no_end = true"

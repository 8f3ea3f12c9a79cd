package data

import (
	"errors"
	"fmt"
	"io"

	"lockstep/data/atomicfile"
	"lockstep/data/ordered"
)

// LoadPreferences reads a file of one JSON object a line, each one of
//
//	{"prompt": text, "chosen": text, "rejected": text}
//	{"prompt": messages, "chosen": reply, "rejected": reply}
//	{"chosen": reply, "rejected": reply}
//	{"input": {"messages": messages}, "preferred_output": messages, "non_preferred_output": messages}
//	{"prompt_ids": [...], "chosen_ids": [...], "rejected_ids": [...]}
//
// with "tools" and "chat_template_kwargs" next to messages. A reply is a text, a message or messages. The key
// "messages" may stand for "prompt". Without a prompt, it is the messages with which both replies begin. The fourth
// form is OpenAI's. Messages of weight 0 and other fields are as with [LoadJSONL]. Texts and messages get the id that
// ends a turn; ids are taken as they are. Where "chosen" and "rejected" are conversations and "prompt" is a text, the
// text must be that of the last message that both begin with. Errors are "file:line: what, mend".
func LoadPreferences(path string, o Options) (*Preferences, error) {
	f, err := atomicfile.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readPreferences(path, f, o)
}

func readPreferences(name string, r io.Reader, o Options) (*Preferences, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.PairRows < 2 {
		return nil, fmt.Errorf("pairs of at most %d rows: want at least 2", o.PairRows)
	}
	var p Preferences
	f := newFields(name, o, "prompt", "messages", "input")
	err := eachLine(name, r, func(n int, _ []byte, d *ordered.Dict) error {
		q, err := o.preference(n, d, f)
		if err != nil {
			return err
		}
		return p.add(q, o)
	})
	if err != nil {
		return nil, err
	}
	if len(p.pairs) == 0 {
		return nil, fmt.Errorf("%s: no pair is left of %d, raise data.pack_rows", name, p.Dropped)
	}
	p.Ignored = f.Ignored
	return &p, nil
}

// preferenceKeys are the keys of each form of a line. A line has all keys of one form and none of another; only the
// prompt may be missing.
var preferenceKeys = [...]string{"prompt", "messages", "chosen", "rejected", "input", "preferred_output",
	"non_preferred_output", "prompt_ids", "chosen_ids", "rejected_ids"}

// preference reads line n.
func (o Options) preference(n int, d *ordered.Dict, f *fields) (pair, error) {
	found := ""
	for _, key := range preferenceKeys {
		if _, ok := d.Get(key); ok {
			found += key + " "
		}
	}
	if err := f.read(n, d, append(preferenceKeys[:], "tools", "chat_template_kwargs")...); err != nil {
		return pair{}, err
	}
	switch found {
	case "prompt_ids chosen_ids rejected_ids ":
		return o.idsPreference(d)
	case "input preferred_output non_preferred_output ":
		return o.openAIPreference(d)
	case "prompt chosen rejected ", "messages chosen rejected ", "chosen rejected ":
	default:
		return pair{}, errors.New("want chosen and rejected with prompt, messages or neither, or prompt_ids, " +
			"chosen_ids and rejected_ids, and nothing else")
	}
	prompt, isPrompt := d.Get("prompt")
	if messages, ok := d.Get("messages"); ok {
		return o.answered(d, "messages", messages)
	}
	c, _ := d.Get("chosen")
	if _, isList := c.([]any); isList {
		if _, isMessages := prompt.([]any); !isMessages {
			return o.conversations(d)
		}
	}
	if _, isText := prompt.(string); isPrompt && !isText {
		return o.answered(d, "prompt", prompt)
	}
	return o.texts(d, isPrompt)
}

// texts reads prompt, chosen and rejected that are texts.
func (o Options) texts(d *ordered.Dict, isPrompt bool) (q pair, err error) {
	chosen, err := Text(d, "chosen")
	if err != nil {
		return q, err
	}
	rejected, err := Text(d, "rejected")
	if err != nil {
		return q, err
	}
	var prompt string
	if isPrompt {
		prompt, err = Text(d, "prompt")
	} else {
		prompt, chosen, rejected, err = commonText(chosen, rejected)
	}
	switch {
	case err != nil:
		return q, err
	case prompt == "":
		return q, errors.New("the prompt is empty, say what chosen and rejected answer")
	}
	if q.chosen, err = o.continued(prompt, chosen); err != nil {
		return q, err
	}
	q.rejected, err = o.continued(prompt, rejected)
	return q, err
}

// answered reads chosen and rejected that answer messages.
func (o Options) answered(d *ordered.Dict, key string, messages any) (q pair, err error) {
	prompt, err := readMessages(key, messages)
	if err != nil {
		return q, err
	}
	chosen, err := readSaid(d, "chosen")
	if err != nil {
		return q, err
	}
	rejected, err := readSaid(d, "rejected")
	if err != nil {
		return q, err
	}
	return o.conversedPair(d, prompt, chosen, rejected)
}

// openAIPreference reads the form of OpenAI's preference fine-tuning, which has tools next to messages.
func (o Options) openAIPreference(d *ordered.Dict) (q pair, err error) {
	v, _ := d.Get("input")
	input, ok := v.(*ordered.Dict)
	if !ok {
		return q, errors.New(`input is not an object, give {"messages": [...]}`)
	}
	v, _ = input.Get("messages")
	prompt, err := readMessages("input.messages", v)
	if err != nil {
		return q, err
	}
	chosen, err := readSaid(d, "preferred_output")
	if err != nil {
		return q, err
	}
	rejected, err := readSaid(d, "non_preferred_output")
	if err != nil {
		return q, err
	}
	return o.conversedPair(input, prompt, chosen, rejected)
}

// readSaid reads a text, a message or messages.
func readSaid(d *ordered.Dict, key string) ([]any, error) {
	v, _ := d.Get(key)
	switch reply := v.(type) {
	case string:
		return []any{Message("assistant", reply)}, nil
	case *ordered.Dict:
		v = []any{reply}
	}
	return readMessages(key, v)
}

// conversedPair is a prompt with one continuation and with another; d has the tools.
func (o Options) conversedPair(d *ordered.Dict, prompt, chosen, rejected []any) (q pair, err error) {
	if q.chosen, err = o.side(d, "chosen", prompt, chosen); err != nil {
		return q, err
	}
	q.chat = true
	q.rejected, err = o.side(d, "rejected", prompt, rejected)
	return q, err
}

func (o Options) side(d *ordered.Dict, name string, prompt, reply []any) (sequence, error) {
	chat, err := readChat(d, append(prompt[:len(prompt):len(prompt)], reply...))
	if err != nil {
		return sequence{}, err
	}
	list, err := o.conversed(chat, len(prompt))
	switch {
	case err != nil:
		return sequence{}, fmt.Errorf("%s: %w", name, err)
	case len(list) > 1:
		return sequence{}, fmt.Errorf("%s: the chat template renders earlier turns differently from the last, "+
			"give just one assistant message", name)
	}
	return list[0], nil
}

// idsPreference reads tokens as they are.
func (o Options) idsPreference(d *ordered.Dict) (q pair, err error) {
	var ids [3][]int32
	for i, key := range [...]string{"prompt_ids", "chosen_ids", "rejected_ids"} {
		v, _ := d.Get(key)
		if ids[i], err = readInts(key, v); err != nil {
			return q, err
		}
		if len(ids[i]) == 0 {
			return q, fmt.Errorf("%s is empty, give at least one id", key)
		}
	}
	q.chosen.add(ids[0], false)
	q.chosen.add(ids[1], true)
	q.rejected.add(ids[0], false)
	q.rejected.add(ids[2], true)
	return q, nil
}

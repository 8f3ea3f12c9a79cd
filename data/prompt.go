package data

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"lockstep/data/atomicfile"
	"lockstep/data/ordered"
)

// EachLine calls visit with each object of a JSONL file, n counted from 0. Errors name the file and the line.
func EachLine(path string, visit func(n int, line *ordered.Dict) error) error {
	f, err := atomicfile.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return eachLine(path, f, func(n int, _ []byte, line *ordered.Dict) error { return visit(n, line) })
}

// eachLine also passes the text of each line, valid until the next call.
func eachLine(name string, r io.Reader, visit func(n int, text []byte, line *ordered.Dict) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 1<<16), maxLine)
	n := 0
	for ; lines.Scan(); n++ {
		d, err := object(lines.Bytes())
		if err == nil {
			err = visit(n, lines.Bytes(), d)
		}
		if err != nil {
			return fmt.Errorf("%s:%d: %w", name, n+1, err)
		}
	}
	if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		return fmt.Errorf("%s:%d: the line has more than %d MiB, shorten it", name, n+1, maxLine>>20)
	} else if err != nil {
		return fmt.Errorf("%s:%d: %w", name, n+1, err)
	}
	if n == 0 {
		return fmt.Errorf("%s:1: the file is empty, give one JSON object a line", name)
	}
	return nil
}

// object reads one line.
func object(text []byte) (*ordered.Dict, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, errors.New("the line is empty, remove it")
	}
	if err := CheckEncoding("line", text); err != nil {
		return nil, err
	}
	v, err := ordered.Decode(text)
	if err != nil {
		return nil, fmt.Errorf("the line is not JSON (%w), write one object a line", err)
	}
	d, ok := v.(*ordered.Dict)
	if !ok {
		return nil, errors.New("the line is not a JSON object, write one object a line")
	}
	return d, nil
}

// IDs is the line's "ids", at least so many, every one below vocab.
func IDs(line *ordered.Dict, least, vocab int) ([]int32, error) {
	v, ok := line.Get("ids")
	if !ok {
		return nil, errors.New(`no "ids", give {"ids": [...]}`)
	}
	return tokens("ids", v, least, vocab)
}

// tokens is a list of ids under a key, at least so many, every one below vocab.
func tokens(key string, v any, least, vocab int) ([]int32, error) {
	ids, err := readInts(key, v)
	if err != nil {
		return nil, err
	}
	if len(ids) < least {
		return nil, fmt.Errorf("%q has %d tokens, give at least %d", key, len(ids), least)
	}
	for i, id := range ids {
		if id < 0 || int(id) >= vocab {
			return nil, fmt.Errorf("%s[%d] is %d, the vocabulary has %d", key, i, id, vocab)
		}
	}
	return ids, nil
}

// Text is the line's string under key.
func Text(line *ordered.Dict, key string) (string, error) {
	v, _ := line.Get(key)
	s, ok := v.(string)
	if !ok {
		return "", fmt.Errorf("no text under %q, give {%q: \"...\"}", key, key)
	}
	return s, nil
}

// Prompt is the tokens that a line asks a model to continue: {"ids"}, {"prompt": text}, or {"messages"} (or messages
// under "prompt") rendered up to the assistant's turn, until ctx ends. tok may be nil where lines are ids.
func Prompt(ctx context.Context, line *ordered.Dict, tok *ChatTokenizer, vocab int, now time.Time) ([]int32, error) {
	o := Options{Vocab: vocab, Now: now}
	if tok != nil {
		o.Codec, o.Template = tok, tok.Template
	}
	ids, _, err := o.prompt(ctx, line)
	return ids, err
}

// prompt is a line's prompt in tokens and as text; text is "" where nothing can decode ids.
func (o Options) prompt(ctx context.Context, line *ordered.Dict) (ids []int32, text string, err error) {
	_, isIDs := line.Get("ids")
	v, isPrompt := line.Get("prompt")
	messages, isMessages := line.Get("messages")
	switch {
	case isIDs && !isPrompt && !isMessages:
		if ids, err = IDs(line, 1, o.Vocab); err == nil && o.Codec != nil {
			text = o.Codec.Decode(ids)
		}
		return ids, text, err
	case !isPrompt && !isMessages || isIDs || isPrompt && isMessages:
		return nil, "", errors.New("give exactly one of ids, prompt and messages")
	case o.Codec == nil:
		return nil, "", errNoTokenizer
	}
	if isPrompt {
		if _, list := v.([]any); !list {
			text, err = Text(line, "prompt")
			return o.Codec.Encode(text), text, err
		}
		messages = v
	}
	if text, err = o.render(ctx, line, messages); err != nil {
		return nil, "", err
	}
	return o.Codec.Encode(text), text, nil
}

// render writes messages as the model reads them, up to where its turn starts.
func (o Options) render(ctx context.Context, line *ordered.Dict, messages any) (string, error) {
	if o.Template == nil {
		return "", errors.New("the model folder has no chat template, give a prompt")
	}
	list, err := readMessages("messages", messages)
	if err != nil {
		return "", err
	}
	chat, err := readChat(line, list)
	if err != nil {
		return "", err
	}
	return o.Template.Render(ctx, chat, true, o.Now)
}

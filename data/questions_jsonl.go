package data

import (
	"bytes"
	"context"
	"io"

	"lockstep/data/atomicfile"
	"lockstep/data/ordered"
)

// LoadQuestions reads a file of one JSON object a line, each one of
//
//	{"prompt": text, or a list of messages}
//	{"messages": [...], "tools": [...], "chat_template_kwargs": {...}}
//	{"ids": [...]}
//
// with "answer": text, which rewards "exact" and "math" compare with, and any other keys, which rewards "command" and
// "http" are given (o.Judged); else they are refused or named in Ignored as with [LoadJSONL]. o.MaxRows bounds the
// prompts; o.End is not used. Errors are "file:line: what, mend".
func LoadQuestions(path string, o Options) (*Questions, error) {
	f, err := atomicfile.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readQuestions(path, f, o)
}

func readQuestions(name string, r io.Reader, o Options) (*Questions, error) {
	q, err := newQuestions(name, o)
	if err != nil {
		return nil, err
	}
	f := newFields(name, o, "prompt", "messages")
	err = eachLine(name, r, func(n int, text []byte, d *ordered.Dict) error {
		if err := f.read(n, d, "prompt", "messages", "tools", "chat_template_kwargs", "ids", "answer"); err != nil {
			return err
		}
		one := question{fields: bytes.Clone(bytes.TrimSpace(text)), source: n}
		if _, ok := d.Get("answer"); ok {
			answer, err := Text(d, "answer")
			if err != nil {
				return err
			}
			one.answer = &answer
		}
		var err error
		if one.ids, one.text, err = o.prompt(context.Background(), d); err != nil {
			return err
		}
		return q.add(one, o)
	})
	if err != nil {
		return nil, err
	}
	q.Ignored = f.Ignored
	return q.checked()
}

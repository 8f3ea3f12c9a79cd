package data

import (
	"errors"
	"io"

	"lockstep/data/atomicfile"
	"lockstep/data/ordered"
)

// maxLine bounds a line of a JSONL file, in bytes.
const maxLine = 16 << 20

// LoadJSONL reads a file of one JSON object a line, each one of
//
//	{"messages": [...], "tools": [...], "chat_template_kwargs": {...}}   a conversation, OpenAI style
//	{"prompt": ..., "completion": ...}                                   two texts, or two lists of messages
//	{"ids": [...], "labels": [...] or "loss_mask": [...]}                tokens; without either all are learned
//
// An assistant message of "weight" 0 is read and not learned, one of 1 is (OpenAI's fine-tuning). Next to ids
// "weights" are numbers of at least 0, as many as ids: weights[i] weighs the loss of token ids[i] (or labels[i])
// where row i-1 predicts it, as Tinker's weights stand next to the tokens before they are shifted to targets; so
// weights[0] counts nothing. A step's loss is the sum of weight * loss over the sum of weights (PyTorch's
// cross_entropy with reduction "mean"). Fields that mean something to other programs are refused, others are ignored
// and named in Ignored. Errors are "file:line: what, mend".
func LoadJSONL(path string, o Options) (*Dataset, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	f, err := atomicfile.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readJSONL(path, f, o)
}

func readJSONL(name string, r io.Reader, o Options) (*Dataset, error) {
	b := newBuilder(o, name)
	if err := eachLine(name, r, func(n int, _ []byte, d *ordered.Dict) error { return b.line(n, d) }); err != nil {
		return nil, err
	}
	return b.dataset(name)
}

// line adds the sample of line n.
func (b *builder) line(n int, d *ordered.Dict) error {
	_, messages := d.Get("messages")
	_, prompt := d.Get("prompt")
	_, completion := d.Get("completion")
	_, ids := d.Get("ids")
	switch {
	case messages && !prompt && !completion && !ids:
		if err := b.fields.read(n, d, "messages", "tools", "chat_template_kwargs"); err != nil {
			return err
		}
		return b.messagesLine(d)
	case prompt && completion && !messages && !ids:
		if err := b.fields.read(n, d, "prompt", "completion", "tools", "chat_template_kwargs"); err != nil {
			return err
		}
		return b.completionLine(d)
	case ids && !messages && !prompt && !completion:
		if err := b.fields.read(n, d, "ids", "labels", "loss_mask", "weights"); err != nil {
			return err
		}
		return b.idsLine(d)
	}
	return errors.New("give exactly one of messages, prompt with completion, and ids")
}

func (b *builder) messagesLine(d *ordered.Dict) error {
	v, _ := d.Get("messages")
	messages, err := readMessages("messages", v)
	if err != nil {
		return err
	}
	c, err := readChat(d, messages)
	if err != nil {
		return err
	}
	return b.chat(c, 0)
}

func (b *builder) completionLine(d *ordered.Dict) error {
	p, _ := d.Get("prompt")
	c, _ := d.Get("completion")
	prompt, isText := p.(string)
	completion, both := c.(string)
	if isText && both {
		return b.completion(prompt, completion)
	}
	if isText || both {
		return errors.New("one of prompt and completion is a text and the other not, make both texts or both lists " +
			"of messages")
	}
	before, err := readMessages("prompt", p)
	if err != nil {
		return err
	}
	after, err := readMessages("completion", c)
	if err != nil {
		return err
	}
	chat, err := readChat(d, append(before, after...))
	if err != nil {
		return err
	}
	return b.chat(chat, len(before))
}

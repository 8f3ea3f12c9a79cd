package data

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
)

// Questions are the prompts of reinforcement learning, in the order of their source, with what a [Rewarder] needs for
// the answers.
type Questions struct {
	list    []question
	name    string // of the source, in errors
	task    Task   // nil: a file
	split   Split
	Dropped int      // prompts left out because they were too long
	Tokens  int      // of all prompts
	Ignored []string // fields that nothing reads: "FILE:LINE: field X is ignored"
}

type question struct {
	ids    []int32
	text   string
	answer *string         // the right one; nil: not given
	fields json.RawMessage // the line; nil: a task
	source int             // line from 0, or instance of the task
}

// NewTaskQuestions makes a question of each instance of a split; its right answer is the task's worked solution.
func NewTaskQuestions(task Task, split Split, o Options) (*Questions, error) {
	q, err := newQuestions(string(split)+" split", o)
	if err != nil {
		return nil, err
	}
	if o.Codec == nil {
		return nil, fmt.Errorf("%s: %w", q.name, errNoTokenizer)
	}
	q.task, q.split = task, split
	for i := range task.Len(split) {
		e := task.Example(split, i)
		if err := q.add(question{ids: o.Codec.Encode(e.Prompt), text: e.Prompt, answer: &e.Completion, source: i},
			o); err != nil {
			return nil, fmt.Errorf("%s instance %d: %w", split, i, err)
		}
	}
	return q.checked()
}

func newQuestions(name string, o Options) (*Questions, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.Long == LongTruncate {
		return nil, fmt.Errorf("%s: long is %q, but a truncated prompt is another question: want %q or %q", name,
			o.Long, LongError, LongDrop)
	}
	return &Questions{name: name}, nil
}

// add appends a question, by the rule for long ones.
func (q *Questions) add(one question, o Options) error {
	if len(one.ids) == 0 {
		return fmt.Errorf("the prompt has no token, give at least one")
	}
	for i, id := range one.ids {
		if id < 0 || int(id) >= o.Vocab {
			return fmt.Errorf("token %d has id %d, the vocabulary has %d, use the model's own tokenizer", i, id,
				o.Vocab)
		}
	}
	if len(one.ids) > o.MaxRows {
		if o.Long == LongError {
			return fmt.Errorf("the prompt has %d tokens and %d fit with an answer, shorten it or drop long ones",
				len(one.ids), o.MaxRows)
		}
		q.Dropped++
		return nil
	}
	q.list = append(q.list, one)
	q.Tokens += len(one.ids)
	return nil
}

// checked returns the questions. No questions at all is an error.
func (q *Questions) checked() (*Questions, error) {
	if len(q.list) == 0 {
		return nil, fmt.Errorf("%s: no question is left, %d were too long", q.name, q.Dropped)
	}
	return q, nil
}

// Len is the number of questions.
func (q *Questions) Len() int { return len(q.list) }

// Prompt is the tokens of question i; not to be changed.
func (q *Questions) Prompt(i int) []int32 { return q.list[i].ids }

// Text is the prompt of question i after rendering; "" for ids without a tokenizer.
func (q *Questions) Text(i int) string { return q.list[i].text }

// Answer is what a model wrote to question i, as a [Rewarder] takes it.
func (q *Questions) Answer(i int, text string) Answer {
	one := q.list[i]
	a := Answer{Question: i, Prompt: one.text, Text: text, Fields: one.fields}
	if one.answer != nil {
		a.Want = *one.answer
	}
	return a
}

// Digest identifies the questions, their answers and their order.
func (q *Questions) Digest() uint64 {
	h := hashOf(uint64(len(q.list)))
	for _, one := range q.list {
		h = hashOf(h, uint64(len(one.ids)))
		for _, id := range one.ids {
			h = hashOf(h, uint64(uint32(id)))
		}
		rest := fnv.New64a()
		rest.Write(one.fields)
		if one.answer != nil {
			fmt.Fprintf(rest, "\x00%s", *one.answer)
		}
		h = hashOf(h, rest.Sum64())
	}
	return h
}

// answered reports the first question without a right answer.
func (q *Questions) answered() error {
	for _, one := range q.list {
		if one.answer == nil {
			return fmt.Errorf(`%s:%d: no text under "answer", give {"answer": "..."} or set the reward to a `+
				`command or an HTTP server`, q.name, one.source+1)
		}
	}
	return nil
}

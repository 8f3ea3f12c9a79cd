package data

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Sample is one training sequence of T tokens. Row t has the input IDs[t] and the label Targets[t]; -1 is no label.
// Rows after the last label are left out. Weights[t] > 0 is the weight of the loss of Targets[t].
type Sample struct {
	IDs     []int32   // [T]
	Targets []int32   // [T]
	Weights []float32 // [T]; nil: each target weighs 1
}

// Weight is the sum of the targets' weights, in their order.
func (s Sample) Weight() float64 {
	if s.Weights == nil {
		return float64(s.Learned())
	}
	sum := 0.0
	for i, t := range s.Targets {
		if t >= 0 {
			sum += float64(s.Weights[i])
		}
	}
	return sum
}

// Learned is the number of targets.
func (s Sample) Learned() (n int) {
	for _, t := range s.Targets {
		if t >= 0 {
			n++
		}
	}
	return n
}

// Codec turns text into token ids and back.
type Codec interface {
	Encode(text string) []int32
	Decode(ids []int32) string
}

// Long says what happens to a sample of more rows than fit.
type Long string

const (
	LongError    Long = "error"
	LongDrop     Long = "drop"
	LongTruncate Long = "truncate" // keep the beginning; dropped if no target is in it
)

// Options say how text becomes samples.
type Options struct {
	Codec    Codec     // nil: the data is token ids
	Template *Template // for messages
	End      int32     // id that ends a text, put behind completions; -1: none
	Stops    []int32   // further ids that end an answer of a chat
	NoEnd    bool      // learn what has no end, and never stops
	Judged   bool      // of questions: fields that nothing here reads go to a program that judges the answers
	Vocab    int       // ids of the model are below
	MaxRows  int       // of a sample
	PairRows int       // of the two samples of a preference, at least 2; other data does not use it
	Long     Long
	// told to templates that write the date; zero: they are refused, as samples would change by the day
	Now time.Time
}

// Validate reports values out of range and combinations that contradict each other.
func (o Options) Validate() error {
	switch {
	case o.Vocab < 1 || o.End < -1 || int(o.End) >= o.Vocab:
		return fmt.Errorf("the id that ends a turn is %d, the vocabulary has %d: want one of its ids, or -1", o.End,
			o.Vocab)
	case o.MaxRows < 1:
		return fmt.Errorf("samples of at most %d rows: want at least 1", o.MaxRows)
	case o.Long != LongError && o.Long != LongDrop && o.Long != LongTruncate:
		return fmt.Errorf("long is %q: want %q, %q or %q", o.Long, LongError, LongDrop, LongTruncate)
	}
	return nil
}

// Dataset is tokenised samples in the order of their source.
type Dataset struct {
	samples   []Sample
	Dropped   int // samples left out because they were too long
	Truncated int // samples cut
	Split     int // conversations that became one sample for each turn of the assistant
	Rows      int // of all samples
	Targets   int // of all samples

	Ignored []string // fields that nothing reads: "FILE:LINE: field X is ignored"

	chat int // place of the first sample of a conversation; -1: none
}

// Len is the number of samples.
func (d *Dataset) Len() int { return len(d.samples) }

// Sample is sample i; not to be changed.
func (d *Dataset) Sample(i int) Sample { return d.samples[i] }

// Digest identifies the samples and their order.
func (d *Dataset) Digest() uint64 {
	h := hashOf(uint64(len(d.samples)))
	for _, s := range d.samples {
		h = s.digest(h)
	}
	return h
}

func (s Sample) digest(h uint64) uint64 {
	h = hashOf(h, uint64(len(s.IDs)))
	for i, id := range s.IDs {
		h = hashOf(h, uint64(uint32(id))<<32|uint64(uint32(s.Targets[i])))
	}
	for _, w := range s.Weights {
		h = hashOf(h, uint64(math.Float32bits(w)))
	}
	return h
}

// builder fills a dataset.
type builder struct {
	Options
	d      Dataset
	fields *fields // of the file's lines
}

// newBuilder starts a dataset of the source that errors call name.
func newBuilder(o Options, name string) *builder {
	return &builder{Options: o, d: Dataset{chat: -1}, fields: newFields(name, o, "prompt")}
}

// noLabel marks a token that is not to be learned.
const noLabel = -1

// sequence is token ids with what is to be learned: labels[i] is the id that the model should write at place i, or
// noLabel.
type sequence struct {
	ids, labels []int32
	weights     []float32 // of labels; nil: 1 each
}

// add appends tokens, learned or not.
func (q *sequence) add(ids []int32, learn bool) {
	q.ids = append(q.ids, ids...)
	for _, id := range ids {
		if !learn {
			id = noLabel
		}
		q.labels = append(q.labels, id)
	}
}

// learn makes targets of the tokens [from, to).
func (q *sequence) learn(from, to int) { copy(q.labels[from:to], q.ids[from:to]) }

// rows is the number of rows of the sequence: up to the row that predicts its last label. No row predicts the first
// token.
func (q *sequence) rows() int {
	for i := len(q.labels) - 1; i > 0; i-- {
		if q.labels[i] != noLabel {
			return i
		}
	}
	return 0
}

// cut keeps what n rows need.
func (q *sequence) cut(n int) sequence {
	c := sequence{ids: q.ids[:n+1], labels: q.labels[:n+1]}
	if q.weights != nil {
		c.weights = q.weights[:n+1]
	}
	return c
}

// sample is the rows of a sequence.
func (q *sequence) sample() Sample {
	rows := q.rows()
	s := Sample{IDs: q.ids[:rows:rows], Targets: q.labels[1 : rows+1 : rows+1]}
	if q.weights != nil {
		s.Weights = q.weights[1 : rows+1 : rows+1]
	}
	return s
}

// add makes a sample of a sequence, by the rule for long ones.
func (b *builder) add(q sequence) error {
	if err := b.check(q); err != nil {
		return err
	}
	rows := q.rows()
	if rows > b.MaxRows {
		switch b.Long {
		case LongError:
			return fmt.Errorf(`the sample has %d tokens and %d fit, raise data.pack_rows or set data.long to "drop" `+
				`or "truncate"`, rows, b.MaxRows)
		case LongTruncate:
			q = q.cut(b.MaxRows)
			rows = q.rows()
		}
		if b.Long == LongDrop || rows == 0 {
			b.d.Dropped++
			return nil
		}
		b.d.Truncated++
	}
	b.append(q.sample())
	return nil
}

func (b *builder) append(s Sample) {
	b.d.samples = append(b.d.samples, s)
	b.d.Rows += len(s.IDs)
	b.d.Targets += s.Learned()
}

// check reports ids outside the vocabulary, and a sequence without labels.
func (o Options) check(q sequence) error {
	for i, id := range q.ids {
		if id < 0 || int(id) >= o.Vocab {
			return fmt.Errorf("token %d has id %d, the vocabulary has %d, use the model's own tokenizer", i, id,
				o.Vocab)
		}
		if l := q.labels[i]; l != noLabel && (l < 0 || int(l) >= o.Vocab) {
			return fmt.Errorf("label %d is %d, the vocabulary has %d, use -100 for ignored positions", i, l, o.Vocab)
		}
	}
	if q.rows() == 0 {
		return fmt.Errorf("there are no targets, give it a completion, an assistant message or labels")
	}
	return nil
}

// completion adds a sample of a prompt and its completion.
func (b *builder) completion(prompt, completion string) error {
	q, err := b.continued(prompt, completion)
	if err != nil {
		return err
	}
	return b.add(q)
}

// continued is the sequence of a prompt and its completion. The two are tokenised separately, as in serving, where the
// prompt is tokenised before the completion exists.
func (o Options) continued(prompt, completion string) (q sequence, err error) {
	if o.Codec == nil {
		return q, errNoTokenizer
	}
	q.add(o.Codec.Encode(prompt), false)
	ids := o.Codec.Encode(completion)
	switch {
	case len(ids) > 0 && o.ends(ids[len(ids)-1]):
	case o.End >= 0:
		ids = append(ids[:len(ids):len(ids)], o.End)
	case !o.NoEnd:
		return q, errNoEnd
	}
	q.add(ids, true)
	return q, nil
}

var errNoTokenizer = errors.New(`the model folder has no tokenizer.json, give token ids`)

// dataset returns what was added. No samples at all is an error.
func (b *builder) dataset(name string) (*Dataset, error) {
	if len(b.d.samples) == 0 {
		return nil, fmt.Errorf("%s: no sample is left of %d, raise data.pack_rows", name, b.d.Dropped)
	}
	b.d.Ignored = b.fields.Ignored
	return &b.d, nil
}

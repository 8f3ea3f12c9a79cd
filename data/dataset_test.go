package data

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"lockstep/data/tokenizer"
)

var _ Codec = (*tokenizer.Tokenizer)(nil)

// byteCodec has an id for each byte, and for the tokens of ChatML.
type byteCodec struct{}

const (
	imEnd   = 256
	imStart = 257
)

var byteSpecials = map[string]int32{"<|im_end|>": imEnd, "<|im_start|>": imStart}

func (byteCodec) Encode(text string) (ids []int32) {
next:
	for text != "" {
		for s, id := range byteSpecials {
			if strings.HasPrefix(text, s) {
				ids, text = append(ids, id), text[len(s):]
				continue next
			}
		}
		ids, text = append(ids, int32(text[0])), text[1:]
	}
	return ids
}

func (byteCodec) Decode(ids []int32) string {
	var b strings.Builder
	for _, id := range ids {
		switch id {
		case imEnd:
			b.WriteString("<|im_end|>")
		case imStart:
			b.WriteString("<|im_start|>")
		default:
			b.WriteByte(byte(id))
		}
	}
	return b.String()
}

func testOptions() Options {
	return Options{Codec: byteCodec{}, Template: DefaultTemplate(), End: imEnd, Vocab: 258, MaxRows: 1000,
		Long: LongError}
}

// show writes a sample's tokens with what is learned in brackets: "4 7=[11<|im_end|>]". The last target has no row of
// its own.
func show(t testing.TB, s Sample) string {
	t.Helper()
	if len(s.IDs) != len(s.Targets) || s.Targets[len(s.Targets)-1] == noLabel {
		t.Fatalf("sample %v", s)
	}
	var b strings.Builder
	b.WriteString(byteCodec{}.Decode(s.IDs[:1]))
	learning := false
	for i, target := range s.Targets {
		if learning != (target != noLabel) {
			b.WriteString(map[bool]string{false: "[", true: "]"}[learning])
			learning = !learning
		}
		id := target
		if i+1 < len(s.IDs) {
			if id = s.IDs[i+1]; target != noLabel && target != id {
				t.Fatalf("row %d should predict %d, not %d", i, id, target)
			}
		}
		b.WriteString(byteCodec{}.Decode([]int32{id}))
	}
	b.WriteString("]")
	return b.String()
}

func TestTaskDataset(t *testing.T) {
	c := small()
	c.Train, c.Test = 50, 7
	for split, n := range map[Split]int{Train: 50, Test: 7} {
		d, err := NewTaskDataset(c, split, testOptions())
		if err != nil || d.Len() != n {
			t.Fatalf("%v", err)
		}
		rows, targets := 0, 0
		for i := range n {
			e := c.Example(split, i)
			if got, want := show(t, d.Sample(i)), e.Prompt+"["+e.Completion+"<|im_end|>]"; got != want {
				t.Fatalf("%q, want %q", got, want)
			}
			rows += len(e.Prompt) + len(e.Completion)
			targets += len(e.Completion) + 1
		}
		if d.Rows != rows || d.Targets != targets {
			t.Fatalf("%d rows and %d targets, want %d and %d", d.Rows, d.Targets, rows, targets)
		}
	}
}

func TestDatasetLong(t *testing.T) {
	lines := `{"prompt": "aaaa", "completion": "bcd"}` + "\n" + `{"prompt": "a", "completion": "b"}` + "\n" +
		`{"prompt": "aaaaaaaaa", "completion": "b"}`
	o := testOptions()
	o.MaxRows = 7
	o.Long = LongDrop
	for _, k := range []struct {
		long               Long
		rows               int
		dropped, truncated int
		want               string
	}{
		{LongDrop, 7, 1, 0, "aaaa[bcd<|im_end|>] a[b<|im_end|>]"},
		{LongDrop, 6, 2, 0, "a[b<|im_end|>]"},
		{LongTruncate, 6, 1, 1, "aaaa[bcd] a[b<|im_end|>]"},
		{LongTruncate, 4, 1, 1, "aaaa[b] a[b<|im_end|>]"},
		{LongTruncate, 3, 2, 0, "a[b<|im_end|>]"},
	} {
		o.Long, o.MaxRows = k.long, k.rows
		d, err := readJSONL("f", strings.NewReader(lines), o)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for i := range d.Len() {
			got = append(got, show(t, d.Sample(i)))
		}
		if strings.Join(got, " ") != k.want || d.Dropped != k.dropped || d.Truncated != k.truncated {
			t.Errorf("%s at %d: %q, %d dropped, %d cut; want %q, %d, %d", k.long, k.rows, got, d.Dropped, d.Truncated,
				k.want, k.dropped, k.truncated)
		}
	}
	o.Long, o.MaxRows = LongError, 7
	wantError(t, "f:3: the sample has 10 tokens and 7 fit", func() error {
		_, err := readJSONL("f", strings.NewReader(lines), o)
		return err
	})
	o.Long, o.MaxRows = LongDrop, 1
	wantError(t, "f: no sample is left of 3", func() error {
		_, err := readJSONL("f", strings.NewReader(lines), o)
		return err
	})
}

func TestOptionsValidate(t *testing.T) {
	for want, change := range map[string]func(*Options){
		"vocabulary has 0":     func(o *Options) { o.Vocab = 0 },
		"ends a turn is 258":   func(o *Options) { o.End = 258 },
		"at most 0 rows":       func(o *Options) { o.MaxRows = 0 },
		`long is "whatever"`:   func(o *Options) { o.Long = "whatever" },
		"the vocabulary has 2": func(o *Options) { o.Vocab = 2 },
	} {
		o := testOptions()
		change(&o)
		wantError(t, want, o.Validate)
		wantError(t, want, func() error { _, err := NewTaskDataset(small(), Train, o); return err })
	}
}

func TestDigest(t *testing.T) {
	c := small()
	c.Train = 5
	seen := map[uint64]bool{}
	for seed := range uint64(4) {
		c.Seed = seed
		var first uint64
		for range 2 {
			d, err := NewTaskDataset(c, Train, testOptions())
			if err != nil {
				t.Fatal(err)
			}
			if first == 0 {
				first = d.Digest()
			} else if d.Digest() != first {
				t.Fatal("the digest changes")
			}
		}
		seen[first] = true
	}
	if len(seen) != 4 {
		t.Fatal("different datasets have one digest")
	}
}

// Without an end id nothing is appended, and one that is written is not doubled.
func TestCompletionEnd(t *testing.T) {
	o := testOptions()
	for _, k := range []struct {
		end              int32
		completion, want string
	}{{imEnd, "b<|im_end|>", "a[b<|im_end|>]"}, {imEnd, "", "a[<|im_end|>]"}, {-1, "b", "a[b]"}} {
		o.End, o.NoEnd = k.end, k.end < 0
		b := newBuilder(o, "f")
		if err := b.completion("a", k.completion); err != nil {
			t.Fatal(err)
		}
		if got := show(t, b.d.Sample(0)); got != k.want {
			t.Errorf("%q, want %q", got, k.want)
		}
	}
	if ids := (byteCodec{}).Encode("a<|im_end|>"); !slices.Equal(ids, []int32{'a', imEnd}) {
		t.Fatal(fmt.Sprint(ids))
	}
}

package data

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func pairOptions() Options {
	o := testOptions()
	o.PairRows = 2000
	return o
}

func preferencesOf(t testing.TB, lines string, o Options) *Preferences {
	t.Helper()
	p, err := readPreferences("f", strings.NewReader(lines), o)
	if err != nil {
		t.Fatalf("%s: %v", lines, err)
	}
	return p
}

// showPair is "chosen | rejected".
func showPair(t testing.TB, p *Preferences, i int) string {
	t.Helper()
	chosen, rejected := p.Pair(i)
	return show(t, chosen) + " | " + show(t, rejected)
}

func TestPreferences(t *testing.T) {
	const (
		hi     = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
		user   = `{"role": "user", "content": "Hi"}`
		ho     = `{"role": "assistant", "content": "Ho"}`
		ha     = `{"role": "assistant", "content": "Ha"}`
		hohoha = hi + "[Ho<|im_end|>] | " + hi + "[Ha<|im_end|>]"
		more   = hi + "Ho<|im_end|>\n" + hi + "[Ho<|im_end|>] | " + hi + "Ho<|im_end|>\n" + hi + "[Ha<|im_end|>]"
	)
	for line, want := range map[string]string{
		`{"prompt": "1+1=", "chosen": "2", "rejected": "3", "id": 7}`: "1+1=[2<|im_end|>] | " +
			"1+1=[3<|im_end|>]",
		`{"prompt": "1+1=", "chosen": "2", "rejected": ""}`: "1+1=[2<|im_end|>] | " +
			"1+1=[<|im_end|>]",
		`{"chosen": "The sky is blue.", "rejected": "The sky is black."}`: "The sky is[ blue.<|im_end|>] | " +
			"The sky is[ black.<|im_end|>]",
		`{"prompt_ids": [97, 98], "chosen_ids": [99], "rejected_ids": [100, 101]}`: "ab[c] | ab[de]",
		`{"prompt": [` + user + `], "chosen": [` + ho + `], "rejected": [` + ha +
			`]}`: hohoha,
		`{"prompt": [` + user + `], "chosen": "Ho", "rejected": ` + ha +
			`}`: hohoha,
		`{"messages": [` + user + `], "chosen": ` + ho +
			`, "rejected": "Ha", "tools": []}`: hohoha,
		`{"chosen": [` + user + `, ` + ho + `], "rejected": [` + user + `, ` + ha +
			`]}`: hohoha,
		`{"prompt": "Hi", "chosen": [` + user + `, ` + ho + `], "rejected": [` + user + `, ` + ha +
			`], "score_chosen": 8.5}`: hohoha,
		`{"input": {"messages": [` + user + `], "tools": [], "parallel_tool_calls": true}, "preferred_output": [` + ho +
			`], "non_preferred_output": [` + ha + `]}`: hohoha,
		`{"chosen": [` + user + `, ` + ho + `, ` + user + `, ` + ho + `], "rejected": [` + user + `, ` + ho + `, ` +
			user + `, ` + ha + `]}`: more,
		`{"messages": [` + user + `, ` + ho + `, ` + user +
			`], "chosen": "Ho", "rejected": "Ha"}`: more,
		`{"messages": [` + user + `], "chosen": [` + ho + `, ` + user + `, ` + ho +
			`], "rejected": "Ha"}`: hi + "[Ho<|im_end|>]\n" + hi + "[Ho<|im_end|>] | " + hi + "[Ha<|im_end|>]",
	} {
		p := preferencesOf(t, line, pairOptions())
		if p.Len() != 1 {
			t.Fatalf("%s gives %d pairs", line, p.Len())
		}
		if got := showPair(t, p, 0); got != want {
			t.Errorf("%s\ngives %q\nwant  %q", line, got, want)
		}
		chosen, rejected := p.Pair(0)
		if p.Rows != len(chosen.IDs)+len(rejected.IDs) || p.Targets != chosen.Learned()+rejected.Learned() {
			t.Errorf("%s: %d rows and %d targets", line, p.Rows, p.Targets)
		}
	}
}

func TestCommonText(t *testing.T) {
	for _, k := range [][4]string{
		{"a b", "a c", "a", " b"},
		{"a bc", "a bd", "a", " bc"},
		{"Q: x\n\nA: I think", "Q: x\n\nA: It is", "Q: x\n\nA:", " I think"},
		{"a  \n b", "a  \n c", "a", "  \n b"},
		{"a b", "a b c", "a", " b"},
		{"a\u00a0é", "a\u00a0è", "a", "\u00a0é"},
		{"ab", "ac", "", ""},
		{"", "a", "", ""},
	} {
		prompt, rest, _, err := commonText(k[0], k[1])
		if prompt != k[2] || rest != k[3] || (err == nil) != (k[2] != "") {
			t.Errorf("%q and %q: %q and %q, %v", k[0], k[1], prompt, rest, err)
		}
	}
}

// Templates that mark what is learned, and those that write earlier turns otherwise than the last.
func TestPreferencesTemplates(t *testing.T) {
	o := pairOptions()
	o.Template = loadTestTemplate(t, "generation.jinja")
	const line = `{"messages": [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}, {"role": ` +
		`"user", "content": "C"}], "chosen": "D", "rejected": "E"}`
	const before = "<s>[user]A[assistant]B<|im_end|>[user]C[assistant]["
	if got, want := showPair(t, preferencesOf(t, line, o), 0), before+"D<|im_end|>] | "+before+"E<|im_end|>]"; got !=
		want {
		t.Errorf("%q, want %q", got, want)
	}
	o.Template = loadTestTemplate(t, "thinking.jinja")
	if got := showPair(t, preferencesOf(t, line, o), 0); !strings.HasSuffix(got,
		"C<|im_end|>\n<|im_start|>assistant\n[<think>\n\n</think>\n\nE<|im_end|>]") {
		t.Errorf("%q", got)
	}
	wantError(t, "f:1: rejected: the chat template renders earlier turns differently", func() error {
		_, err := readPreferences("f", strings.NewReader(`{"prompt": [{"role": "user", "content": "A"}], "chosen": `+
			`"D", "rejected": [{"role": "assistant", "content": "B"}, {"role": "user", "content": "C"}, {"role": `+
			`"assistant", "content": "D"}]}`), o)
		return err
	})
}

func TestPreferencesLong(t *testing.T) {
	const lines = `{"prompt": "aaaa", "chosen": "bcd", "rejected": "e"}` + "\n" + `{"prompt": "a", "chosen": "b", ` +
		`"rejected": "c"}`
	for _, k := range []struct {
		long               Long
		rows, pair         int
		dropped, truncated int
		want               string
	}{
		{LongDrop, 7, 12, 0, 0, "aaaa[bcd<|im_end|>] | aaaa[e<|im_end|>], a[b<|im_end|>] | a[c<|im_end|>]"},
		{LongDrop, 6, 12, 1, 0, "a[b<|im_end|>] | a[c<|im_end|>]"},
		{LongDrop, 7, 11, 1, 0, "a[b<|im_end|>] | a[c<|im_end|>]"},
		{LongTruncate, 6, 12, 0, 1, "aaaa[bcd] | aaaa[e<|im_end|>], a[b<|im_end|>] | a[c<|im_end|>]"},
		{LongTruncate, 7, 11, 0, 1, "aaaa[bcd] | aaaa[e<|im_end|>], a[b<|im_end|>] | a[c<|im_end|>]"},
		{LongTruncate, 7, 9, 0, 1, "aaaa[b] | aaaa[e], a[b<|im_end|>] | a[c<|im_end|>]"},
		{LongTruncate, 7, 8, 0, 1, "aaaa[b] | aaaa[e], a[b<|im_end|>] | a[c<|im_end|>]"},
		{LongTruncate, 7, 7, 1, 0, "a[b<|im_end|>] | a[c<|im_end|>]"},
		{LongTruncate, 7, 3, 1, 1, "a[b] | a[c]"},
	} {
		o := pairOptions()
		o.Long, o.MaxRows, o.PairRows = k.long, k.rows, k.pair
		p := preferencesOf(t, lines, o)
		var got []string
		for i := range p.Len() {
			got = append(got, showPair(t, p, i))
		}
		if strings.Join(got, ", ") != k.want || p.Dropped != k.dropped || p.Truncated != k.truncated {
			t.Errorf("%s at %d and %d: %q, %d dropped, %d cut; want %q, %d, %d", k.long, k.rows, k.pair, got, p.Dropped,
				p.Truncated, k.want, k.dropped, k.truncated)
		}
	}
	o := pairOptions()
	o.PairRows = 11
	wantError(t, "f:1: the pair has 7 and 5 tokens, and 1000 fit, both together 11", func() error {
		_, err := readPreferences("f", strings.NewReader(lines), o)
		return err
	})
	o.Long, o.PairRows = LongDrop, 2
	wantError(t, "f: no pair is left of 2", func() error {
		_, err := readPreferences("f", strings.NewReader(lines), o)
		return err
	})
	o.PairRows = 1
	wantError(t, "pairs of at most 1 rows", func() error {
		_, err := readPreferences("f", strings.NewReader(lines), o)
		return err
	})
	// What is left of the two is the same.
	o.Long, o.PairRows, o.MaxRows = LongTruncate, 100, 3
	if p := preferencesOf(t, `{"prompt": "a", "chosen": "bbbc", "rejected": "bbbd"}`+"\n"+`{"prompt": "a", "chosen": `+
		`"b", "rejected": "c"}`, o); p.Len() != 1 || p.Dropped != 1 {
		t.Errorf("%d pairs, %d dropped", p.Len(), p.Dropped)
	}
}

// The cut is the last place at which a pair fits.
func TestPairTruncate(t *testing.T) {
	make1 := func(rows int, last int32) (q sequence) {
		q.add([]int32{1}, false)
		q.add(append(make([]int32, rows-1), last), true)
		return q
	}
	for c := 1; c <= 9; c++ {
		for r := 1; r <= 9; r++ {
			for limit := 2; limit <= 20; limit++ {
				for most := 1; most <= 10; most++ {
					want := 0
					for at := 1; at <= most; at++ {
						if min(c, at)+min(r, at) <= limit {
							want = at
						}
					}
					o := Options{MaxRows: most, PairRows: limit}
					q := pair{make1(c, 2), make1(r, 3), false}
					q.truncate(o)
					if q.chosen.rows() != min(c, want) || q.rejected.rows() != min(r, want) || !q.fits(o) {
						t.Fatalf("%d and %d at %d and %d: %d and %d, want %d", c, r, most, limit, q.chosen.rows(),
							q.rejected.rows(), want)
					}
				}
			}
		}
	}
}

func TestPreferencesErrors(t *testing.T) {
	const user = `{"role": "user", "content": "a"}`
	for text, want := range map[string]string{
		"":                               "f:1: the file is empty",
		"[]":                             "f:1: the line is not a JSON object",
		`{"prompt": "a", "chosen": "b"}`: "f:1: want chosen and rejected with",
		`{"chosen_ids": [1], "rejected_ids": [2]}`: "f:1: want chosen and " +
			"rejected with",
		`{"prompt": "a", "messages": [], "chosen": "b", "rejected": "c"}`: "f:1: want chosen and " +
			"rejected with",
		`{"prompt": "a", "prompt_ids": [1], "chosen": "b", "rejected": "c"}`: "f:1: want chosen and " +
			"rejected with",
		`{"prompt": "a", "chosen": "b", "rejected": "b"}`: "f:1: chosen and rejected " +
			"are the same",
		`{"chosen": "a b", "rejected": "a b"}`: "f:1: chosen and rejected " +
			"are the same",
		`{"prompt": "", "chosen": "b", "rejected": "c"}`: "f:1: the prompt is empty",
		`{"chosen": "b", "rejected": "c"}`: "f:1: chosen and rejected have " +
			"no common prefix",
		`{"chosen": " b", "rejected": " c"}`:                         "f:1: the prompt is empty",
		`{"prompt": "a", "chosen": 1, "rejected": "c"}`:              `f:1: no text under "chosen"`,
		`{"prompt": "a", "chosen": "b", "rejected": [` + user + `]}`: `f:1: no text under "rejected"`,
		`{"prompt": 1, "chosen": "b", "rejected": "c"}`: "f:1: prompt is not a list " +
			"of messages",
		`{"messages": [], "chosen": "b", "rejected": "c"}`: "f:1: messages is not a list " +
			"of messages",
		`{"messages": [` + user + `], "chosen": 1, "rejected": "c"}`: "f:1: chosen is not a list " +
			"of messages",
		`{"messages": [` + user + `], "chosen": "b", "rejected": null}`: "f:1: rejected is not a list " +
			"of messages",
		`{"messages": [` + user + `], "chosen": "b", "rejected": {}}`: "f:1: rejected[0]: the role " +
			"is missing",
		`{"messages": [` + user + `], "chosen": [` + user + `], "rejected": "b"}`: "f:1: chosen: no " +
			"assistant message",
		`{"chosen": [` + user + `], "rejected": [` + user + `]}`: "f:1: one of chosen and " +
			"rejected is a prefix",
		`{"chosen": [` + user + `], "rejected": "b"}`: "f:1: rejected is not a list " +
			"of messages",
		`{"chosen": [` + user + `], "rejected": [{"role": "user", "content": "b"}]}`: "f:1: chosen and rejected have " +
			"no common first message",
		`{"prompt": "x", "chosen": [` + user + `, {"role": "assistant", "content": "b"}], "rejected": [` + user +
			`, {"role": "assistant", "content": "c"}]}`: "f:1: prompt is not the last common message",
		`{"input": [], "preferred_output": "a", "non_preferred_output": "b"}`: "f:1: input is not an object",
		`{"input": {}, "preferred_output": "a", "non_preferred_output": "b"}`: "f:1: input.messages is not a list",
		`{"input": {"messages": [` + user +
			`]}, "preferred_output": 1, "non_preferred_output": "b"}`: "f:1: preferred_output is not a list",
		`{"input": {"messages": [` + user +
			`]}, "preferred_output": "b", "non_preferred_output": 1}`: "f:1: non_preferred_output is not a list",
		`{"input": {"messages": [` + user +
			`], "tools": 1}, "preferred_output": "b", "non_preferred_output": "c"}`: "f:1: tools is not a list",
		`{"prompt_ids": [], "chosen_ids": [1], "rejected_ids": [2]}`:    "f:1: prompt_ids is empty",
		`{"prompt_ids": [1], "chosen_ids": [1], "rejected_ids": []}`:    "f:1: rejected_ids is empty",
		`{"prompt_ids": [1], "chosen_ids": 1, "rejected_ids": [2]}`:     "f:1: chosen_ids is not a list",
		`{"prompt_ids": [1], "chosen_ids": [1], "rejected_ids": [258]}`: "f:1: rejected: token 1 has id 258",
		`{"prompt_ids": [1], "chosen_ids": [-1], "rejected_ids": [25]}`: "f:1: chosen: token 1 has id -1",
	} {
		wantError(t, want, func() error {
			_, err := readPreferences("f", strings.NewReader(text), pairOptions())
			return err
		})
	}
	o := pairOptions()
	o.End, o.NoEnd = -1, true
	wantError(t, "f:1: rejected: there are no targets", func() error {
		_, err := readPreferences("f", strings.NewReader(`{"prompt": "a", "chosen": "b", "rejected": ""}`), o)
		return err
	})
	o.Template = nil
	wantError(t, "f:1: chosen: messages need a chat template", func() error {
		_, err := readPreferences("f", strings.NewReader(`{"messages": [`+user+`], "chosen": "b", "rejected": ""}`), o)
		return err
	})
	o.Codec = nil
	wantError(t, "f:1: the model folder has no tokenizer.json", func() error {
		_, err := readPreferences("f", strings.NewReader(`{"prompt": "a", "chosen": "b", "rejected": ""}`), o)
		return err
	})
	o.Vocab = 0
	wantError(t, "vocabulary has 0", func() error {
		_, err := readPreferences("f", strings.NewReader(`{}`), o)
		return err
	})
}

func TestPreferencesDigest(t *testing.T) {
	seen := map[uint64]bool{}
	for _, ids := range [][3]string{{"1", "2", "3"}, {"1", "3", "2"}, {"1, 2", "2", "3"}, {"1", "2, 2", "3"}} {
		line := fmt.Sprintf(`{"prompt_ids": [%s], "chosen_ids": [%s], "rejected_ids": [%s]}`, ids[0], ids[1], ids[2])
		seen[preferencesOf(t, line, pairOptions()).Digest()] = true
		seen[preferencesOf(t, line+"\n"+line, pairOptions()).Digest()] = true
	}
	// Neither is it the digest of the same samples as a dataset of no pairs.
	d := &Dataset{}
	p := preferencesOf(t, `{"prompt_ids": [1], "chosen_ids": [2], "rejected_ids": [3]}`, pairOptions())
	d.samples = p.group(0)
	seen[d.Digest()] = true
	if len(seen) != 9 || preferencesOf(t, `{"prompt_ids": [1], "chosen_ids": [2], "rejected_ids": [3]}`,
		pairOptions()).Digest() != p.Digest() {
		t.Errorf("%d digests", len(seen))
	}
}

func TestLoadPreferences(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.jsonl")
	if err := os.WriteFile(path, []byte(`{"prompt": "a", "chosen": "b", "rejected": "c"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if p, err := LoadPreferences(path, pairOptions()); err != nil || p.Len() != 1 {
		t.Fatalf("%v", err)
	}
	wantError(t, "no such file", func() error { _, err := LoadPreferences(path+"x", pairOptions()); return err })
}

// Both samples of a pair are in one pack, the chosen one first and the other next to it; an epoch has each pair once,
// and a stream goes on where it was left.
func TestPreferencesStream(t *testing.T) {
	var lines strings.Builder
	for i := range 200 {
		a := strings.Repeat("5,", i%23) + "6"
		b := strings.Repeat("7,", i*7%29) + "8"
		fmt.Fprintf(&lines, `{"prompt_ids": [%d], "chosen_ids": [%s], "rejected_ids": [%s]}`+"\n", i, a, b)
	}
	p := preferencesOf(t, strings.TrimSpace(lines.String()), pairOptions())
	const packRows = 60
	s := NewStream(p, 3, packRows, 1)
	var all []Sample
	shared := 0
	for {
		packs := s.Next(1)
		if packs == nil {
			break
		}
		samples := s.Samples(packs[0])
		if n := rowsOf(samples); n != packs[0].Rows || n > packRows || len(samples)%2 != 0 {
			t.Fatalf("a pack of %d rows, %d samples", n, len(samples))
		}
		if len(samples) > 2 {
			shared++
		}
		all = append(all, samples...)
		again := NewStream(p, 3, packRows, 1)
		if err := again.Resume(s.State()); err != nil {
			t.Fatal(err)
		}
		if a, b := fmt.Sprint(again.Next(3)), fmt.Sprint(peek(s, p, packRows)); a != b {
			t.Fatalf("resumed: %s, want %s", a, b)
		}
	}
	if shared == 0 || len(all) != 400 {
		t.Fatalf("%d samples, %d packs of several pairs", len(all), shared)
	}
	seen := map[int32]bool{}
	for i := 0; i < len(all); i += 2 {
		id := all[i].IDs[0]
		chosen, rejected := p.Pair(int(id))
		if seen[id] || !slices.Equal(all[i].Targets, chosen.Targets) ||
			!slices.Equal(all[i+1].Targets, rejected.Targets) {
			t.Fatalf("pair %d is torn or comes twice", id)
		}
		seen[id] = true
	}
	defer func() {
		if x := recover(); x == nil || !strings.Contains(fmt.Sprint(x), "rows, a pack 20") {
			t.Errorf("%v", x)
		}
	}()
	NewStream(p, 3, 20, 1)
}

// peek is what comes next, without taking it.
func peek(s *Stream, d Source, packRows int) []Pack {
	other := NewStream(d, s.State().Seed, packRows, 1)
	for other.State() != s.State() {
		other.Next(1)
	}
	return other.Next(3)
}

// Whatever the text, reading it gives an error of one line or pairs that hold together.
func FuzzPreferences(f *testing.F) {
	const user, ho = `{"role": "user", "content": "Hi"}`, `{"role": "assistant", "content": "Ho"}`
	for _, s := range []string{
		`{"prompt": "1+1=", "chosen": "2", "rejected": "3"}`, `{"chosen": "a b", "rejected": "a c"}`,
		`{"prompt_ids": [97, 98], "chosen_ids": [99], "rejected_ids": [1, 2]}`, "{}", "[",
		`{"messages": [` + user + `], "chosen": ` + ho + `, "rejected": "Ha", "tools": []}`, `{"chosen": [` + user +
			`, ` + ho + `], "rejected": [` + user + `, {"role": "assistant", "content": null, "tool_calls": []}]}`,
		`{"input": {"messages": [` + user + `]}, "preferred_output": [` + ho + `], "non_preferred_output": [` + ho +
			`]}`,
	} {
		f.Add(s)
	}
	o := pairOptions()
	o.Template, o.Long, o.MaxRows, o.PairRows = loadTestTemplate(f, "thinking.jinja"), LongTruncate, 50, 70
	f.Fuzz(func(t *testing.T, text string) {
		p, err := readPreferences("f", strings.NewReader(text), o)
		if err != nil {
			if strings.Contains(err.Error(), "\n") || !strings.HasPrefix(err.Error(), "f:") {
				t.Fatalf("%q", err)
			}
			return
		}
		for i := range p.Len() {
			pair := p.group(i)
			for _, s := range pair {
				if n := len(s.IDs); n == 0 || n > o.MaxRows || n != len(s.Targets) || s.Targets[n-1] == noLabel {
					t.Fatalf("%v", s)
				}
			}
			if rowsOf(pair) > o.PairRows || slices.Equal(pair[0].Targets, pair[1].Targets) &&
				slices.Equal(pair[0].IDs, pair[1].IDs) {
				t.Fatalf("%v", pair)
			}
		}
	})
}

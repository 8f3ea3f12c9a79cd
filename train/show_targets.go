package train

import (
	"errors"
	"math"
	"os"
	"strings"

	"golang.org/x/term"

	"lockstep/data"
	"lockstep/model"
	"lockstep/train/setup"
)

// marksOf returns colours for a terminal, and brackets elsewhere or where NO_COLOR is set (no-color.org).
func marksOf(f *os.File) data.Marks {
	if os.Getenv("NO_COLOR") == "" && term.IsTerminal(int(f.Fd())) {
		return data.Green
	}
	return data.Brackets
}

// shownRun is how many characters of consecutive tokens with or without targets are shown of a run's first sample.
const shownRun = 120

// showSample prints the first sample of a run on messages with its targets marked, so that a user sees what is learned.
func (j *job) showSample() {
	s, ok := j.corpus.Conversation()
	if !ok {
		return
	}
	text := s.Marked(j.tokenizer, marksOf(j.options.Log), shownRun)
	j.note("first sample, targets marked: %s", strings.ReplaceAll(text, "\n", `\n`))
}

// ShowChat returns the training samples of a line of a JSONL file (from 1) as text, as a run on a model folder makes
// them, with the targets marked by what fits out: colours on a terminal, else brackets. noEnd is data.no_end of the
// shape.
func ShowChat(out *os.File, dir, path string, line int, noEnd bool) (string, error) {
	m, err := model.DescribeFolder(dir)
	if err != nil {
		return "", err
	}
	tok, err := data.LoadChatTokenizer(dir, m.EOS)
	if err != nil {
		return "", err
	}
	o := data.Options{End: -1, Vocab: max(m.Vocab, tok.Vocab()), MaxRows: math.MaxInt32, Long: data.LongError,
		NoEnd: noEnd}
	setup.SetTokenizer(&o, m, tok)
	samples, err := data.SamplesOf(path, line, o)
	if err != nil {
		return "", err
	}
	if len(samples) == 0 {
		return "", errors.New("the line has no sample")
	}
	var b strings.Builder
	for _, s := range samples {
		b.WriteString(s.Marked(tok, marksOf(out), 0))
		b.WriteString("\n")
	}
	return b.String(), nil
}

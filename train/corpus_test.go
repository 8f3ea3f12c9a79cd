package train

import (
	"testing"

	"lockstep/data"
	"lockstep/model"
)

// A task is learned from one split and evaluated on the other.
func TestTaskSplits(t *testing.T) {
	s, err := parseTiny(nil)
	if err != nil {
		t.Fatal(err)
	}
	lang, err := data.NewLanguage("countdown")
	if err != nil {
		t.Fatal(err)
	}
	m := &model.Model{Vocab: 480, MaxLength: 1 << 10}
	c, err := openCorpus(s, m, lang)
	if err != nil {
		t.Fatal(err)
	}
	for split, got := range map[data.Split]*data.Dataset{data.Train: c.train, data.Test: c.eval} {
		want, err := data.NewTaskDataset(countdown(s), split, dataOptions(s, m, lang))
		if err != nil {
			t.Fatal(err)
		}
		if got.Digest() != want.Digest() {
			t.Errorf("the samples of %s are others", split)
		}
	}
}

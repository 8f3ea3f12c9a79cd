package setup

import (
	"testing"

	"lockstep/data"
	"lockstep/model"
	"lockstep/train/testshape"
)

// A task is learned from one split and evaluated on the other.
func TestTaskSplits(t *testing.T) {
	s, err := testshape.Parse(nil)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := data.NewChatTokenizer("countdown")
	if err != nil {
		t.Fatal(err)
	}
	m := &model.Model{Vocab: 480, MaxLength: 1 << 10}
	c, err := OpenCorpus(s, m, tok)
	if err != nil {
		t.Fatal(err)
	}
	for split, got := range map[data.Split]*data.Dataset{data.Train: c.Train, data.Test: c.HeldOut} {
		want, err := data.NewTaskDataset(Countdown(s), split, dataOptions(s, m, tok))
		if err != nil {
			t.Fatal(err)
		}
		if got.Digest() != want.Digest() {
			t.Errorf("the samples of %s are others", split)
		}
	}
}

// A prompt of reinforcement learning leaves room for an answer.
func TestRoomForAnswers(t *testing.T) {
	s, err := testshape.Parse(testshape.RL())
	if err != nil {
		t.Fatal(err)
	}
	tok, err := data.NewChatTokenizer("countdown")
	if err != nil {
		t.Fatal(err)
	}
	m := &model.Model{Vocab: 480, MaxLength: 1 << 10}
	for rows, want := range map[int]int{100: 60, 2000: 984} { // of a pack; the model has 1,024 positions
		s.Data.PackRows, s.Rollout.MaxTokens = rows, 40
		if o, err := questionOptions(s, m, tok); err != nil || o.MaxRows != want {
			t.Errorf("packs of %d rows: prompts of up to %d (%v), want %d", rows, o.MaxRows, err, want)
		}
	}
	s.Data.PackRows, s.Rollout.MaxTokens = 40, 40
	if _, err := questionOptions(s, m, tok); err == nil {
		t.Error("answers that fill a pack leave room for a prompt")
	}
}

package train

import (
	"testing"

	"lockstep/data"
	"lockstep/train/runlog"
	"lockstep/train/trainer"
)

// The loss of a program is that of one batch, and a line too many is refused.
func TestGivenGradients(t *testing.T) {
	l := &learner{}
	batch := []trainer.Sample{{Sample: data.Sample{IDs: []int32{1, 2, 3, 4}}}}
	episodes := []*runlog.Episode{{Prompt: []int32{1, 2}, IDs: []int32{3, 4}}}
	for range 2 {
		if err := l.readGradients([]byte(`{"gradients": [5, 6], "loss": 2.5}`), batch, episodes); err != nil ||
			l.customLoss != 2.5 {
			t.Fatalf("loss %g (%v), want 2.5", l.customLoss, err)
		}
	}
	if d := batch[0].Derivative; d[0] != 0 || d[1] != 5 || d[2] != 6 || d[3] != 0 {
		t.Errorf("derivatives %v, want those of the rows that chose the answer's tokens", d)
	}
	for _, text := range []string{``, `{"gradients": [5]}`, `{"gradients": [5, 6]} {"gradients": [5, 6]}`} {
		if l.readGradients([]byte(text), batch, episodes) == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

package train

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"lockstep/optim"
	"lockstep/train/runlog"
	"lockstep/train/trainer"
)

// customAnswer is a line of input of the program rl.loss: an answer with its log-probabilities under the trained
// weights.
type customAnswer struct {
	Question  int       `json:"question"`
	Sample    int       `json:"sample"`
	Reward    float64   `json:"reward"`
	Advantage float32   `json:"advantage"`
	Weight    float32   `json:"weight"`   // of a token, by rl.aggregate
	IDs       []int32   `json:"ids"`      // that the model chose
	LogProbs  []float32 `json:"logprobs"` // of them, by the trainer, at rl.temperature
	Rollout   []float32 `json:"rollout"`  // likewise, as they were recorded
}

// customGradients is the line that the program writes for each answer: the derivative of its loss by each
// log-probability, and what the answer adds to the loss, for the log.
type customGradients struct {
	Gradients []float32 `json:"gradients"`
	Loss      float64   `json:"loss"`
}

// differentiate runs the program rl.loss over a minibatch. One forward computes the log-probabilities that it reads;
// the training step that follows takes its derivatives (the two passes of Tinker's forward_backward_custom).
func (l *learner) differentiate(ctx context.Context, batch []trainer.Sample, episodes []*runlog.Episode) error {
	var in bytes.Buffer
	enc, tokens := json.NewEncoder(&in), 0
	lengths := make([]int, len(batch))
	for i := range batch {
		lengths[i] = batch[i].Learned()
	}
	weights, scale := optim.Aggregate(l.objective.Aggregate, lengths, l.maxTokens)
	logprobs := make([][]float32, len(batch))
	l.trainer.EachLogProb(l.packRows, batch, func(i int, logprob []float32) {
		logprobs[i] = logprob
	})
	for i, e := range episodes {
		a := customAnswer{Question: e.Question, Sample: e.Sample, Reward: e.Reward, Advantage: e.Advantage,
			Weight: float32(float64(weights[i]) * scale), IDs: e.IDs, LogProbs: logprobs[i][len(e.Prompt)-1:],
			Rollout: e.LogProbs}
		tokens += len(e.IDs)
		if err := enc.Encode(a); err != nil {
			return fmt.Errorf("rl.loss: %w", err)
		}
	}
	room := 1<<16 + 64*tokens
	if err := l.custom.Run(ctx, in.Bytes(), room, func(out []byte) error {
		return l.readGradients(out, batch, episodes)
	}); err != nil {
		return fmt.Errorf("rl.loss %.120q: %w", strings.Join(l.rl.Loss, " "), err)
	}
	return nil
}

// readGradients reads the derivatives of a batch.
func (l *learner) readGradients(out []byte, batch []trainer.Sample, episodes []*runlog.Episode) error {
	dec := json.NewDecoder(bytes.NewReader(out))
	l.customLoss = 0
	for i, e := range episodes {
		var g customGradients
		if err := dec.Decode(&g); err != nil {
			return fmt.Errorf(
				`answer %d of %d: %w: want a line {"gradients": [...], "loss": number} on stdout for each`, i+1,
				len(episodes), err)
		}
		if len(g.Gradients) != len(e.IDs) {
			return fmt.Errorf("answer %d of %d has %d tokens and got %d gradients", i+1, len(episodes), len(e.IDs),
				len(g.Gradients))
		}
		batch[i].Derivative = make([]float32, len(batch[i].IDs))
		copy(batch[i].Derivative[len(e.Prompt)-1:], g.Gradients)
		l.customLoss += g.Loss
	}
	if dec.More() {
		return fmt.Errorf("wrote more than the expected %d lines", len(episodes))
	}
	return nil
}

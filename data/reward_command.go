package data

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
)

// outputOf bounds what a program or a server may write for n answers, in bytes.
func outputOf(n int) int { return 1<<16 + n<<10 }

// rewards judges a batch by running the program once.
func (p *Program) rewards(ctx context.Context, answers []Answer) ([]float64, error) {
	in, err := jsonLines(answers)
	if err != nil {
		return nil, err
	}
	var rewards []float64
	err = p.Run(ctx, in, outputOf(len(answers)), func(out []byte) (err error) {
		if rewards, err = readRewards(out); err == nil && len(rewards) != len(answers) {
			err = fmt.Errorf("wrote %d lines for %d answers: want one for each, in order", len(rewards), len(answers))
		}
		return err
	})
	return rewards, err
}

// jsonLines writes one answer a line.
func jsonLines(answers []Answer) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	for _, a := range answers {
		if err := enc.Encode(a); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), nil
}

// readRewards reads lines of {"reward": number}; other keys are ignored. JSON has no number that is not finite.
func readRewards(text []byte) ([]float64, error) {
	text = bytes.TrimSuffix(text, []byte("\n"))
	if len(text) == 0 {
		return nil, nil
	}
	var rewards []float64
	for line := range bytes.SplitSeq(text, []byte("\n")) {
		var v struct{ Reward *float64 }
		if err := json.Unmarshal(line, &v); err != nil || v.Reward == nil {
			return nil, fmt.Errorf(`line %d on stdout is %.80q: want {"reward": number}`, len(rewards)+1, line)
		}
		rewards = append(rewards, *v.Reward)
	}
	return rewards, nil
}

package data

import (
	"context"
	"fmt"
	"sync"
)

// external is a reward function outside this process. A batch is cut into equal parts, in order, which run
// concurrently: at most cap(slots) at a time over all batches.
type external struct {
	name  string // in errors
	slots chan struct{}
	judge func(ctx context.Context, answers []Answer) ([]float64, error)
}

func newExternal(name string, parallel int, judge func(context.Context, []Answer) ([]float64, error)) *external {
	return &external{name: name, slots: make(chan struct{}, parallel), judge: judge}
}

// Rewards fails with the first error of a part, which ends the others.
func (o *external) Rewards(ctx context.Context, answers []Answer) ([]float64, error) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	rewards := make([]float64, len(answers))
	parts := min(cap(o.slots), len(answers))
	var wait sync.WaitGroup
	for p := range parts {
		from, to := len(answers)*p/parts, len(answers)*(p+1)/parts
		wait.Go(func() {
			if err := o.part(ctx, answers[from:to], rewards[from:to]); err != nil {
				end(err)
			}
		})
	}
	wait.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", o.name, err)
	}
	return rewards, nil
}

// part gets the rewards of one part when a slot is free.
func (o *external) part(ctx context.Context, answers []Answer, rewards []float64) error {
	select {
	case o.slots <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-o.slots }()
	got, err := o.judge(ctx, answers)
	if err == nil && len(got) != len(answers) {
		err = fmt.Errorf("gave %d rewards for %d answers: want one for each, in order", len(got), len(answers))
	}
	copy(rewards, got)
	return err
}

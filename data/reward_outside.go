package data

import (
	"context"
	"fmt"
	"sync"
)

// outside is a judge that is no part of this program. A batch is cut into equal parts, in order, which are judged at
// once; over all batches no more than cap(slots) parts are.
type outside struct {
	name  string // in errors
	slots chan struct{}
	ask   func(ctx context.Context, asked []Answer) ([]float64, error)
}

func newOutside(name string, parallel int, ask func(context.Context, []Answer) ([]float64, error)) *outside {
	return &outside{name: name, slots: make(chan struct{}, parallel), ask: ask}
}

// Rewards fails with the first error of a part, which ends the others.
func (o *outside) Rewards(ctx context.Context, asked []Answer) ([]float64, error) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	rewards := make([]float64, len(asked))
	parts := min(cap(o.slots), len(asked))
	var wait sync.WaitGroup
	for p := range parts {
		from, to := len(asked)*p/parts, len(asked)*(p+1)/parts
		wait.Go(func() {
			if err := o.part(ctx, asked[from:to], rewards[from:to]); err != nil {
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

// part judges one part when there is room.
func (o *outside) part(ctx context.Context, asked []Answer, rewards []float64) error {
	select {
	case o.slots <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-o.slots }()
	got, err := o.ask(ctx, asked)
	if err == nil && len(got) != len(asked) {
		err = fmt.Errorf("gave %d rewards for %d answers: want one for each, in order", len(got), len(asked))
	}
	copy(rewards, got)
	return err
}

package data

import "fmt"

// Split names a part of a task's instances.
type Split string

const (
	Train Split = "train"
	Test  Split = "test" // held out: no instance of it is in Train
)

// Example is text to learn from: the prompt as the model reads it and the completion that it should write.
type Example struct{ Prompt, Completion string }

// Task generates its own data and rewards answers. Instance i of a split is always the same one, whatever was made
// before it. Fine-tuning learns from Example (see [NewTaskDataset]); reinforcement learning shows the model Example's
// Prompt, lets it write, and calls Reward on the text; an evaluation does the same with the test split.
type Task interface {
	// Len is the number of instances of a split.
	Len(split Split) int
	// Example is the prompt of an instance and one right answer to it.
	Example(split Split, i int) Example
	// Reward is the score of an answer, from 0 (wrong) to 1 (right). It accepts any text without a panic.
	Reward(split Split, i int, answer string) float64
}

// NewTaskDataset tokenises all instances of a split as prompts and completions.
func NewTaskDataset(task Task, split Split, o Options) (*Dataset, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	b := newBuilder(o, string(split)+" split")
	for i := range task.Len(split) {
		e := task.Example(split, i)
		if err := b.completion(e.Prompt, e.Completion); err != nil {
			return nil, fmt.Errorf("%s instance %d: %w", split, i, err)
		}
	}
	return b.dataset(string(split) + " split")
}

package data

import "context"

// Questions are prompts whose answers are judged: what reinforcement learning learns from.
type Questions interface {
	Len() int
	// Prompt is the tokens that the model is to continue.
	Prompt(i int) []int32
}

// Answer is what a model wrote to a question.
type Answer struct {
	Question int
	Text     string
}

// Rewarder judges answers.
type Rewarder interface {
	// Rewards has one number for each answer, in their order.
	Rewards(ctx context.Context, answers []Answer) ([]float64, error)
}

// TaskQuestions are the instances of a task's split, judged by the task.
type TaskQuestions struct {
	task    Task
	split   Split
	prompts [][]int32
}

// NewTaskQuestions tokenises the prompts of a split.
func NewTaskQuestions(task Task, split Split, codec Codec) *TaskQuestions {
	q := &TaskQuestions{task: task, split: split}
	for i := range task.Len(split) {
		q.prompts = append(q.prompts, codec.Encode(task.Example(split, i).Prompt))
	}
	return q
}

// Len is the number of instances.
func (q *TaskQuestions) Len() int { return len(q.prompts) }

// Prompt is that of instance i.
func (q *TaskQuestions) Prompt(i int) []int32 { return q.prompts[i] }

// Rewards asks the task.
func (q *TaskQuestions) Rewards(_ context.Context, answers []Answer) ([]float64, error) {
	rewards := make([]float64, len(answers))
	for i, a := range answers {
		rewards[i] = q.task.Reward(q.split, a.Question, a.Text)
	}
	return rewards, nil
}

// Overlong is DAPO's soft punishment of answers that run too long (arXiv 2503.14476, eq. 13): 0 up to most-buffer tokens, then falling to -1 at most.
func Overlong(tokens, most, buffer int) float64 {
	return -min(1, max(0, float64(tokens-(most-buffer))/float64(buffer)))
}

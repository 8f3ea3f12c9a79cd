// Package optim says what a step optimises and how: objectives (the loss and its derivative by each log-probability),
// learning-rate schedules and the optimizer step. It imports parallel and kernels.
package optim

// Package serve is the rollout engine: continuous batching over a paged cache, prefill in chunks, sampling; and the
// proof that what it computes equals the training forward on every bit. It runs the model's one Forward. It imports
// optim, model, parallel, data and kernels.
package serve

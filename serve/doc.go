// Package serve is the rollout engine: continuous batching over a paged cache, chunked prefill, prefix caching and
// sampling. It also verifies that the engine equals the training forward on every bit (Verify), and compares recorded
// log-probabilities with it (Parity). Engine and training run the same model.Forward. The package imports optim, model,
// parallel, data and kernels.
package serve

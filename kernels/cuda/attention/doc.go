// Package attention has the operations of the GPU for attention: of heads and of latents, expanded and absorbed, to
// all keys and to those that an indexer selects, their gradients, the loss of an indexer, and the cache of keys and
// values. An operation is a .go file, which launches, and a .cu file of its name, which computes; kernels/cuda embeds
// [Ops] in its Device. It imports kernels, kernels/cuda/driver and kernels/cuda/rows (sums over rows).
package attention

//go:generate go run ../launchgen -I ../include

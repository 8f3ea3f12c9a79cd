// Package sample has the operations of the GPU for a vocabulary: log-probabilities of tokens with their gradient, and
// sampling. An operation is a .go file, which launches, and a .cu file of its name, which computes; kernels/cuda
// embeds [Ops] in its Device. It imports kernels and kernels/cuda/driver.
package sample

//go:generate go run ../launchgen -I ../include

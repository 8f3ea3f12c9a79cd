// Package recurrent has the operations of the GPU for layers with a recurrent state: delta rule and state space in
// chunks, short convolution, decay. An operation is a .go file, which launches, and a .cu file of its name, which
// computes; kernels/cuda embeds [Ops] in its Device. It imports kernels, kernels/cuda/driver and kernels/cuda/rows
// (sums over rows).
package recurrent

//go:generate go run ../launchgen -I ../include

// Package moe has the operations of the GPU for a mixture of experts: the router's choice, the order of rows by
// expert, and the weighted sum of what experts give. An operation is a .go file, which launches, and a .cu file of its
// name, which computes; kernels/cuda embeds [Ops] in its Device. It imports kernels and kernels/cuda/driver.
package moe

//go:generate go run ../launchgen -I ../include

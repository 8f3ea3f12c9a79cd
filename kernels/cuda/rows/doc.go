// Package rows has the operations of the GPU for row by row: elementwise arithmetic, embedding, norms, rotary
// positions, activations, biases, rounding, the optimizer. It also has the sums over rows by which other packages add
// up weights' gradients. An operation is a .go file, which launches, and a .cu file of its name, which computes;
// kernels/cuda embeds [Ops] in its Device. It imports kernels, quant and kernels/cuda/driver.
package rows

//go:generate go run ../launchgen -I ../include

// Package bench times the operations of a GPU on the shapes of the project's tables. It imports kernels/cuda.
package bench

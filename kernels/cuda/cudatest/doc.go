// Package cudatest is what tests of kernels/cuda and of the packages below it share: every operation runs on the CPU
// reference and on the card, and the bytes of every tensor afterwards are compared. It imports kernels, kernels/cpu and
// kernels/cuda/driver, so that tests in any package of operations can use it.
package cudatest

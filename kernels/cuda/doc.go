// Package cuda is the device for NVIDIA GPUs, built with the tag cuda (make cuda). Every operation equals kernels/cpu
// on every bit: equal_test.go runs both. An operation is a .go file, which launches, and a .cu file of the same name,
// which says what is computed and what bounds it. The .cu files are embedded, compiled by NVRTC at first use and
// cached. It imports kernels, quant, kernels/cuda/driver (which has all cgo), and kernels/cpu, against which a card is
// held before it is used (selftest.go).
//
// The device computes the definition's dot mode tc16 on tensor cores, so models are stored in bf16. It refuses other
// definitions.
package cuda

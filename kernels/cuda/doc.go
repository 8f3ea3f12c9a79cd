// Package cuda is the device for NVIDIA GPUs, built with the tag cuda (make cuda). Every operation equals kernels/cpu
// on every bit. [Device] embeds the operations of the packages below:
//
//	driver      all cgo: contexts, memory, modules and their cache, launches, graphs, tensor maps; NVML
//	include     CUDA headers that several packages include
//	launchgen   writes launch_generated.go of a package from its kernels: typed launchers, structs, constants
//	gemm        matrix products
//	attention   attention, expanded and absorbed; sparse attention and its indexer's loss; the cache of keys
//	moe         routing, dispatch and combination of experts
//	recurrent   delta rule, state space, short convolution, decay
//	rows        elementwise operations, embedding, norms, rotary positions, activations, rounding, the optimizer
//	sample      log-probabilities and sampling
//	selftest    compares a card with the CPU before it is used
//	bench       times the operations
//	cudatest    what tests share
//
// An operation is a .go file, which launches, a .cu file of the same name, which says what is computed and what bounds
// it, and a test. After a change of a kernel's parameters, of their structs or of a constant that Go code reads, run
// go generate. The .cu files are embedded, compiled by NVRTC at first use and cached. Imports point down: bench,
// cuda, selftest, operations, driver (lint_test.go holds this).
//
// The device computes the definition's dot mode tc16 on tensor cores, so models are stored in bf16. It refuses other
// definitions.
package cuda

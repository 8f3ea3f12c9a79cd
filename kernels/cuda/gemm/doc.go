// Package gemm has the operations of the GPU for matrix products on tensor cores: MatMul, MatMulT and WeightGrad,
// dense, of groups and of interleaved heads, with weights in bf16 or in codes, and Dequantize. Files with _wgmma, and
// the kernels of quantized.cuh, are for Hopper, the others (mma.sync) for any operand and card. An operation is a .go
// file, which launches, and a .cu file of its name, which computes; kernels/cuda embeds [Ops] in its Device. It imports
// kernels and kernels/cuda/driver.
package gemm

//go:generate go run ../launchgen -I ../include

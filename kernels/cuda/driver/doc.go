// Package driver is everything that CUDA asks for below an operation: contexts, memory, kernels compiled by NVRTC and
// cached, launches, staging buffers, graphs, tensor maps and event timing. It alone has cgo of the project, in
// driver.go, cubin.go and tensormap.go; it is built with the tag cuda. Operations (kernels/cuda/...) embed a [Context]
// and launch by it. It imports kernels.
package driver

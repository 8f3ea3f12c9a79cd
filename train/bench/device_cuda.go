//go:build cuda

package bench

import (
	"fmt"
	"slices"
	"time"

	"lockstep/kernels"
	"lockstep/kernels/cuda"
	"lockstep/kernels/cuda/bench"
)

// timeKernels times the kernels of a GPU, each for about that long; a copy in its memory comes first.
func timeKernels(dev kernels.Device, each time.Duration) (lines []kernelTime, err error) {
	d, ok := dev.(*cuda.Device)
	if !ok {
		return nil, fmt.Errorf("bench cuda measures GPUs, not %s", dev.Name())
	}
	for _, r := range slices.Concat([]bench.Result{bench.Copy(d, each)}, bench.Rows(d, each),
		bench.MatMul(d, each, bench.MatMulCases), bench.Quantized(d, each, bench.QuantizedCases),
		bench.Codes(d, each, bench.CodesCases), bench.Attention(d, each, bench.AttentionCases),
		bench.Sparse(d, each, bench.SparseCases), bench.Recurrent(d, each, bench.RecurrentCases)) {
		lines = append(lines, kernelTime{Name: r.Case, Seconds: r.Seconds, flops: r.Flops, bytes: r.Bytes,
			note: r.Note, peer: r.Peer})
	}
	return lines, nil
}

// codesDigests are those of outputs of a product of codes, on one of the GPUs that timeKernels times.
func codesDigests(dev kernels.Device) []string { return bench.CodesDigests(dev.(*cuda.Device)) }

// copyRateCUDA is the bytes a second, read and written, of a copy in the card's memory.
func copyRateCUDA(dev kernels.Device, each time.Duration) float64 {
	r := bench.Copy(dev.(*cuda.Device), each)
	return r.Bytes / r.Seconds
}

// dispatchedCUDA is the device, with visit called after each Dispatch. Repeated sequences are launched call by call
// instead of as graphs, because visit may wait for results.
func dispatchedCUDA(dev kernels.Device, visit func(p kernels.Plan)) kernels.Device {
	return visitedCUDA{dev.(*cuda.Device), visit}
}

type visitedCUDA struct {
	*cuda.Device
	visit func(p kernels.Plan)
}

func (d visitedCUDA) Dispatch(p kernels.Plan, experts kernels.Tensor, packs []int32) {
	d.Device.Dispatch(p, experts, packs)
	d.visit(p)
}

func (d visitedCUDA) Repeat(_ string, body func()) { body() }

//go:build !cuda

package bench

import (
	"errors"
	"time"

	"lockstep/kernels"
)

// errNoCUDA is returned by what a build without CUDA cannot measure.
var errNoCUDA = errors.New("this build has only cpu, run make cuda to build with CUDA")

func timeKernels(kernels.Device, time.Duration) ([]kernelTime, error) { return nil, errNoCUDA }

func codesDigests(kernels.Device) []string { panic(errNoCUDA) }

func copyRateCUDA(kernels.Device, time.Duration) float64 { panic(errNoCUDA) }

func dispatchedCUDA(kernels.Device, func(kernels.Plan)) kernels.Device { panic(errNoCUDA) }

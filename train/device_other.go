//go:build !cuda

package train

import (
	"errors"
	"time"

	"lockstep/kernels"
)

var errNoCUDA = errors.New("device cuda: this build has only cpu, make cuda builds one with CUDA")

func openCUDA(kernels.Definition) (kernels.Device, error) { return nil, errNoCUDA }

func openGauge() (kernels.Gauge, error) { return nil, errNoCUDA }

func describeCUDA() []string { return []string{errNoCUDA.Error()} }

func timeKernels(kernels.Device, time.Duration) ([]kernelTime, error) { return nil, errNoCUDA }

func copyRateCUDA(kernels.Device, time.Duration) float64 { panic(errNoCUDA) }

func dispatchedCUDA(kernels.Device, func(kernels.Plan)) kernels.Device { panic(errNoCUDA) }

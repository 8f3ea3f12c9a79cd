//go:build !cuda

package devices

import (
	"errors"

	"lockstep/kernels"
)

// errNoCUDA is returned for a GPU by a build without CUDA.
var errNoCUDA = errors.New("device cuda: this build has only cpu, run make cuda to build with CUDA")

func openCUDA(kernels.Definition, int) (kernels.Device, error) { return nil, errNoCUDA }

func prepareCUDA(kernels.Definition, string) (string, error) { return "", errNoCUDA }

func countGPUs() (int, error) { return 0, errNoCUDA }

func openCUDAGauge(int) (kernels.Gauge, error) { return nil, errNoCUDA }

func listCUDA() []string { return []string{errNoCUDA.Error()} }

//go:build !cuda

package train

import (
	"errors"

	"lockstep/kernels"
)

var errNoCUDA = errors.New("device cuda: this build has only cpu, make cuda builds one with CUDA")

func openCUDA(kernels.Definition) (kernels.Device, error) { return nil, errNoCUDA }

func openGauge() (kernels.Gauge, error) { return nil, errNoCUDA }

func describeCUDA() []string { return []string{errNoCUDA.Error()} }

//go:build !cuda

package train

import (
	"errors"

	"lockstep/kernels"
)

func openCUDA(kernels.Definition) (kernels.Device, error) {
	return nil, errors.New("device cuda: this build has only cpu, make cuda builds one with CUDA")
}

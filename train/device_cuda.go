//go:build cuda

package train

import (
	"fmt"

	"lockstep/kernels"
	"lockstep/kernels/cuda"
)

// openCUDA opens the first GPU.
func openCUDA(def kernels.Definition) (kernels.Device, error) {
	dev, err := cuda.New(def, 0)
	if err != nil {
		return nil, fmt.Errorf("device cuda: %w", err)
	}
	return dev, nil
}

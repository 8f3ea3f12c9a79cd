package train

import (
	"fmt"

	"lockstep/kernels"
	"lockstep/kernels/cpu"
)

// Devices describes what --device can name on this machine, a line each. A build without CUDA has a line that says so.
func Devices() ([]string, error) {
	dev, err := cpu.New(kernels.Default(), cpu.Options{})
	if err != nil {
		return nil, fmt.Errorf("device cpu: %w", err)
	}
	defer dev.Close()
	return append([]string{dev.Name()}, describeCUDA()...), nil
}

//go:build cuda

package devices

import (
	"fmt"

	"lockstep/kernels"
	"lockstep/kernels/cuda"
	"lockstep/kernels/cuda/driver"
)

// firstGPU is the number of the GPU that is opened.
const firstGPU = 0

func openCUDA(def kernels.Definition) (kernels.Device, error) {
	if def.Dot != kernels.DotTC16 {
		return nil, fmt.Errorf("device cuda: computes dot tc16 on bf16, set definition.dot = %q and model.dtype = "+
			"\"bf16\": the CPU gives the same bits", kernels.DotTC16)
	}
	dev, err := cuda.New(def, firstGPU)
	if err != nil {
		return nil, fmt.Errorf("device cuda: %w", err)
	}
	return dev, nil
}

func openCUDAGauge() (kernels.Gauge, error) { return driver.OpenGauge(firstGPU) }

func listCUDA() (lines []string) {
	cards, err := driver.Cards()
	if err != nil {
		return []string{fmt.Sprintf("no GPU: %v", err)}
	}
	for i, c := range cards {
		lines = append(lines, fmt.Sprintf("cuda %d: %v", i, c))
	}
	return lines
}

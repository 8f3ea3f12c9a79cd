//go:build cuda

package devices

import (
	"fmt"

	"gorgonia.org/cu"

	"lockstep/kernels"
	"lockstep/kernels/cuda"
	"lockstep/kernels/cuda/driver"
)

func openCUDA(def kernels.Definition, gpu int) (kernels.Device, error) {
	if def.Dot != kernels.DotTC16 {
		return nil, fmt.Errorf("device cuda: computes dot tc16 on bf16, set definition.dot = %q and model.dtype = "+
			"\"bf16\": the CPU gives the same bits", kernels.DotTC16)
	}
	dev, err := cuda.New(def, gpu)
	if err != nil {
		return nil, fmt.Errorf("device cuda: %w", err)
	}
	return dev, nil
}

func prepareCUDA(def kernels.Definition, arch string) (line string, err error) {
	folder, objects, err := cuda.Prepare(def, arch)
	if err != nil {
		return "", fmt.Errorf("device cuda: %w", err)
	}
	return fmt.Sprintf("%d modules for %s, exp2 %s, in %s", objects, arch, def.Exp2, folder), nil
}

// countGPUs is how many GPUs the driver has.
func countGPUs() (int, error) {
	n, err := cu.NumDevices()
	if err != nil {
		return 0, fmt.Errorf("device cuda: %w", err)
	}
	return n, nil
}

func openCUDAGauge(gpu int) (kernels.Gauge, error) { return driver.OpenGauge(gpu) }

func listCUDA() (lines []string) {
	cards, err := driver.Cards()
	if err != nil {
		return []string{fmt.Sprintf("no GPU: %v", err)}
	}
	for i, c := range cards {
		lines = append(lines, fmt.Sprintf("cuda %d: %v", i, c))
	}
	peers, err := driver.Peers()
	if err != nil {
		return append(lines, fmt.Sprintf("copies between GPUs: %v", err))
	}
	for i, of := range peers {
		lines = append(lines, fmt.Sprintf("cuda %d: %s", i, driver.Describe(of)))
	}
	return lines
}

//go:build cuda

package driver

import (
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"gorgonia.org/cu"

	"lockstep/kernels"
)

// gaugeEvery is the least time between two questions to the driver; its own sampling period is no shorter.
const gaugeEvery = time.Second

// Gauge reads the usage of one GPU from NVML. It is not safe for concurrent use.
type Gauge struct {
	card nvml.Device
	last kernels.Usage
	read time.Time
}

var _ kernels.Gauge = (*Gauge)(nil)

// OpenGauge finds the GPU that [Open] opens by the same ordinal.
func OpenGauge(ordinal int) (*Gauge, error) {
	address, err := busAddress(ordinal)
	if err != nil {
		return nil, fmt.Errorf("GPU %d: %w", ordinal, err)
	}
	if err := startNVML(); err != nil {
		return nil, err
	}
	card, code := nvml.DeviceGetHandleByPciBusId(address)
	if code != nvml.SUCCESS {
		return nil, fmt.Errorf("NVML: GPU %s: %w", address, code)
	}
	return &Gauge{card: card}, nil
}

// busAddress is the GPU's place on the PCI bus: CUDA and NVML may count GPUs differently.
func busAddress(ordinal int) (string, error) {
	card, err := cu.GetDevice(ordinal)
	if err != nil {
		return "", err
	}
	var at [3]int
	for i, part := range []cu.DeviceAttribute{cu.PciDomainID, cu.PciBusID, cu.PciDeviceID} {
		if at[i], err = card.Attribute(part); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%08x:%02x:%02x.0", at[0], at[1], at[2]), nil
}

// Usage is at most a second old.
func (g *Gauge) Usage() (kernels.Usage, error) {
	if time.Since(g.read) < gaugeEvery {
		return g.last, nil
	}
	rates, code := g.card.GetUtilizationRates()
	memory, memoryCode := g.card.GetMemoryInfo()
	milliwatts, powerCode := g.card.GetPowerUsage()
	if err := firstFailure(code, memoryCode, powerCode); err != nil {
		return kernels.Usage{}, err
	}
	g.last = kernels.Usage{Busy: float64(rates.Gpu) / 100, Memory: int64(memory.Used), Watts: float64(milliwatts) /
		1000}
	g.read = time.Now()
	return g.last, nil
}

// startNVML loads the driver's library; doing so again is free.
func startNVML() error {
	if code := nvml.Init(); code != nvml.SUCCESS {
		return fmt.Errorf("NVML: %w", code)
	}
	return nil
}

func firstFailure(codes ...nvml.Return) error {
	for _, code := range codes {
		if code != nvml.SUCCESS {
			return fmt.Errorf("NVML: %w", code)
		}
	}
	return nil
}

//go:build cuda

package driver

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Card is what NVML knows of a GPU.
type Card struct {
	Name, Driver      string
	Memory, MemoryMax uint64 // bytes taken and there
	Power, PowerMax   uint32 // milliwatts drawn and allowed
	Clock, ClockMax   uint32 // MHz of the multiprocessors
	MemoryClock       uint32 // MHz
	Temperature       uint32 // degrees Celsius
	Busy              uint32 // percent of the last sampling period with a kernel running
	Links             int    // NVLinks that are up
}

// Cards lists the GPUs of this machine in NVML's order.
func Cards() ([]Card, error) {
	if err := startNVML(); err != nil {
		return nil, err
	}
	driver, driverCode := nvml.SystemGetDriverVersion()
	count, code := nvml.DeviceGetCount()
	if err := firstFailure(driverCode, code); err != nil {
		return nil, err
	}
	cards := make([]Card, count)
	for i := range cards {
		d, code := nvml.DeviceGetHandleByIndex(i)
		if code != nvml.SUCCESS {
			return nil, fmt.Errorf("NVML: GPU %d: %w", i, code)
		}
		if err := cards[i].ask(d); err != nil {
			return nil, fmt.Errorf("GPU %d: %w", i, err)
		}
		cards[i].Driver = driver
	}
	return cards, nil
}

// ask fills in all but the driver.
func (c *Card) ask(d nvml.Device) error {
	var codes [9]nvml.Return
	var memory nvml.Memory
	var rates nvml.Utilization
	c.Name, codes[0] = d.GetName()
	memory, codes[1] = d.GetMemoryInfo()
	c.Power, codes[2] = d.GetPowerUsage()
	c.PowerMax, codes[3] = d.GetEnforcedPowerLimit()
	c.Clock, codes[4] = d.GetClockInfo(nvml.CLOCK_SM)
	c.ClockMax, codes[5] = d.GetMaxClockInfo(nvml.CLOCK_SM)
	c.MemoryClock, codes[6] = d.GetClockInfo(nvml.CLOCK_MEM)
	c.Temperature, codes[7] = d.GetTemperature(nvml.TEMPERATURE_GPU)
	rates, codes[8] = d.GetUtilizationRates()
	c.Memory, c.MemoryMax, c.Busy = memory.Used, memory.Total, rates.Gpu
	for link := range nvml.NVLINK_MAX_LINKS {
		// a card without the link has no state of it
		if state, code := d.GetNvLinkState(link); code == nvml.SUCCESS && state == nvml.FEATURE_ENABLED {
			c.Links++
		}
	}
	return firstFailure(codes[:]...)
}

// String is one line.
func (c Card) String() string {
	const gib = 1 << 30
	return fmt.Sprintf("%s, driver %s: %.1f of %.1f GiB, %.0f of %.0f W, %d of %d MHz (memory %d MHz), %d C, %d%% "+
		"busy, %d NVLinks",
		c.Name, c.Driver, float64(c.Memory)/gib, float64(c.MemoryMax)/gib, float64(c.Power)/1000,
		float64(c.PowerMax)/1000, c.Clock, c.ClockMax, c.MemoryClock, c.Temperature, c.Busy, c.Links)
}

// Package devices lists the devices of this machine and opens them by a plain struct, whoever asks: a run, a benchmark,
// a server or a command. No other package opens one. It imports kernels and the packages of devices: kernels/cpu,
// kernels/broken and, under the build tag cuda, kernels/cuda.
package devices

import (
	"errors"
	"fmt"
	"runtime"

	"lockstep/kernels"
	"lockstep/kernels/broken"
	"lockstep/kernels/cpu"
)

// Kinds of devices.
const (
	CPU  = "cpu"
	CUDA = "cuda"
)

// Config names a device and the arithmetic that it computes by.
type Config struct {
	Kind       string             // CPU or CUDA, which is the first GPU
	ISA        string             // instruction set of the CPU, see [cpu.ISA]; "": the best; never changes a bit
	Threads    int                // of the CPU; 0: all cores; never changes a bit
	Definition kernels.Definition // see [Definition]
	Break      kernels.Break      // a rule of the definition that the device breaks; BreakNone: none
}

// Definition returns the arithmetic that a kind of device computes by unless another is asked for: that of tensor cores
// on GPUs, which have no other.
func Definition(kind string) kernels.Definition {
	def := kernels.Default()
	if kind == CUDA {
		def.Dot, def.Exp2 = kernels.DotTC16, kernels.Exp2Ex2h
	}
	return def
}

// Open opens a device. The caller closes it. The error names the kind of device, and says what to change where the
// device cannot compute by the definition.
func Open(c Config) (kernels.Device, error) {
	dev, err := open(c)
	if err != nil || c.Break == kernels.BreakNone {
		return dev, err
	}
	wrong, err := broken.New(dev, c.Break)
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	return wrong, nil
}

// OpenRanks opens a device for each of n ranks. On the CPU they share the threads. The caller closes them by closeAll.
func OpenRanks(c Config, n int) (list []kernels.Device, closeAll func() error, err error) {
	closeAll = func() (err error) {
		for _, dev := range list {
			err = errors.Join(err, dev.Close())
		}
		return err
	}
	if n > 1 {
		if c.Kind != CPU {
			return nil, nil, fmt.Errorf("device %s: want one rank: GPUs do not exchange gradients yet", c.Kind)
		}
		if c.Threads == 0 {
			c.Threads = runtime.NumCPU()
		}
		c.Threads = max(c.Threads/n, 1)
	}
	for range n {
		dev, err := Open(c)
		if err != nil {
			return nil, nil, errors.Join(err, closeAll())
		}
		list = append(list, dev)
	}
	return list, closeAll, nil
}

func open(c Config) (kernels.Device, error) {
	switch c.Kind {
	case CUDA:
		return openCUDA(c.Definition)
	case CPU:
	default:
		return nil, fmt.Errorf("device %s: want %s or %s", c.Kind, CPU, CUDA)
	}
	dev, err := cpu.New(c.Definition, cpu.Options{Threads: c.Threads, ISA: cpu.ISA(c.ISA)})
	if err != nil {
		return nil, fmt.Errorf("device %s: %w", CPU, err)
	}
	return dev, nil
}

// List describes the devices that Open can open on this machine, a line each. Where there is no GPU, or the build has
// no CUDA, a line says so.
func List() ([]string, error) {
	dev, err := open(Config{Kind: CPU, Definition: Definition(CPU)})
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	return append([]string{dev.Name()}, listCUDA()...), nil
}

// OpenGauge opens the usage counters (load, memory, power) of a device. It is nil for a kind that has none.
func OpenGauge(kind string) (kernels.Gauge, error) {
	if kind != CUDA {
		return nil, nil
	}
	return openCUDAGauge()
}

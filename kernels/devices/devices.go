// Package devices lists the devices of this machine and opens them by a plain struct, whoever asks: a run, a benchmark,
// a server or a command. No other package opens one. It imports kernels and the packages of devices: kernels/cpu,
// kernels/broken and, under the build tag cuda, kernels/cuda.
package devices

import (
	"errors"
	"fmt"
	"runtime"
	"sync"

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
	Kind       string             // CPU or CUDA
	GPU        int                // number of the GPU
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

// Count returns how many devices of a kind this machine has.
func Count(kind string) (int, error) {
	if kind == CUDA {
		return countGPUs()
	}
	return 1, nil
}

// OpenRanks opens a device for each of n ranks: a GPU each, or the CPU, whose threads they share. Where ranks may share
// GPUs, rank i has GPU i modulo their number. The caller closes them by closeAll.
func OpenRanks(c Config, n int, share bool) (list []kernels.Device, closeAll func() error, err error) {
	gpus := n
	if c.Kind == CUDA && n > 1 {
		have, err := countGPUs()
		if err != nil {
			return nil, nil, err
		}
		if n > have && !share {
			return nil, nil, fmt.Errorf("%d ranks take a GPU each, and this machine has %d: set parallel.ranks to as "+
				"many or fewer", n, have)
		}
		gpus = min(n, have)
	}
	if c.Kind == CPU && n > 1 {
		if c.Threads == 0 {
			c.Threads = runtime.NumCPU()
		}
		c.Threads = max(c.Threads/n, 1)
	}
	list, errs := make([]kernels.Device, n), make([]error, n)
	closeAll = func() (err error) {
		for _, dev := range list {
			if dev != nil {
				err = errors.Join(err, dev.Close())
			}
		}
		return err
	}
	list[0], errs[0] = Open(c) // compiles the kernels for all
	var others sync.WaitGroup
	for i := 1; i < n && errs[0] == nil; i++ {
		of := c
		of.GPU += i % gpus
		others.Go(func() { list[i], errs[i] = Open(of) })
	}
	others.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, nil, errors.Join(err, closeAll())
		}
	}
	return list, closeAll, nil
}

func open(c Config) (kernels.Device, error) {
	switch c.Kind {
	case CUDA:
		return openCUDA(c.Definition, c.GPU)
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

// Prepare compiles the kernels of a GPU's architecture, as sm_90a, into the user's cache, as the first Open on such a
// GPU would, and says in a line what is there. It takes no GPU.
func Prepare(def kernels.Definition, arch string) (line string, err error) {
	return prepareCUDA(def, arch)
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

// OpenGauges opens the usage counters (load, memory, power) of the devices that [OpenRanks] opens for n ranks. There
// are none for a kind that has none.
func OpenGauges(kind string, n int) (list []kernels.Gauge, err error) {
	if kind != CUDA {
		return nil, nil
	}
	have, err := countGPUs()
	if err != nil {
		return nil, err
	}
	for i := range n {
		g, err := openCUDAGauge(i % have)
		if err != nil {
			return nil, err
		}
		list = append(list, g)
	}
	return list, nil
}

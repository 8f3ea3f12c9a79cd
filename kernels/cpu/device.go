// Package cpu is the reference device: every operation of the definition in Go and Go assembly, on all cores, with the
// same bits on AVX-512, AVX2 and portable code. An operation's file holds its forward and its backward; packages below
// hold the loops that assembly speeds up: gemm (matrix tiles) and vec (rows). It imports kernels, kernels/meta and what
// lies below them, nothing else of the project.
package cpu

import (
	"fmt"
	"math/rand/v2"
	"runtime"

	"golang.org/x/sys/cpu"

	"lockstep/kernels"
	"lockstep/kernels/cpu/gemm"
	"lockstep/kernels/cpu/vec"
)

// ISA is an instruction set that the device's assembly is written for.
type ISA string

const (
	Auto     ISA = "auto" // the best that this machine has
	AVX512   ISA = "avx512"
	AVX2     ISA = "avx2"
	Portable ISA = "portable"
)

// Options are threads and instruction set. They never change a bit.
type Options struct {
	Threads int // 0: all cores
	ISA     ISA // "": Auto
	// DelayCopies is the seed of the moments at which copies from other devices are carried out, see
	// [Device.CopyPeer]; 0: at once. For tests: what does not wait for a copy reads NaN.
	DelayCopies uint64
	Few         int // [Device.FewBytes]
}

// Device is the CPU. Its memory is host memory, and operations are done when they return.
type Device struct {
	def    kernels.Definition
	isa    ISA
	pool   *pool
	mm     *gemm.Engine // by the definition's dot step
	fma    *gemm.Engine // of recurrences, whose products are fp32
	vec    *vec.Ops
	mapped [][]byte       // large allocations, off Go's heap
	small  [][]byte       // small allocations, kept alive
	bytes  int            // of Alloc
	pinned int            // bytes of Pin
	delay  *rand.Rand     // of copies; nil: none
	few    int            // bytes
	copies []*delayedCopy // of this device that have not been seen to be done
}

var _ interface {
	kernels.Device
	kernels.DeltaNet
	kernels.Mamba
	kernels.Counter
	kernels.Planner
	kernels.Transfers
	kernels.HostMemory
} = (*Device)(nil)

const mostThreads = 4096

// New makes a CPU device. It fails on a definition it does not implement and on an instruction set that the machine
// lacks.
func New(def kernels.Definition, o Options) (*Device, error) {
	if err := def.Validate(); err != nil {
		return nil, err
	}
	if o.Threads < 0 || o.Threads > mostThreads {
		return nil, fmt.Errorf("%d threads: want 0 (all cores) to %d", o.Threads, mostThreads)
	}
	if o.Threads == 0 {
		o.Threads = runtime.NumCPU()
	}
	isa, err := choose(o.ISA)
	if err != nil {
		return nil, err
	}
	return &Device{def: def, isa: isa, pool: newPool(o.Threads), mm: gemm.New(string(isa), def.Dot),
		fma: gemm.New(string(isa), kernels.DotFMA), vec: vec.New(string(isa), def.Exp2),
		delay: newDelay(o.DelayCopies), few: o.Few}, nil
}

func choose(want ISA) (ISA, error) {
	has := map[ISA]bool{
		AVX512: cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VL && cpu.X86.HasAVX512DQ &&
			cpu.X86.HasFMA,
		AVX2:     cpu.X86.HasAVX2 && cpu.X86.HasFMA,
		Portable: true,
	}
	switch want {
	case "", Auto:
		for _, isa := range []ISA{AVX512, AVX2} {
			if has[isa] {
				return isa, nil
			}
		}
		return Portable, nil
	case AVX512, AVX2, Portable:
		if !has[want] {
			return "", fmt.Errorf("this machine has no %s", want)
		}
		return want, nil
	}
	return "", fmt.Errorf("instruction set %q: want auto, avx512, avx2 or portable", want)
}

// Name is "cpu" with the instruction set and the number of threads.
func (d *Device) Name() string { return fmt.Sprintf("cpu (%s, %d threads)", d.isa, d.pool.threads) }

// Definition is the arithmetic that the device computes by.
func (d *Device) Definition() kernels.Definition { return d.def }

// Spare is 64 MiB, about the size of the caches of a laptop.
func (d *Device) Spare() int { return kernels.SpareCPU }

// Write copies raw elements into a contiguous tensor, on all threads if there are many.
func (d *Device) Write(dst kernels.Tensor, src []byte) {
	to := dst.Raw()
	if len(to) != dst.Bytes() || len(src) != dst.Bytes() {
		panic(fmt.Sprintf("cpu: %d bytes into %s", len(src), dst))
	}
	d.pool.each(len(src), 1<<20, func(_, i, j int) { copy(to[i:j], src[i:j]) })
}

// Read copies raw elements out of a contiguous tensor.
func (d *Device) Read(dst []byte, src kernels.Tensor) {
	if copy(dst, src.Raw()) != src.Bytes() || len(dst) != src.Bytes() {
		panic(fmt.Sprintf("cpu: %s into %d bytes", src, len(dst)))
	}
}

// Sync returns at once: operations are done when they return.
func (d *Device) Sync() error { return nil }

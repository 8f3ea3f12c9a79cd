//go:build cuda

package cuda

import (
	"fmt"
	"regexp"
	"strings"
	"sync"

	"gorgonia.org/cu"

	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/kernels/cuda/attention"
	"lockstep/kernels/cuda/driver"
	"lockstep/kernels/cuda/gemm"
	"lockstep/kernels/cuda/include"
	"lockstep/kernels/cuda/moe"
	"lockstep/kernels/cuda/recurrent"
	"lockstep/kernels/cuda/rows"
	"lockstep/kernels/cuda/sample"
	"lockstep/kernels/cuda/selftest"
)

// Operations, by the package that has them.
type (
	gemmOps      = gemm.Ops
	attentionOps = attention.Ops
	moeOps       = moe.Ops
	recurrentOps = recurrent.Ops
	rowsOps      = rows.Ops
	sampleOps    = sample.Ops
	checks       = selftest.Checks
)

// sources are the kernels of all operations.
var sources = driver.Sources{include.Sources, gemm.Sources, attention.Sources, moe.Sources, recurrent.Sources,
	rows.Sources, sample.Sources, selftest.Sources}

// Device is one GPU. Its operations are enqueued on one stream and return before they are done. A failure of the driver
// is a [kernels.Fault].
type Device struct {
	*driver.Context
	gemmOps
	attentionOps
	moeOps
	recurrentOps
	rowsOps
	sampleOps
	*checks // of the card against the CPU
}

var (
	_ kernels.Device   = (*Device)(nil)
	_ kernels.DeltaNet = (*Device)(nil)
	_ kernels.Mamba    = (*Device)(nil)

	_ kernels.SparseAttention   = (*Device)(nil)
	_ kernels.DividedAttention  = (*Device)(nil)
	_ kernels.IndexerLoss       = (*Device)(nil)
	_ kernels.QuantizedProducts = (*Device)(nil)
	_ kernels.QuantizedCache    = (*Device)(nil)
	_ kernels.MemoryReader      = (*Device)(nil)
	_ kernels.Planner           = (*Device)(nil)
	_ kernels.Transfers         = (*Device)(nil)
	_ kernels.Workspacer        = (*Device)(nil)
	_ kernels.HostMemory        = (*Device)(nil)
)

// New opens a GPU. It fails on a definition that the device does not implement and where there is no card or driver.
func New(def kernels.Definition, ordinal int) (*Device, error) {
	if err := def.Validate(); err != nil {
		return nil, err
	}
	if def.Dot != kernels.DotTC16 {
		return nil, fmt.Errorf("dot mode %q: a GPU supports only %q; the CPU supports it too", def.Dot,
			kernels.DotTC16)
	}
	c, err := driver.Open(def, ordinal, sources)
	if err != nil {
		return nil, fmt.Errorf("GPU %d: %w", ordinal, err)
	}
	d := newDevice(c)
	if err := d.Attempt(d.CheckCard); err != nil {
		return nil, fmt.Errorf("GPU %d: %w", ordinal, err)
	}
	return d, nil
}

// Prepare compiles the kernels of an architecture, as sm_90a, by a definition into the user's cache, where New finds
// them, and returns its folder and how many objects they are. It takes no GPU.
func Prepare(def kernels.Definition, arch string) (folder string, objects int, err error) {
	if err := def.Validate(); err != nil {
		return "", 0, err
	}
	if !architecture.MatchString(arch) {
		return "", 0, fmt.Errorf("architecture %q: want sm_90a (H100, H200), sm_100a (B200) or a later one", arch)
	}
	return driver.Prepare(sources, arch, def)
}

var architecture = regexp.MustCompile(`^sm_(9|1[0-9])[0-9]a$`)

func newDevice(c *driver.Context) *Device {
	d := &Device{Context: c, gemmOps: gemm.New(c), attentionOps: attention.New(c), moeOps: moe.New(c),
		recurrentOps: recurrent.New(c), rowsOps: rows.New(c), sampleOps: sample.New(c)}
	d.checks = selftest.New(c, d)
	return d
}

// Name is "cuda" with the name of the card and the units that passed the self-test.
func (d *Device) Name() string {
	return fmt.Sprintf("cuda (%s; equal to the definition: %s)", d.CardName(), strings.Join(d.Passed(), ", "))
}

// Host is the host's cores, the same for all GPUs.
func (d *Device) Host() kernels.Device { return host() }

// host has the threads of the process. What it computes does not depend on the definition.
var host = sync.OnceValue(func() kernels.Device {
	d, err := cpu.New(kernels.Default(), cpu.Options{})
	if err != nil {
		panic(err) // none of the options is a choice
	}
	return d
})

// Spare is that of a GPU.
func (d *Device) Spare() int { return kernels.SpareGPU }

// Write copies raw elements into a contiguous tensor. In the body of a repeated sequence a kernel copies them, which
// graphs hold.
func (d *Device) Write(dst kernels.Tensor, src []byte) {
	if !d.Recording() || len(src) == 0 || len(src) != dst.Bytes() || !dst.Contiguous() {
		d.Context.Write(dst, src)
		return
	}
	from := dst
	from.Data = driver.Pointer(cu.DevicePtr(driver.Stage(d.Context, src)))
	d.Copy(dst, from)
}

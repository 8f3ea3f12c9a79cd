//go:build cuda

package cuda

import (
	"embed"
	"fmt"
	"strings"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

//go:embed *.cu *.cuh
var sources embed.FS

// Device is one GPU. Its operations are enqueued on one stream and return before they are done. A failure of the driver
// is a [kernels.Fault].
type Device struct {
	*driver.Context
	admitted []string // the card's units that equal the definition
	// of attention, sparse attention and recurrences that were tried: nil where they equal the definition
	shapes map[string]error
	plans  attentionPlans // of attention
}

var (
	_ kernels.Device   = (*Device)(nil)
	_ kernels.DeltaNet = (*Device)(nil)
	_ kernels.Mamba    = (*Device)(nil)

	_ kernels.SparseAttention = (*Device)(nil)
	_ kernels.IndexLearning   = (*Device)(nil)
	_ kernels.Rounder         = (*Device)(nil)
	_ kernels.Planner         = (*Device)(nil)
	_ kernels.Workspacer      = (*Device)(nil)
)

// New opens a GPU. It fails on a definition that the device does not implement and where there is no card or driver.
func New(def kernels.Definition, ordinal int) (*Device, error) {
	if err := def.Validate(); err != nil {
		return nil, err
	}
	if def.Dot != kernels.DotTC16 {
		return nil, fmt.Errorf("dot mode %q: the GPU computes %q, and so does the CPU where that is asked for", def.Dot,
			kernels.DotTC16)
	}
	c, err := driver.Open(def, ordinal, driver.Sources{sources})
	if err != nil {
		return nil, fmt.Errorf("GPU %d: %w", ordinal, err)
	}
	d := newDevice(c)
	if err := d.Attempt(d.admit); err != nil {
		return nil, fmt.Errorf("GPU %d: %w", ordinal, err)
	}
	return d, nil
}

func newDevice(c *driver.Context) *Device {
	return &Device{Context: c, shapes: map[string]error{}, plans: attentionPlans{}}
}

// Name is "cuda" with the name of the card and what it was admitted with.
func (d *Device) Name() string {
	return fmt.Sprintf("cuda (%s; equal to the definition: %s)", d.CardName(), strings.Join(d.admitted, ", "))
}

// Spare is 512 MiB: rows of logits that fill the card with tiles.
func (d *Device) Spare() int { return 512 << 20 }

// Write copies raw elements into a contiguous tensor. In the body of a repeated sequence a kernel copies them, which
// graphs hold.
func (d *Device) Write(dst kernels.Tensor, src []byte) {
	if !d.Recording() || len(src) == 0 || len(src) != dst.Bytes() || !dst.Contiguous() {
		d.Context.Write(dst, src)
		return
	}
	from := dst
	from.Data = driver.Pointer(driver.Stage(d.Context, src))
	d.Copy(dst, from)
}

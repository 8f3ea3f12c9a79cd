// Package broken makes a device break one rule of the definition, so that a proof can be seen to fail. The wrong
// operation is put together from those of the device below, or computed on the host, the same for every device. Results
// then depend on the layout of the batch: only calls of few rows, or sequences in a cache, are computed otherwise. Of
// the project it imports kernels alone.
package broken

import (
	"fmt"
	"slices"

	"lockstep/kernels"
)

// few is the number of rows up to which a call is computed wrongly.
const few = 4

// operations are what every device has.
type operations interface {
	kernels.Device
	kernels.DeltaNet
	kernels.Mamba
	kernels.IndexLearning
}

// Device is another device that breaks one rule. It does not repeat sequences: wrong operations may read results back.
type Device struct {
	operations
	rule   kernels.Break
	temp   *kernels.Arena
	tables map[kernels.Tensor]kernels.Tensor // rope tables, and what was made of them
	kept   *kernels.Arena                    // of those
}

var _ interface {
	kernels.Repeater
	kernels.Attender
	kernels.SparseAttender
	kernels.IndexLearner
	kernels.Recurrer
	kernels.Bounded
	kernels.Counter
} = (*Device)(nil)

// New breaks a rule of a device, which keeps to all others.
func New(dev kernels.Device, rule kernels.Break) (*Device, error) {
	if !slices.Contains(kernels.Breaks, rule) {
		return nil, fmt.Errorf("no rule %q to break: want one of %q", rule, kernels.Breaks)
	}
	all, ok := dev.(operations)
	if !ok {
		return nil, fmt.Errorf("the device %s lacks operations: no rule can be broken on it", dev.Name())
	}
	return &Device{
		operations: all, rule: rule, temp: kernels.NewArena(dev),
		tables: map[kernels.Tensor]kernels.Tensor{}, kept: kernels.NewArena(dev),
	}, nil
}

// Definition names the rule that is broken, and so has a digest of its own.
func (d *Device) Definition() kernels.Definition {
	def := d.operations.Definition()
	def.Break = d.rule
	return def
}

// breaks reports whether a call of so many rows breaks the rule.
func (d *Device) breaks(rule kernels.Break, rows int) bool {
	return d.rule == rule && 0 < rows && rows <= few
}

// scratch is for one operation: it ends with the call of release.
func (d *Device) scratch() (mem *kernels.Arena, release func()) {
	mark := d.temp.Mark()
	return d.temp, func() { d.temp.Release(mark) }
}

// Repeat carries out body call by call.
func (d *Device) Repeat(_ string, body func()) { body() }

// Attends is what the device below says of a shape.
func (d *Device) Attends(a kernels.Attn) error {
	if below, ok := d.operations.(kernels.Attender); ok {
		return below.Attends(a)
	}
	return nil
}

// AttendsSparsely is what the device below says of a shape.
func (d *Device) AttendsSparsely(a kernels.Attn, x kernels.Index) error {
	if below, ok := d.operations.(kernels.SparseAttender); ok {
		return below.AttendsSparsely(a, x)
	}
	return nil
}

// LearnsIndex is what the device below says of a shape.
func (d *Device) LearnsIndex(a kernels.Attn, x kernels.Index) error {
	if below, ok := d.operations.(kernels.IndexLearner); ok {
		return below.LearnsIndex(a, x)
	}
	return nil
}

// Recurs is what the device below says of a shape.
func (d *Device) Recurs(r kernels.Recurrence, delta bool) error {
	if below, ok := d.operations.(kernels.Recurrer); ok {
		return below.Recurs(r, delta)
	}
	return nil
}

// Available is the memory of the device below.
func (d *Device) Available() int {
	if below, ok := d.operations.(kernels.Bounded); ok {
		return below.Available()
	}
	return 0
}

// Counts are those of the device below.
func (d *Device) Counts() kernels.Counts {
	if below, ok := d.operations.(kernels.Counter); ok {
		return below.Counts()
	}
	return kernels.Counts{}
}

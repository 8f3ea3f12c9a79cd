// Package broken wraps a device and breaks one rule of the definition, to show that a proof of exactness fails then.
// The wrong operation is composed of operations of the wrapped device, or computed on the host, so it is the same for
// every device. Its results depend on the layout of the batch: only calls of few rows, or sequences in a cache, are
// computed differently, and with BreakRankSums rows that are read from several ranks. Of the project it imports kernels
// only.
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
	kernels.Transfers
	kernels.DeltaNet
	kernels.Mamba
	kernels.IndexerLoss
	kernels.QuantizedProducts
}

// Device wraps another device and breaks one rule. It does not replay sequences, since wrong operations may read
// results back.
type Device struct {
	operations
	rule   kernels.Break
	temp   *kernels.Arena
	tables map[kernels.Tensor]kernels.Tensor // rope tables and their rounded copies
	kept   *kernels.Arena                    // memory of the copies
}

var _ interface {
	kernels.Repeater
	kernels.AttentionChecker
	kernels.SparseAttentionChecker
	kernels.IndexerLossChecker
	kernels.RecurrenceChecker
	kernels.Bounded
	kernels.Counter
} = (*Device)(nil)

// New wraps a device to break one rule. It returns an error for an unknown rule and for a device that lacks operations.
func New(dev kernels.Device, rule kernels.Break) (*Device, error) {
	if !slices.Contains(kernels.Breaks, rule) {
		return nil, fmt.Errorf("no rule %q: want one of %q", rule, kernels.Breaks)
	}
	all, ok := dev.(operations)
	if !ok {
		return nil, fmt.Errorf("device %s lacks operations that broken rules are made of", dev.Name())
	}
	return &Device{
		operations: all, rule: rule, temp: kernels.NewArena(dev),
		tables: map[kernels.Tensor]kernels.Tensor{}, kept: kernels.NewArena(dev),
	}, nil
}

// Definition is that of the wrapped device with the broken rule, and so has another digest.
func (d *Device) Definition() kernels.Definition {
	def := d.operations.Definition()
	def.Break = d.rule
	return def
}

// breaks reports whether a call of this many rows breaks the rule.
func (d *Device) breaks(rule kernels.Break, rows int) bool {
	return d.rule == rule && 0 < rows && rows <= few
}

// scratch is memory of one operation, until release is called.
func (d *Device) scratch() (mem *kernels.Arena, release func()) {
	mark := d.temp.Mark()
	return d.temp, func() { d.temp.Release(mark) }
}

// Repeat runs body, operation by operation.
func (d *Device) Repeat(_ string, body func()) { body() }

// CheckAttention forwards to the wrapped device.
func (d *Device) CheckAttention(a kernels.Attn) error {
	if below, ok := d.operations.(kernels.AttentionChecker); ok {
		return below.CheckAttention(a)
	}
	return nil
}

// CheckSparseAttention forwards to the wrapped device.
func (d *Device) CheckSparseAttention(a kernels.Attn, x kernels.Index) error {
	if below, ok := d.operations.(kernels.SparseAttentionChecker); ok {
		return below.CheckSparseAttention(a, x)
	}
	return nil
}

// CheckIndexerLoss forwards to the wrapped device.
func (d *Device) CheckIndexerLoss(a kernels.Attn, x kernels.Index) error {
	if below, ok := d.operations.(kernels.IndexerLossChecker); ok {
		return below.CheckIndexerLoss(a, x)
	}
	return nil
}

// CheckRecurrence forwards to the wrapped device.
func (d *Device) CheckRecurrence(r kernels.Recurrence, delta bool) error {
	if below, ok := d.operations.(kernels.RecurrenceChecker); ok {
		return below.CheckRecurrence(r, delta)
	}
	return nil
}

// Available is the memory left on the wrapped device.
func (d *Device) Available() int {
	if below, ok := d.operations.(kernels.Bounded); ok {
		return below.Available()
	}
	return 0
}

// Counts are those of the wrapped device.
func (d *Device) Counts() kernels.Counts {
	if below, ok := d.operations.(kernels.Counter); ok {
		return below.Counts()
	}
	return kernels.Counts{}
}

//go:build cuda

package cuda

import "lockstep/kernels"

// metaDevice is a Device that makes no call of the driver: its operations ask for the workspaces that they would use.
type metaDevice struct {
	*Device
	of *Device // that it stands for
}

// Meta is a device that takes what this one takes. It has nothing but the workspace yet.
func (d *Device) Meta() kernels.Device {
	m := newDevice(d.Context.Meta())
	m.checks = d.checks
	return metaDevice{m, d}
}

// checked takes over the size of the workspace after a check on the card.
func (d metaDevice) checked(err error) error {
	d.Grown(d.of.Workspace())
	return err
}

// CheckAttention checks on the card, once for all devices that stand for it.
func (d metaDevice) CheckAttention(a kernels.Attn) error { return d.checked(d.of.CheckAttention(a)) }

// CheckRecurrence checks on the card.
func (d metaDevice) CheckRecurrence(r kernels.Recurrence, delta bool) error {
	return d.checked(d.of.CheckRecurrence(r, delta))
}

// CheckSparseAttention checks on the card.
func (d metaDevice) CheckSparseAttention(a kernels.Attn, x kernels.Index) error {
	return d.checked(d.of.CheckSparseAttention(a, x))
}

// CheckIndexerLoss checks on the card.
func (d metaDevice) CheckIndexerLoss(a kernels.Attn, x kernels.Index) error {
	return d.checked(d.of.CheckIndexerLoss(a, x))
}

// CheckQuantized checks on the card.
func (d metaDevice) CheckQuantized(w kernels.QuantizedWeight) error {
	return d.checked(d.of.CheckQuantized(w))
}

// CheckQuantizedCache checks on the card.
func (d metaDevice) CheckQuantizedCache(a kernels.Attn) error {
	return d.checked(d.of.CheckQuantizedCache(a))
}

// IsMeta says that operations compute nothing.
func (d metaDevice) IsMeta() {}

// Alloc is addresses without memory.
func (d metaDevice) Alloc(bytes int) []byte { return d.Reserve(bytes) }

// Read gives zeros.
func (d metaDevice) Read(dst []byte, _ kernels.Tensor) { clear(dst) }

// Write drops the values.
func (d metaDevice) Write(kernels.Tensor, []byte) {}

// Repeat carries body out.
func (d metaDevice) Repeat(_ string, body func()) { body() }

// Available is unknown.
func (d metaDevice) Available() int { return 0 }

// Close has nothing to give back.
func (d metaDevice) Close() error { return nil }

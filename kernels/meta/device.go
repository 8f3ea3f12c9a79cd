// Package meta is a device that counts memory and computes nothing, as PyTorch's of that name: the graph of a run on it
// says in milliseconds what the run takes on a real one. Its memory has addresses and nothing behind them. It imports
// kernels only.
package meta

import "lockstep/kernels"

// Device hands out sizes. Its operations do nothing, and what is read of it is zeros.
type Device struct {
	def   kernels.Definition
	spare int
	bytes int
}

var _ interface {
	kernels.Device
	kernels.DeltaNet
	kernels.Mamba
	kernels.IndexLearning
	kernels.Counter
	kernels.MetaDevice
} = (*Device)(nil)

// New is a device that stands for one of a definition whose temporaries have so many bytes (see [kernels.Device]'s
// Spare).
func New(def kernels.Definition, spare int) *Device { return &Device{def: def, spare: spare} }

// Bytes is the memory that body takes of an arena, on a device that stands for one.
func Bytes(of kernels.Device, body func(dev kernels.Device, mem *kernels.Arena)) int {
	d := New(of.Definition(), of.Spare())
	mem := kernels.NewArena(d)
	mem.Reserve(Endless)
	body(d, mem)
	return mem.Peak()
}

// Endless is more than any run takes: an arena that has reserved it has one chunk, and its peak is what it needs.
const Endless = 1 << 48

// Name says what it is.
func (d *Device) Name() string { return "meta device" }

// Definition is that of the device it stands for.
func (d *Device) Definition() kernels.Definition { return d.def }

// Spare is that of the device it stands for.
func (d *Device) Spare() int { return d.spare }

// Alloc is addresses without memory.
func (d *Device) Alloc(bytes int) []byte {
	at := d.bytes
	d.bytes += bytes
	return kernels.MetaBytes(at, bytes)
}

// Counts has the bytes that Alloc handed out.
func (d *Device) Counts() kernels.Counts { return kernels.Counts{Bytes: d.bytes} }

// IsMeta says that operations compute nothing.
func (d *Device) IsMeta() {}

// Write drops the values.
func (d *Device) Write(kernels.Tensor, []byte) {}

// Read gives zeros.
func (d *Device) Read(dst []byte, _ kernels.Tensor) { clear(dst) }

// Sync has nothing to wait for.
func (d *Device) Sync() error { return nil }

// Close has nothing to close.
func (d *Device) Close() error { return nil }

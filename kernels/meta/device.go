// Package meta is a device that counts memory and computes nothing, like PyTorch's meta device: the graph of a run on
// it gives the run's memory on a real device in milliseconds, and what it computes and moves ([Work]). Its tensors have
// addresses without memory. It imports kernels and quant only.
package meta

import "lockstep/kernels"

// Device counts allocated bytes. Its operations compute nothing, and reads give zeros.
type Device struct {
	def    kernels.Definition
	spare  int
	bytes  int   // of the device
	pinned int   // of the host
	work   *Work // nil: not counted
}

var _ interface {
	kernels.Device
	kernels.DeltaNet
	kernels.Mamba
	kernels.IndexerLoss
	kernels.QuantizedProducts
	kernels.QuantizedCache
	kernels.Counter
	kernels.HostMemory
	kernels.MetaDevice
	kernels.WorkCounter
} = (*Device)(nil)

// New is the meta device of a device with this definition and Spare (see [kernels.Device]).
func New(def kernels.Definition, spare int) *Device { return &Device{def: def, spare: spare} }

// CheckQuantizedCache is nil: the devices it stands for have pages in codes of all shapes.
func (d *Device) CheckQuantizedCache(kernels.Attn) error { return nil }

// Bytes is the peak memory in bytes that body allocates of an arena.
func Bytes(of kernels.Device, body func(dev kernels.Device, mem *kernels.Arena)) int {
	d := New(of.Definition(), of.Spare())
	mem := kernels.NewArena(d)
	mem.Reserve(Endless)
	body(d, mem)
	return mem.Peak()
}

// Endless is more bytes than any run needs: an arena that has reserved them has one chunk, so its peak is exact.
const Endless = 1 << 48

// Name is "meta device".
func (d *Device) Name() string { return "meta device" }

// Definition is that of the real device.
func (d *Device) Definition() kernels.Definition { return d.def }

// Spare is that of the real device.
func (d *Device) Spare() int { return d.spare }

// Alloc returns addresses without memory.
func (d *Device) Alloc(bytes int) []byte {
	at := d.bytes
	d.bytes += bytes
	return kernels.MetaBytes(at, bytes)
}

// Pin returns addresses without memory.
func (d *Device) Pin(bytes int) []byte {
	at := kernels.MetaPinned + d.pinned
	d.pinned += bytes
	return kernels.MetaBytes(at, bytes)
}

// Host is the device itself.
func (d *Device) Host() kernels.Device { return d }

// Counts returns the bytes that Alloc and Pin have allocated.
func (d *Device) Counts() kernels.Counts { return kernels.Counts{Bytes: d.bytes, Pinned: d.pinned} }

// IsMeta marks a [kernels.MetaDevice].
func (d *Device) IsMeta() {}

// Write does nothing.
func (d *Device) Write(kernels.Tensor, []byte) {}

// Read fills dst with zeros.
func (d *Device) Read(dst []byte, _ kernels.Tensor) { clear(dst) }

// Sync does nothing.
func (d *Device) Sync() error { return nil }

// Close does nothing.
func (d *Device) Close() error { return nil }

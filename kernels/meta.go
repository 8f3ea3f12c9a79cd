package kernels

import "unsafe"

// Planner is a Device that a meta device can stand for, in PyTorch's sense of the word: one that counts memory and
// computes nothing.
type Planner interface {
	// Meta takes what this device takes, to the byte, workspaces that it allocates for itself included. Its Alloc
	// hands out addresses without memory, its operations do nothing, and what is read of it is zeros.
	Meta() Device
}

// MetaDevice is a Device that counts and computes nothing.
type MetaDevice interface{ IsMeta() }

// IsMeta tells whether a device counts and computes nothing: values that would only be written to it need not be made.
func IsMeta(d Device) bool {
	_, ok := d.(MetaDevice)
	return ok
}

// Workspacer is a Device that allocates a workspace for its operations.
type Workspacer interface {
	// Workspace is its size in bytes. Of a meta device it is the largest that an operation has asked for.
	Workspace() int
	// ReserveWorkspace makes it as large as that, at once.
	ReserveWorkspace(bytes int)
}

// Workspace is the bytes of a device's workspace, 0 where it allocates none.
func Workspace(d Device) int {
	if w, ok := d.(Workspacer); ok {
		return w.Workspace()
	}
	return 0
}

// ReserveWorkspace makes a device's workspace so large, where it allocates one.
func ReserveWorkspace(d Device, bytes int) {
	if w, ok := d.(Workspacer); ok {
		w.ReserveWorkspace(bytes)
	}
}

// Allocated is the bytes that a device has allocated, 0 where it does not count them.
func Allocated(d Device) int {
	if c, ok := d.(Counter); ok {
		return c.Counts().Bytes
	}
	return 0
}

// nowhere is an address that no machine has memory at.
const nowhere = 1 << 60

// MetaBytes is addresses of a meta device, from a byte of its memory on: touching one ends the process.
func MetaBytes(from, bytes int) []byte {
	at := uintptr(nowhere + from)
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&at)), bytes)
}

package kernels

import "unsafe"

// Planner is a Device that a meta device can stand for, in PyTorch's sense of the word: one that counts memory and
// computes nothing.
type Planner interface {
	// Meta is a device that counts the same bytes as this one, including workspaces that it allocates for itself. Its
	// Alloc returns addresses without memory, its operations do nothing, and reads give zeros.
	Meta() Device
}

// MetaDevice is a Device that counts and computes nothing.
type MetaDevice interface{ IsMeta() }

// IsMeta reports whether a device counts and computes nothing. Values to write to it need not be computed.
func IsMeta(d Device) bool {
	_, ok := d.(MetaDevice)
	return ok
}

// Workspacer is a Device that allocates a workspace for its operations.
type Workspacer interface {
	// Workspace is its size in bytes; for a meta device, the largest that an operation has requested.
	Workspace() int
	// ReserveWorkspace allocates it with at least this many bytes.
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

// Exchange is a kind of exchange between ranks, or with the host.
type Exchange int

const (
	ExchangeTokens      Exchange = iota // all-gather of tokens, or of the gradients of their outputs, for experts
	ExchangeRows                        // all-to-all of the experts' rows back to their tokens' ranks
	ExchangeFew                         // either of few rows, by operations that no host waits for
	ExchangeStages                      // of pipeline stages: rows and their gradients
	ExchangeContext                     // of a sequence's rows: all-to-all to heads and back, all-gather of keys
	ExchangeWeights                     // weights of blocks from their owners
	ExchangeGradient                    // sums of gradients along the ring of ranks
	ExchangeUpdated                     // updated weights from the owners of their optimizer state
	ExchangeOffload                     // inputs of blocks to the host's memory, and as many back
	ExchangeHostWeights                 // weights of blocks from the host's memory
	Exchanges
)

// WorkCounter is a meta device that may count what a run computes and exchanges, in place of the most memory that it
// may take.
type WorkCounter interface {
	// CountsWork reports whether it does. Tokens choose experts evenly then.
	CountsWork() bool
	// CountExchange adds bytes that a rank gets from others, or moves to the host.
	CountExchange(kind Exchange, bytes int)
}

// CountsWork reports whether a device is a [WorkCounter] that counts.
func CountsWork(d Device) bool {
	w, ok := d.(WorkCounter)
	return ok && w.CountsWork()
}

// CountExchange tells a [WorkCounter] what a rank of a plan would get from others, or move to the host.
func CountExchange(d Device, kind Exchange, bytes int) {
	if w, ok := d.(WorkCounter); ok {
		w.CountExchange(kind, bytes)
	}
}

// Allocated is the bytes that a device has allocated, 0 where it does not count them.
func Allocated(d Device) int {
	if c, ok := d.(Counter); ok {
		return c.Counts().Bytes
	}
	return 0
}

// Pinned is the bytes of host memory that a device has pinned for tensors, 0 where it does not count them.
func Pinned(d Device) int {
	if c, ok := d.(Counter); ok {
		return c.Counts().Pinned
	}
	return 0
}

// nowhere is an address at which no machine has memory.
const nowhere = 1 << 60

// MetaPinned is the offset at which a meta device's host memory begins: more than any device has.
const MetaPinned = 1 << 56

// MetaBytes is bytes of a meta device's memory, at an offset. Reading or writing one ends the process.
func MetaBytes(from, bytes int) []byte {
	at := uintptr(nowhere + from)
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&at)), bytes)
}

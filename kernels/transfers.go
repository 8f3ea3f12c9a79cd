package kernels

// Transfers is a Device whose memory other devices of the process can copy from, without the host: by the copy engines
// of a GPU, while it computes. Operations of a device follow one another; a copy is ordered by events alone.
type Transfers interface {
	Device
	// Reaches returns nil if the device can copy from other's memory, otherwise why not.
	Reaches(other Device) error
	// Record is the moment when everything enqueued so far is done.
	Record() Event
	// Tick is Record by the device's clock, which takes it longer.
	Tick() Tick
	// WaitEvents holds operations enqueued later until the events, of any device that is reached, have happened.
	WaitEvents(events ...Event)
	// CopyPeer makes copies, one by one, once the events have happened: each of Src, in the memory of a device that is
	// reached, to Dst. Nothing else waits for them: what reads a Dst, or overwrites it or its Src, waits for the event
	// that is returned.
	CopyPeer(after []Event, copies ...PeerCopy) Event
	// ReadAsync starts to copy a contiguous int32 tensor to the host, behind everything enqueued so far. The function
	// that it returns waits for that alone, and not for what was enqueued later.
	ReadAsync(t Tensor) func() []int32

	// GatherPeers: the rows of parts, one part's below the other's; a part lies in the memory of a device that is
	// reached, and has been computed. All are contiguous, of one type, int32 too, and as many columns. For a few rows,
	// which an operation brings sooner than a copy engine.
	GatherPeers(out Tensor, parts []Tensor)
	// FewBytes is how many bytes those are, at most. It changes no bit.
	FewBytes() int
	// CombinePeers is Combine, and TakePeers is out[i] = y[rowOf[i]], of rows that several devices have computed.
	CombinePeers(out, residual Tensor, y PeerRows, weights, rowOf Tensor)
	TakePeers(out Tensor, y PeerRows, rowOf Tensor)
}

// PeerRows are the rows of a tensor of which each of several devices has some: row r is row r - Base[i] of the last
// part i with Offsets[First[i]] <= r.
type PeerRows struct {
	Parts   []Tensor // [R_i, n], in the memory of devices that are reached, of one type and contiguous
	Base    []int
	Offsets Tensor // int32
	First   []int  // ascending
}

// HostMemory is a Device whose copy engines reach memory of the host, by [Transfers.CopyPeer].
type HostMemory interface {
	Device
	// Pin returns zeroed host memory off Go's heap that lives as long as the device: pinned, where the device has
	// memory of its own. Tensors there are for the host and for copies, no operation but Draw and DrawCodes takes them.
	// It panics with a [Fault] if there are not as many bytes.
	Pin(bytes int) []byte
	// Host is the host's cores as a device, for memory of Pin: operations are done when they return. Other goroutines
	// than the device's may call Copy and AdamW. It is not to be closed.
	Host() Device
}

// PeerCopy is a copy between two tensors of one type and shape, whose rows may have strides.
type PeerCopy struct{ Dst, Src Tensor }

// SameShape tells whether the tensors have one type and shape.
func (c PeerCopy) SameShape() bool {
	return c.Dst.DType == c.Src.DType && c.Dst.Groups == c.Src.Groups && c.Dst.Rows == c.Src.Rows &&
		c.Dst.Cols == c.Src.Cols
}

// Tick is a moment by a device's clock.
type Tick interface {
	// Since is the seconds since an earlier moment of the same device, when both have passed.
	Since(earlier Tick) float64
}

// Event is a moment in the work of a device.
type Event interface {
	// Happened reports whether the moment has passed.
	Happened() bool
	// Synchronize waits on the host until the moment has passed. Any goroutine may call it. It panics with a [Fault].
	Synchronize()
}

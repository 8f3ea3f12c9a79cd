package kernels

// Transfers is a Device whose memory other devices of the process can copy from, without the host: by the copy engines
// of a GPU, while it computes. Operations of a device follow one another; a copy is ordered by events alone.
type Transfers interface {
	Device
	// Reaches returns nil if the device can copy from other's memory, otherwise why not.
	Reaches(other Device) error
	// Record is the moment when everything enqueued so far is done.
	Record() Event
	// WaitEvents holds operations enqueued later until the events, of any device that is reached, have happened.
	WaitEvents(events ...Event)
	// CopyPeer copies src, in the memory of a device that is reached, to dst, in its own, once the events have
	// happened. Both have one type and shape; rows may have strides. Nothing else waits for the copy: what reads dst
	// or overwrites either waits for the event that is returned.
	CopyPeer(dst, src Tensor, after ...Event) Event
	// ReadAsync starts to copy a contiguous int32 tensor to the host, behind everything enqueued so far. The function
	// that it returns waits for that alone, and not for what was enqueued later.
	ReadAsync(t Tensor) func() []int32
}

// Event is a moment in the work of a device.
type Event interface {
	// Happened reports whether the moment has passed.
	Happened() bool
}

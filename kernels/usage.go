package kernels

// Usage is how busy an accelerator is.
type Usage struct {
	Busy   float64 // share of the driver's last sampling period with a kernel running, 0 to 1
	Memory int64   // bytes in use on the card, by all processes
	Watts  float64
}

// Gauge reads the usage of one accelerator without waiting for its operations.
type Gauge interface {
	Usage() (Usage, error)
}

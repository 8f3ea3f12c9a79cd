package kernels

// Usage is how busy an accelerator is.
type Usage struct {
	Busy   float64 // share of the driver's last sampling period with a kernel running, 0 to 1
	Memory int64   // bytes taken on the card, by every process
	Watts  float64
}

// Gauge reads the usage of one accelerator. It waits for nothing that runs there.
type Gauge interface {
	Usage() (Usage, error)
}

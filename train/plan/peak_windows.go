package plan

// PeakMemory returns the largest resident size of the process so far, in bytes; 0: unknown.
func PeakMemory() int64 { return 0 }

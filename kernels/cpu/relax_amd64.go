package cpu

// relax tells the processor that the thread is waiting in a loop, so that another on the same core gets its units.
func relax()

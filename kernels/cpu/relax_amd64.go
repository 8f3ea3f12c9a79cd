package cpu

// relax is the PAUSE instruction of a spin loop: another thread of the core gets the execution units.
func relax()

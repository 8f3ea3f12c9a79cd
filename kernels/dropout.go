package kernels

// Dropout says which elements of rows an adapter's input keeps while it is trained (Srivastava et al., JMLR 15, 2014).
// Nothing but these numbers, the row and the column decides it.
type Dropout struct {
	Probability float32 // that an element becomes 0, below 1
	Seed        uint64
	Step, Layer uint32 // of training, and of adapters
	Row         uint32 // of the step, which the first row of the tensor is
}

// Threshold is the word from which on an element is kept.
func (d Dropout) Threshold() uint32 { return uint32(float64(d.Probability) * (1 << 32)) }

// Factor is 1/(1-Probability), by which what is kept is multiplied.
func (d Dropout) Factor() float32 { return 1 / (1 - d.Probability) }

// Words decide about columns 4i ... 4i+3 of row r of the tensor.
func (d Dropout) Words(r, i int) [4]uint32 {
	return Philox([4]uint32{uint32(i), d.Row + uint32(r), d.Layer, d.Step}, [2]uint32{uint32(d.Seed),
		uint32(d.Seed >> 32)})
}

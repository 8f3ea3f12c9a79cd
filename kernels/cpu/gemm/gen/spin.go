package main

// spin is a loop of FMAs on registers alone, enough chains to fill both pipes: the most that the machine can do.
func (w *writer) spin() {
	w.function("spin"+w.suffix, "(rounds int)", 8)
	w.code("MOVQ rounds+0(FP), CX")
	for i := range spinChains + 2 {
		r := w.reg(i)
		w.code("VXORPS %s, %s, %s", r, r, r)
	}
	w.label("next")
	for i := range spinChains {
		w.code("VFMADD231PS %s, %s, %s", w.reg(spinChains), w.reg(spinChains+1), w.reg(i))
	}
	w.code("DECQ CX")
	w.code("JNE  next")
	w.end()
}

const spinChains = 12

package vec

// sets is the loops of each instruction set.
var sets = map[string]loops{"avx512": portable, "avx2": portable, "portable": portable}

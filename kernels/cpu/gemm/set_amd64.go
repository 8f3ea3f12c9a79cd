package gemm

var sets = map[string]*set{"avx512": &avx512, "avx2": &avx2, "portable": &portable}

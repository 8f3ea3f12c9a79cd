//go:build !amd64

package gemm

var sets = map[string]*set{"portable": &portable}

//go:build cuda

package gemm

import (
	"embed"

	"lockstep/kernels/cuda/driver"
)

// Sources are the kernels.
//
//go:embed *.cu *.cuh
var Sources embed.FS

// Ops is the operations on one GPU.
type Ops struct {
	*driver.Context

	busy int // multiprocessors that compute what the product at hand adds to its first term; 0: it is there
}

// New is the operations by a context whose kernels are those of [Sources], among others.
func New(c *driver.Context) Ops { return Ops{Context: c} }

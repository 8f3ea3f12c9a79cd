//go:build cuda

package gemm_test

import (
	"testing"

	"lockstep/kernels/cuda"
	"lockstep/kernels/cuda/cudatest"
	"lockstep/kernels/cuda/gemm"
)

func TestMain(m *testing.M) { cudatest.Main(m, cuda.New, gemm.Sources) }

//go:build cuda

package selftest_test

import (
	"testing"

	"lockstep/kernels/cuda"
	"lockstep/kernels/cuda/cudatest"
	"lockstep/kernels/cuda/selftest"
)

func TestMain(m *testing.M) { cudatest.Main(m, cuda.New, selftest.Sources) }

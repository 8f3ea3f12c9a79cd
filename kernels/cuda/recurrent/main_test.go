//go:build cuda

package recurrent_test

import (
	"testing"

	"lockstep/kernels/cuda"
	"lockstep/kernels/cuda/cudatest"
	"lockstep/kernels/cuda/recurrent"
)

func TestMain(m *testing.M) { cudatest.Main(m, cuda.New, recurrent.Sources) }

//go:build cuda

package attention_test

import (
	"testing"

	"lockstep/kernels/cuda"
	"lockstep/kernels/cuda/attention"
	"lockstep/kernels/cuda/cudatest"
)

func TestMain(m *testing.M) { cudatest.Main(m, cuda.New, attention.Sources) }

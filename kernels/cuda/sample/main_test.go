//go:build cuda

package sample_test

import (
	"testing"

	"lockstep/kernels/cuda"
	"lockstep/kernels/cuda/cudatest"
	"lockstep/kernels/cuda/sample"
)

func TestMain(m *testing.M) { cudatest.Main(m, cuda.New, sample.Sources) }

//go:build cuda

package moe_test

import (
	"testing"

	"lockstep/kernels/cuda"
	"lockstep/kernels/cuda/cudatest"
	"lockstep/kernels/cuda/moe"
)

func TestMain(m *testing.M) { cudatest.Main(m, cuda.New, moe.Sources) }

//go:build cuda

package rows_test

import (
	"testing"

	"lockstep/kernels/cuda"
	"lockstep/kernels/cuda/cudatest"
	"lockstep/kernels/cuda/rows"
)

func TestMain(m *testing.M) { cudatest.Main(m, cuda.New, rows.Sources) }

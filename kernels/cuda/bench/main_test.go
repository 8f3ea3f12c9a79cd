//go:build cuda

package bench

import (
	"embed"
	"testing"

	"lockstep/kernels/cuda"
	"lockstep/kernels/cuda/cudatest"
)

func TestMain(m *testing.M) { cudatest.Main(m, cuda.New, embed.FS{}) }

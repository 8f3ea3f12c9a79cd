//go:build cuda

package driver

import (
	"encoding/binary"
	"strings"
	"testing"
	"testing/fstest"

	"lockstep/kernels"
)

// A launch that asks for more shared memory than a block has fails with the kernel's name. What a kernel declares
// counts too, up to where memory of the launch's alignment begins, and so may the 1,024 bytes that CUDA keeps of a
// block.
func TestSharedMemory(t *testing.T) {
	const text = `
extern __shared__ __align__(1024) int lines[];
extern "C" __global__ void lone_f32(float *x) { *x = lines[0]; }
extern "C" __global__ void declaring_f32(float *x) {
  __shared__ int own[2];
  own[threadIdx.x] = lines[threadIdx.x];
  __syncthreads();
  *x = own[0];
}
`
	c, err := Open(kernels.Default(), 0, Sources{fstest.MapFS{"lines.cu": {Data: []byte(text)}}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.Alloc(4)
	params := binary.LittleEndian.AppendUint64(nil, uint64(c.owned[0].at))
	for _, k := range []struct {
		kernel string
		shared int
		fits   bool
	}{
		{"lone_f32", 48 << 10, true}, {"lone_f32", MaxShared - 1024, true}, {"lone_f32", MaxShared + 1, false},
		{"declaring_f32", 48 << 10, true}, {"declaring_f32", MaxShared - 2048, true},
		{"declaring_f32", MaxShared - 1023, false}, {"declaring_f32", MaxShared, false},
	} {
		err := c.Attempt(func() error {
			return c.launch(&call{c.kernels[k.kernel], [3]int{1, 1, 1}, 2, k.shared, params, false})
		})
		if (err == nil) != k.fits || err != nil && !strings.HasPrefix(err.Error(), k.kernel) {
			t.Errorf("%s with %d bytes of shared memory: %v, fits %t", k.kernel, k.shared, err, k.fits)
		}
	}
}

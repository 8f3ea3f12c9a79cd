//go:build cuda

package driver

import (
	"bytes"
	"math"
	"testing"
)

// Parameters lie as in a C struct, and a number that a kernel would see otherwise is a bug.
func TestParams(t *testing.T) {
	var buf []byte
	for _, p := range []any{math.MinInt32, true, float32(1), int64(math.MaxInt64), math.MaxInt32, 0.5} {
		buf = AppendParam(buf, p)
	}
	want := []byte{0, 0, 0, 0x80, 1, 0, 0, 0, 0, 0, 0x80, 0x3f, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
		0x7f, 0xff, 0xff, 0xff, 0x7f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xe0, 0x3f}
	if !bytes.Equal(buf, want) {
		t.Errorf("% x\nwant % x", buf, want)
	}
	for _, wide := range []int{math.MaxInt32 + 1, math.MinInt32 - 1} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%d went to a kernel as an int32", wide)
				}
			}()
			AppendParam(nil, wide)
		}()
	}
}

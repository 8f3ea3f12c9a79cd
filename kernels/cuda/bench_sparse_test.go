//go:build cuda

package cuda

import (
	"testing"
	"time"
)

// BenchmarkSparse prints the lines of BenchSparse.
func BenchmarkSparse(b *testing.B) {
	for _, r := range card.(*Device).BenchSparse(200*time.Millisecond, SparseCases) {
		b.Logf("%s: %.3f ms, %.0f TFLOP/s, %.0f GB/s", r.Case, r.Seconds*1e3, r.Flops/r.Seconds/1e12,
			r.Bytes/r.Seconds/1e9)
	}
}

//go:build cuda

package cuda

import (
	"testing"
	"time"
)

// BenchmarkAttention prints the lines of BenchAttention.
func BenchmarkAttention(b *testing.B) {
	for _, r := range card.(*Device).BenchAttention(300*time.Millisecond, AttentionCases) {
		b.Logf("%s: %.3f ms, %.0f TFLOP/s, %.0f GB/s", r.Case, r.Seconds*1e3, r.Flops/r.Seconds/1e12, r.Bytes/r.Seconds/1e9)
	}
}

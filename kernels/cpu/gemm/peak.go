package gemm

import (
	"sync/atomic"
	"time"
)

// Peak is the rate of FMAs on registers alone, in floating-point operations a second, of so many threads of each
// together for about d.
func (e *Engine) Peak(threads int, each Each, d time.Duration) float64 {
	const rounds = 10_000
	var count atomic.Int64
	start := time.Now()
	each(threads, 1, func(_, from, to int) {
		for time.Since(start) < d {
			e.set.spin(rounds)
			count.Add(rounds)
		}
	})
	return float64(count.Load()) * float64(e.set.spinFlops) / time.Since(start).Seconds()
}

package gemm

import (
	"sync"
	"time"
)

// Peak is the rate of FMAs on registers alone, in floating-point operations a second, of so many threads together for about d.
func (e *Engine) Peak(threads int, d time.Duration) float64 {
	const turns = 10_000
	count := make([]int, threads)
	start := time.Now()
	var all sync.WaitGroup
	for i := range threads {
		all.Go(func() {
			for time.Since(start) < d {
				e.set.spin(turns)
				count[i] += turns
			}
		})
	}
	all.Wait()
	sum := 0
	for _, n := range count {
		sum += n
	}
	return float64(sum) * float64(e.set.spinFlops) / time.Since(start).Seconds()
}

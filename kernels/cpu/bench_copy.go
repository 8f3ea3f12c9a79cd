package cpu

import "time"

// copyBytes is more than the caches hold.
const copyBytes = 128 << 20

// BenchCopy measures a copy in memory on all threads for about this long. It returns the median of bytes read and
// written per second.
func (d *Device) BenchCopy(each time.Duration) float64 {
	from, to := make([]byte, copyBytes), make([]byte, copyBytes)
	for i := range from { // memory that was never written has no pages of its own
		from[i] = byte(i)
	}
	run := func() {
		d.pool.each(copyBytes, 1<<20, func(_, i, j int) { copy(to[i:j], from[i:j]) })
	}
	run()
	var rates []float64
	for began := time.Now(); len(rates) == 0 || time.Since(began) < each; {
		start := time.Now()
		run()
		rates = append(rates, 2*copyBytes/time.Since(start).Seconds())
	}
	return median(rates)
}

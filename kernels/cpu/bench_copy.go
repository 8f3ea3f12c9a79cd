package cpu

import "time"

// copyBytes is more than caches hold.
const copyBytes = 128 << 20

// BenchCopy is the bytes a second, read and written, of a copy in memory on all threads: the median over about that
// long.
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

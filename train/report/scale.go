package report

import "math"

// scale maps values to pixels, with marks at round numbers.
type scale struct {
	low, high, from, to float64
	ticks               []float64
	log                 bool    // decades; low and high are powers of ten
	zero                float64 // with log: the pixel of what no decade holds, 0 above all
}

func (s scale) at(v float64) float64 {
	share := 0.0
	switch {
	case !s.log:
		share = (v - s.low) / (s.high - s.low)
	case v <= 0:
		return s.zero
	default:
		share = (math.Log10(v) - math.Log10(s.low)) / (math.Log10(s.high) - math.Log10(s.low))
	}
	return s.from + share*(s.to-s.from)
}

// newScale spans low to high, widened to multiples of a tick of 1, 2 or 5 times a power of ten where round is set.
// Values that are all 0 get an axis to 1.
func newScale(low, high, from, to float64, n int, round bool) scale {
	if high-low <= 1e-9*math.Max(math.Abs(low), math.Abs(high)) { // one value, or ticks that would round to one
		high = low + math.Max(math.Abs(low)/10, 1e-300)
		if low == 0 {
			high = 1
		}
	}
	step := math.Pow(10, math.Floor(math.Log10((high-low)/float64(n))))
	for _, m := range []float64{2, 2.5, 2} { // 2, 5, 10
		if (high-low)/step > float64(n) {
			step *= m
		}
	}
	if round {
		low, high = math.Floor(low/step+1e-9)*step, math.Ceil(high/step-1e-9)*step
	}
	s := scale{low: low, high: high, from: from, to: to}
	for i := math.Ceil(low/step - 1e-9); i*step <= high+step*1e-9; i++ {
		s.ticks = append(s.ticks, i*step+0) // not -0
	}
	return s
}

// Decades of a logarithmic axis that has nothing above 0 to show.
const emptyLow, emptyHigh = -6, -2

// newLogScale spans the decades from low to high, at least one; low above high: there are no values above 0.
func newLogScale(low, high, from, to, zero float64, n int) scale {
	first, last := math.Floor(math.Log10(low)+1e-9), math.Ceil(math.Log10(high)-1e-9)
	if low > high {
		first, last = emptyLow, emptyHigh
	}
	first = math.Max(first, -307) // below are numbers without full precision
	last = math.Max(last, first+1)
	s := scale{log: true, low: math.Pow(10, first), high: math.Pow(10, last), from: from, to: to, zero: zero}
	for i, step := first, math.Ceil((last-first)/float64(n)); i <= last; i += step {
		s.ticks = append(s.ticks, math.Pow(10, i))
	}
	return s
}

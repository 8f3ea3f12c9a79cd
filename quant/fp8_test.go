package quant

import (
	"math"
	"math/rand/v2"
	"testing"
)

// value is a code's number, from the format's formula.
func value(code int) float64 {
	sign := 1 - 2*float64(code>>7)
	exponent, significand := code>>3&15, float64(code&7)/8
	if exponent == 0 {
		return sign * significand * math.Pow(2, -6)
	}
	return sign * (1 + significand) * math.Pow(2, float64(exponent-7))
}

var values = func() (v [256]float64) {
	for code := range v {
		v[code] = value(code)
	}
	return v
}()

// nearest is the code of the nearest number, of two as near the even one; by trying all.
func nearest(x float64) E4M3 {
	best := E4M3(0)
	for code := range 0x7f {
		d, least := math.Abs(values[code]-math.Abs(x)), math.Abs(values[best]-math.Abs(x))
		if d < least || d == least && code&1 == 0 {
			best = E4M3(code)
		}
	}
	if math.Signbit(x) {
		best |= 0x80
	}
	return best
}

func TestE4M3Codes(t *testing.T) {
	for code := range 256 {
		v := E4M3(code).Float()
		if code&0x7f == 0x7f {
			if v == v {
				t.Errorf("code %#x is %v, want NaN", code, v)
			}
			continue
		}
		if float64(v) != value(code) || math.Signbit(float64(v)) != (code >= 128) {
			t.Errorf("code %#x is %v, want %v", code, v, value(code))
		}
		if got := EncodeE4M3(v); got != E4M3(code) {
			t.Errorf("%v is code %#x, want %#x", v, got, code)
		}
	}
	if E4M3(0x7e).Float() != MaxE4M3 {
		t.Errorf("the largest is %v", E4M3(0x7e).Float())
	}
}

// Between every two neighbours: the middle goes to the even one, the fp32 next to it to the nearer.
func TestE4M3Ties(t *testing.T) {
	for code := range 0x7e {
		low, high := E4M3(code), E4M3(code+1)
		middle := (low.Float() + high.Float()) / 2
		even := low
		if code&1 == 1 {
			even = high
		}
		for _, c := range []struct {
			x    float32
			want E4M3
		}{{middle, even}, {math.Nextafter32(middle, 0), low}, {math.Nextafter32(middle, 1000), high}} {
			if got := EncodeE4M3(c.x); got != c.want {
				t.Errorf("%v is %v, want %v", c.x, got.Float(), c.want.Float())
			}
			if got := EncodeE4M3(-c.x); got != c.want|0x80 {
				t.Errorf("%v is %v, want %v", -c.x, got.Float(), -c.want.Float())
			}
		}
	}
}

func TestE4M3Edges(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, c := range []struct {
		x    float32
		want E4M3
	}{
		{0, 0}, {float32(math.Copysign(0, -1)), 0x80}, {448, 0x7e}, {464, 0x7e}, {math.Nextafter32(464, 500), 0x7e},
		{480, 0x7e}, {1e30, 0x7e}, {-1e30, 0xfe}, {inf, 0x7e}, {-inf, 0xfe},
		{nan, 0x7f}, {float32(math.Copysign(math.NaN(), -1)), 0xff}, {1.0 / 1024, 0}, {math.Nextafter32(1.0/1024, 1),
			1}, {math.SmallestNonzeroFloat32, 0},
	} {
		if got := EncodeE4M3(c.x); got != c.want {
			t.Errorf("%v is %#x, want %#x", c.x, got, c.want)
		}
	}
}

func TestE4M3IsTheNearest(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		x := float32(r.NormFloat64() * math.Exp2(float64(r.IntN(24)-14)))
		if got, want := EncodeE4M3(x), nearest(float64(x)); got != want {
			t.Fatalf("%v is %v, the nearest is %v", x, got.Float(), want.Float())
		}
	}
}

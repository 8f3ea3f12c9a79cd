package cpu

import (
	"math"
	"testing"
)

func TestAvailable(t *testing.T) {
	for text, want := range map[string]int{
		"MemTotal:       25165824 kB\nMemFree:  1 kB\nMemAvailable:   12582912 kB\nBuffers: 7 kB\n": 12 << 30,
		"MemAvailable: 3 kB":      3 << 10,
		"MemTotal: 25165824 kB\n": math.MaxInt,
		"":                        math.MaxInt,
	} {
		if got := meminfo([]byte(text)); got != want {
			t.Errorf("%q: %d bytes, want %d", text, got, want)
		}
	}
	if n := newRowDevice(t, Auto, 1, "").Available(); n < 0 || n > 1<<50 {
		t.Errorf("this machine has %d bytes", n)
	}
}

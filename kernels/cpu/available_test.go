package cpu

import (
	"math"
	"strings"
	"testing"

	"lockstep/kernels"
)

// Allocating more memory than is left is a Fault, which ends a run with an error of one line.
func TestAllocTooMuch(t *testing.T) {
	d := newRowDevice(t, Auto, 1)
	if d.Available() == 0 {
		t.Skip("this system does not say how much memory it has")
	}
	defer func() {
		fault, ok := recover().(kernels.Fault)
		if !ok || !strings.Contains(fault.Error(), "65536.0 GiB are needed") {
			t.Errorf("%v, want a fault", fault.Err)
		}
	}()
	d.Alloc(1 << 46)
}

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
	if n := newRowDevice(t, Auto, 1).Available(); n < 0 || n > 1<<50 {
		t.Errorf("this machine has %d bytes", n)
	}
}

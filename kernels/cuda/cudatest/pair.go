//go:build cuda

package cudatest

import (
	"testing"

	"gorgonia.org/cu"

	"lockstep/kernels"
)

// Pair is the card of the tests and another one, or the same once more where the machine has one, which reach each
// other. D is *cuda.Device, which this package cannot name.
func Pair[D interface {
	Device
	Reaches(from kernels.Device) error
	Close() error
}](t *testing.T) (a, b D) {
	t.Helper()
	n, err := cu.NumDevices()
	if err != nil {
		t.Fatal(err)
	}
	other, err := opener(Card.Definition(), min(n-1, 1))
	if err != nil {
		t.Fatal(err)
	}
	a, b = Card.(D), other.(D)
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, d := range [][2]D{{a, b}, {b, a}, {a, a}, {b, a}} {
		if err := d[0].Reaches(d[1]); err != nil {
			t.Fatal(err)
		}
	}
	return a, b
}

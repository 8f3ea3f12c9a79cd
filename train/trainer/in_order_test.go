package trainer

import (
	"slices"
	"testing"
)

// Places are taken in order, whichever is known first, and each once.
func TestInOrder(t *testing.T) {
	var got []int
	o := newInOrder(5, func(place int) { got = append(got, place) })
	for _, step := range []struct {
		known int
		want  []int
	}{{1, nil}, {3, nil}, {0, []int{0, 1}}, {0, []int{0, 1}}, {2, []int{0, 1, 2, 3}}} {
		if o.add(step.known); !slices.Equal(got, step.want) {
			t.Errorf("%d is known: %v, want %v", step.known, got, step.want)
		}
	}
	if o.all(); !slices.Equal(got, []int{0, 1, 2, 3, 4}) {
		t.Errorf("all are known: %v", got)
	}
}

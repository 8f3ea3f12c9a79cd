package serve

import (
	"slices"
	"testing"
)

// Free pages that nobody can ask for are taken first, then those that are longest free; what is taken is known no more.
func TestPagesTakenFirst(t *testing.T) {
	p := newPages(4, 2)
	var held []int32
	for range 3 {
		held = append(held, p.take())
	}
	first := p.offer(held[0], 0, []int32{1, 2})
	second := p.offer(held[1], first, []int32{3, 4})
	for _, page := range held { // the third is not known
		p.drop(page)
	}
	if found, chain := p.find([]int32{1, 2, 3, 4, 5}, 2); !slices.Equal(found, held[:2]) || chain != second {
		t.Fatalf("pages %v to chain %d hold the tokens, want %v to %d", found, chain, held[:2], second)
	}
	var taken []int32
	for p.free > 0 {
		taken = append(taken, p.take())
		if len(taken) == 3 { // the first page has other tokens now, and what followed it cannot be found
			if found, _ := p.find([]int32{1, 2, 3, 4, 5}, 2); len(found) != 0 {
				t.Errorf("pages %v hold the tokens after page %d was taken", found, taken[2])
			}
		}
	}
	if want := []int32{held[2], 3, held[0], held[1]}; !slices.Equal(taken, want) {
		t.Errorf("pages are taken in the order %v, want %v", taken, want)
	}
}

// A page is known by all tokens from the beginning on, not by its own.
func TestPagesByChain(t *testing.T) {
	p := newPages(4, 2)
	a, b := p.take(), p.take()
	one := p.offer(a, 0, []int32{1, 2})
	p.offer(b, one, []int32{7, 7})
	if found, _ := p.find([]int32{7, 7}, 1); len(found) != 0 {
		t.Errorf("page %v holds a beginning that it does not", found)
	}
	other := p.take()
	if p.offer(other, 0, []int32{1, 2}) != one {
		t.Error("equal tokens have two chains")
	}
	p.forget()
	if found, _ := p.find([]int32{1, 2}, 1); len(found) != 0 || p.offer(other, 0, []int32{1, 2}) == one {
		t.Errorf("after forgetting, %v holds tokens of before", found)
	}
	p.drop(a) // known no more: taken before the last of the free ones
	if got := p.take(); got != a {
		t.Errorf("page %d is taken, want %d", got, a)
	}
}

package serve

import (
	"slices"
	"testing"
)

// Free pages that are not registered are allocated first, then the least recently used. Allocation unregisters a page.
func TestPageAllocationOrder(t *testing.T) {
	p := newPagePool(4, 2)
	var held []int32
	for range 3 {
		held = append(held, p.allocate())
	}
	first := p.register(held[0], 0, []int32{1, 2})
	second := p.register(held[1], first, []int32{3, 4})
	for _, page := range held { // the third is not registered
		p.release(page)
	}
	if found, chain := p.match([]int32{1, 2, 3, 4, 5}, 2); !slices.Equal(found, held[:2]) || chain != second {
		t.Fatalf("pages %v with id %d hold the tokens, want %v with %d", found, chain, held[:2], second)
	}
	var taken []int32
	for p.free > 0 {
		taken = append(taken, p.allocate())
		if len(taken) == 3 { // the first page has new content, so the prefix cannot be found
			if found, _ := p.match([]int32{1, 2, 3, 4, 5}, 2); len(found) != 0 {
				t.Errorf("pages %v hold the tokens after page %d was allocated", found, taken[2])
			}
		}
	}
	if want := []int32{held[2], 3, held[0], held[1]}; !slices.Equal(taken, want) {
		t.Errorf("pages are allocated in the order %v, want %v", taken, want)
	}
}

// A page is identified by all tokens from position 0 on, not by its own alone.
func TestPageKeyHasPrefix(t *testing.T) {
	p := newPagePool(4, 2)
	a, b := p.allocate(), p.allocate()
	one := p.register(a, 0, []int32{1, 2})
	p.register(b, one, []int32{7, 7})
	if found, _ := p.match([]int32{7, 7}, 1); len(found) != 0 {
		t.Errorf("page %v matches a prefix that it does not hold", found)
	}
	other := p.allocate()
	if p.register(other, 0, []int32{1, 2}) != one {
		t.Error("equal prefixes have two ids")
	}
	p.reset()
	if found, _ := p.match([]int32{1, 2}, 1); len(found) != 0 || p.register(other, 0, []int32{1, 2}) == one {
		t.Errorf("after reset, %v still matches", found)
	}
	p.release(a) // not registered: allocated before the other free pages
	if got := p.allocate(); got != a {
		t.Errorf("page %d is allocated, want %d", got, a)
	}
}

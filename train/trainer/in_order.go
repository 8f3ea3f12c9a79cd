package trainer

import "sync"

// inOrder does something with each of some places, in their order, as soon as what it takes is known of the place and
// of all before it. Ranks tell that from their goroutines, and whoever fills a gap does what is next: a host that has
// enqueued a backward pass is far ahead of its device.
type inOrder struct {
	mu    sync.Mutex
	known []bool // by place
	next  int    // the first that nothing was done with
	do    func(place int)
}

func newInOrder(places int, do func(place int)) *inOrder {
	return &inOrder{known: make([]bool, places), do: do}
}

// add tells that a place is known.
func (o *inOrder) add(place int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.known[place] = true
	for ; o.next < len(o.known) && o.known[o.next]; o.next++ {
		o.do(o.next)
	}
}

// all tells that all places are known.
func (o *inOrder) all() {
	for i := range o.known {
		o.add(i)
	}
}

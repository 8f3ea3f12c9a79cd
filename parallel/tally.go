package parallel

import (
	"sync"
	"time"
)

// Tally is what a rank and its lanes have done since [World.Tallies] was last asked.
type Tally struct {
	Rows     int           // of training
	Waited   time.Duration // of the host, for other ranks at exchanges
	Share    float64       // largest share of a mixture's rows that one owner of experts had; 0: no experts are cut
	FromHost int           // bytes of weights that were copied from the host's memory
}

// tally adds up on several goroutines. A rank without a world has none.
type tally struct {
	mu  sync.Mutex
	all Tally
}

func (t *tally) add(more Tally) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all.Rows += more.Rows
	t.all.Waited += more.Waited
	t.all.FromHost += more.FromHost
	t.all.Share = max(t.all.Share, more.Share)
}

// Count adds to the rank's tally.
func (r *Rank) Count(t Tally) { r.tally.add(t) }

// Tallies returns what each rank has done, and begins anew.
func (w *World) Tallies() (list []Tally) {
	for _, r := range w.ranks {
		r.tally.mu.Lock()
		list, r.tally.all = append(list, r.tally.all), Tally{}
		r.tally.mu.Unlock()
	}
	return list
}

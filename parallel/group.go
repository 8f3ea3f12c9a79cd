package parallel

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"lockstep/kernels"
)

// Group is some ranks that exchange memory, as one of them sees it. All members call its methods in the same order.
type Group struct {
	Size int // members
	Me   int // this rank's place among them

	world  *World
	rank   *Rank
	shared *meetings
	next   int // of this member's meetings
}

// meetings are those of the members of a group.
type meetings struct {
	name    string
	members []*Rank
	mu      sync.Mutex
	open    map[int]*meeting
}

// meeting is where members leave what the others need to know, in the order of members.
type meeting struct {
	posts  []post
	all    atomic.Bool   // have come
	absent int           // members that have not come
	full   chan struct{} // closed when all have
	left   int           // members that still have to read the posts
}

// post is what a member leaves at a meeting of an exchange.
type post struct {
	exchange string // its name, which is the same for all
	src      kernels.Tensor
	owned    []kernels.Tensor  // what the member broadcasts
	rows     []int             // of src for each member
	width    int               // columns of the range that the member owns
	ready    kernels.Event     // the member's tensors have been computed
	copied   [][]kernels.Event // by member whose memory was copied: the copies are done
}

// group makes the members' views of a group.
func (w *World) group(name string, members []*Rank) (views []*Group) {
	shared := &meetings{name: name, members: members, open: map[int]*meeting{}}
	for i, r := range members {
		views = append(views, &Group{Size: len(members), Me: i, world: w, rank: r, shared: shared})
	}
	return views
}

// come leaves a post at the member's next meeting. The posts of all are there when wait returns.
func (g *Group) come(p post) (wait func() []post) {
	s, at := g.shared, g.next
	g.next++
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.open[at]
	if m == nil {
		m = &meeting{posts: make([]post, g.Size), absent: g.Size, full: make(chan struct{}), left: g.Size}
		s.open[at] = m
	}
	m.posts[g.Me] = p
	if m.absent--; m.absent == 0 {
		m.all.Store(true)
		close(m.full)
	}
	return func() []post {
		g.wait(m, p.exchange)
		s.mu.Lock()
		defer s.mu.Unlock()
		if m.left--; m.left == 0 {
			delete(s.open, at)
		}
		return m.posts
	}
}

// mostSpins is how often a member looks for the others before it sleeps, where each rank has a core: some 100
// microseconds, longer than waking takes.
const mostSpins = 200000

// wait returns when all members have come to a meeting.
func (g *Group) wait(m *meeting, exchange string) {
	for range g.world.spins {
		if m.all.Load() {
			return
		}
	}
	late := time.NewTimer(g.world.patience)
	defer late.Stop()
	select {
	case <-m.full:
	case <-g.world.cancelled:
		panic(kernels.Fault{Err: errCancelled})
	case <-late.C:
		panic(kernels.Fault{Err: fmt.Errorf("waited %v for rank %d at %s of %s", g.world.patience, g.absent(m),
			exchange, g.shared.name)})
	}
}

// absent is the first rank that has not come to a meeting.
func (g *Group) absent(m *meeting) int {
	g.shared.mu.Lock()
	defer g.shared.mu.Unlock()
	for i, p := range m.posts {
		if p.exchange == "" {
			return g.shared.members[i].ID
		}
	}
	return g.rank.ID
}

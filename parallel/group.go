package parallel

import (
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"lockstep/kernels"
)

// Group is some ranks that exchange memory, as one of them sees it. All members call its methods in the same order, but
// for those that two of them pair up in.
type Group struct {
	Size int // members
	Me   int // this rank's place among them

	world  *World
	rank   *Rank
	shared *meetings
	calls  *calls
}

// calls count those of a member, on all its lanes.
type calls struct {
	next  meetingPlace         // of all members
	pairs map[meetingPlace]int // messages so far, by sender, receiver and topic
}

// meetings are those of the members of a group.
type meetings struct {
	name    string
	members []*Rank
	mu      sync.Mutex
	open    map[meetingPlace]*meeting
}

// meetingPlace names a meeting: the n-th of all members, where from is everyone, or of a sender and a receiver on a
// topic.
type meetingPlace struct{ from, to, topic, n int }

const everyone = -1

// meeting is where members leave what the others need to know, in the order of members, or the sender's first.
type meeting struct {
	posts  []post
	all    atomic.Bool   // have come
	absent int           // members that have not come
	full   chan struct{} // closed when all have
	left   int           // members that still have to read the posts; of a pair one reads
}

// post is what a member leaves at a meeting of an exchange.
type post struct {
	exchange string           // its name, which is the same for all
	src      []kernels.Tensor // what the member gives
	rows     []int            // of src for each member; of HeadsToRows, of each source for this member
	numbers  []int32          // that the member shares
	ready    []kernels.Event  // the member's tensors have been computed
	copied   []kernels.Event  // by member whose memory was copied: the copies are done; nil: none
}

// group makes the members' views of a group.
func (w *World) group(name string, members []*Rank) (views []*Group) {
	shared := &meetings{name: name, members: members, open: map[meetingPlace]*meeting{}}
	for i, r := range members {
		views = append(views, &Group{Size: len(members), Me: i, world: w, rank: r, shared: shared,
			calls: &calls{next: meetingPlace{from: everyone}, pairs: map[meetingPlace]int{}}})
	}
	return views
}

// on is the group as a lane of the member sees it.
func (g *Group) on(lane *Rank) *Group {
	of := *g
	of.rank = lane
	return &of
}

// come leaves a post at the members' next meeting. The posts of all are there when wait returns.
func (g *Group) come(p post) (wait func() []post) {
	at := g.calls.next
	g.calls.next.n++
	return g.meet(at, p)
}

// toNext and fromNext are where this member and another meet for the next message on a topic: to offer it, and to say
// that it is taken.
func (g *Group) toNext(to, topic int) (offer, taken meetingPlace) {
	return g.message(meetingPlace{from: g.Me, to: to, topic: topic})
}

func (g *Group) fromNext(from, topic int) (offer, taken meetingPlace) {
	return g.message(meetingPlace{from: from, to: g.Me, topic: topic})
}

func (g *Group) message(pair meetingPlace) (offer, taken meetingPlace) {
	n := g.calls.pairs[pair]
	g.calls.pairs[pair]++
	offer, taken = pair, pair
	offer.n, taken.n = 2*n, 2*n+1
	return offer, taken
}

// meet leaves a post at a meeting.
func (g *Group) meet(at meetingPlace, p post) (wait func() []post) {
	s, me, members, readers := g.shared, g.Me, g.Size, g.Size
	if at.from != everyone {
		if me, members, readers = 0, 2, 1; at.to == g.Me {
			me = 1
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.open[at]
	if m == nil {
		m = &meeting{posts: make([]post, members), absent: members, full: make(chan struct{}), left: readers}
		s.open[at] = m
	}
	m.posts[me] = p
	if m.absent--; m.absent == 0 {
		m.all.Store(true)
		close(m.full)
	}
	return func() []post {
		g.wait(m, at, p.exchange)
		s.mu.Lock()
		defer s.mu.Unlock()
		if m.left--; m.left == 0 {
			delete(s.open, at)
		}
		return m.posts
	}
}

// posted is the events of a member's post at a meeting; nil: it has not come.
func (g *Group) posted(at meetingPlace, member int) []kernels.Event {
	g.shared.mu.Lock()
	defer g.shared.mu.Unlock()
	if m := g.shared.open[at]; m != nil {
		return m.posts[member].ready
	}
	return nil
}

// Until returns when ready does, which it asks again and again, however long that takes. It is a [kernels.Fault] where
// another rank fails.
func (g *Group) Until(ready func() bool) {
	for asked := 0; !ready(); asked++ {
		select {
		case <-g.world.cancelled:
			panic(kernels.Fault{Err: errCancelled})
		default:
		}
		if asked < 100 {
			runtime.Gosched()
		} else { // what is asked for may be computed by a core that this one would keep busy
			time.Sleep(20 * time.Microsecond)
		}
	}
}

// mostSpins is how often a member looks for the others before it sleeps, where each rank has a core: some 100
// microseconds, longer than waking takes.
const mostSpins = 200000

// wait returns when all members have come to a meeting.
func (g *Group) wait(m *meeting, at meetingPlace, exchange string) {
	patience := g.world.patience
	if exchange == standingBy {
		patience = math.MaxInt64 // rank 0 may judge answers, or save
	} else if !m.all.Load() {
		began := time.Now()
		defer func() { g.rank.Count(Tally{Waited: time.Since(began)}) }()
	}
	for range g.world.spins {
		if m.all.Load() {
			return
		}
	}
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case <-m.full:
	case <-g.world.cancelled:
		panic(kernels.Fault{Err: errCancelled})
	case <-late.C:
		panic(kernels.Fault{Err: fmt.Errorf("waited %v for rank %d at %s of %s", g.world.patience, g.absent(m, at),
			exchange, g.shared.name)})
	}
}

// absent is the first rank that has not come to a meeting.
func (g *Group) absent(m *meeting, at meetingPlace) int {
	g.shared.mu.Lock()
	defer g.shared.mu.Unlock()
	members := g.shared.members
	if at.from != everyone {
		members = []*Rank{members[at.from], members[at.to]}
	}
	for i, p := range m.posts {
		if p.exchange == "" {
			return members[i].ID
		}
	}
	return g.rank.ID
}

package parallel

import (
	"fmt"
	"slices"

	"lockstep/kernels"
)

// Exchange is a movement of memory between the members of a group that has begun. Until Wait returns its source must
// not be written, its destination not be read, and neither be released; see WaitReceived.
type Exchange struct {
	rank     *Rank
	received []kernels.Event        // of the copies to the memory of this member, unless they were waited for
	read     func() []kernels.Event // of the others' copies from it; waits for the other members
	own      []kernels.Event        // of operations of this member that copy, which later ones follow anyway
	unpin    func()                 // of the rank's stack
	taken    func() bool            // see Taken; nil: there is none
}

// Taken tells of [Group.Send] whether the other member has come to Receive: then Wait does not keep the host waiting.
func (x *Exchange) Taken() bool { return x.taken() }

// Wait holds operations that are enqueued later until the exchange is done: until this member has what it copies, and
// until the others have copied what is this member's. Nil waits for nothing.
func (x *Exchange) Wait() {
	if x != nil {
		x.rank.Transfers.WaitEvents(x.events()...)
		x.unpin()
	}
}

// WaitReceived holds operations that are enqueued later until this member has what it copies, which they may read. The
// others may still copy what is this member's: Wait has to follow before that is written or released. Two cards take
// 5 us to tell each other that they have read, and operations in between hide it.
func (x *Exchange) WaitReceived() {
	if x != nil {
		x.rank.Transfers.WaitEvents(x.received...)
		x.received = nil
	}
}

// Unpin lets the rank's stack be released before Wait: none of the exchange's tensors is among what is released.
func (x *Exchange) Unpin() {
	if x != nil {
		x.unpin()
	}
}

// Events are those that Wait waits for, for an operation that is to wait in its place.
func (x *Exchange) Events() []kernels.Event {
	events := append(x.events(), x.own...)
	x.unpin()
	return events
}

// events are of the copies to and from the memory of this member.
func (x *Exchange) events() []kernels.Event { return append(x.received, x.read()...) }

// Barrier holds operations that are enqueued later until all members have done what they enqueued before.
func (g *Group) Barrier() {
	var events []kernels.Event
	for _, p := range g.come(post{exchange: "barrier", ready: []kernels.Event{g.rank.Transfers.Record()}})() {
		events = append(events, p.ready...)
	}
	g.rank.Transfers.WaitEvents(events...)
}

// Share gives every member the tensors of all, in the order of members, and returns when all have come. It moves no
// memory, and waits for no device.
func (g *Group) Share(t kernels.Tensor) (all []kernels.Tensor) {
	for _, p := range g.come(post{exchange: "share", src: []kernels.Tensor{t}})() {
		all = append(all, p.src[0])
	}
	return all
}

// ShareNumbers gives every member the numbers of all, in the order of members, and returns when all have come. They are
// not to be changed any more.
func (g *Group) ShareNumbers(numbers []int32) (all [][]int32) {
	return g.shareNumbers(post{exchange: "share", numbers: numbers})
}

// StandBy is ShareNumbers of a rank that stands by for rank 0, for as long as that works by itself.
func (g *Group) StandBy(numbers []int32) (all [][]int32) {
	return g.shareNumbers(post{exchange: standingBy, numbers: numbers})
}

const standingBy = "standby"

func (g *Group) shareNumbers(p post) (all [][]int32) {
	for _, p := range g.come(p)() {
		all = append(all, p.numbers)
	}
	return all
}

// Summon makes the other ranks stand by, where rank 0 works alone: see [World.Standby].
func (g *Group) Summon() {
	if g.rank.ID == 0 {
		g.world.summon()
	}
}

// Pair is a tensor that a member gives to an exchange, and the one that it gets.
type Pair struct{ Dst, Src kernels.Tensor }

// sources are what a member gives.
func sources(pairs []Pair) (list []kernels.Tensor) {
	for _, p := range pairs {
		list = append(list, p.Src)
	}
	return list
}

// AllGather copies the rows of all members to Dst of each pair, one member's below the other's. Each has as many rows
// as it has; the types and columns are the same.
func (g *Group) AllGather(pairs ...Pair) *Exchange { return g.gatherRows(true, pairs) }

// GatherOthers is AllGather of the other members' rows: the place of this one's own in Dst stays as it is.
func (g *Group) GatherOthers(pairs ...Pair) *Exchange { return g.gatherRows(false, pairs) }

func (g *Group) gatherRows(own bool, pairs []Pair) *Exchange {
	return g.exchange("all-gather", post{src: sources(pairs)}, func(posts []post) (pieces []piece) {
		for k, pair := range pairs {
			at := 0
			for i, p := range posts {
				if own || i != g.Me {
					pieces = append(pieces, piece{i, pair.Dst.RowRange(at, at+p.src[k].Rows), p.src[k]})
				}
				at += p.src[k].Rows
			}
			if at != pair.Dst.Rows {
				panic(fmt.Sprintf("parallel: %d rows gathered into %s", at, pair.Dst))
			}
		}
		return pieces
	})
}

// Collect copies rows of which members have some each: ranges[i] are the rows [from, to) that member i has in Src of
// each pair, and Dst gets those from row `first` on.
func (g *Group) Collect(first int, ranges [][][2]int, pairs ...Pair) *Exchange {
	return g.collect(first, ranges, false, pairs)
}

// CollectDealt is Collect of rows that lie as Deal leaves them: Src has those of the member's ranges alone.
func (g *Group) CollectDealt(first int, ranges [][][2]int, pairs ...Pair) *Exchange {
	return g.collect(first, ranges, true, pairs)
}

func (g *Group) collect(first int, ranges [][][2]int, dealt bool, pairs []Pair) *Exchange {
	return g.exchange("collect", post{src: sources(pairs)}, func(posts []post) (pieces []piece) {
		for k, pair := range pairs {
			for i, p := range posts {
				before := 0 // rows of the member's ranges
				for _, rows := range ranges[i] {
					lies := rows[0]
					if dealt {
						lies = before
					}
					from, to := max(rows[0], first), min(rows[1], first+pair.Dst.Rows)
					if from < to {
						pieces = append(pieces, piece{i, pair.Dst.RowRange(from-first, to-first),
							p.src[k].RowRange(lies+from-rows[0], lies+to-rows[0])})
					}
					before += rows[1] - rows[0]
				}
			}
		}
		return pieces
	})
}

// Deal copies the rows that each member is dealt of those of all, which have consecutive ones in the order of members:
// ranges[i] are the rows [from, to) that Dst of member i gets, one range below the other.
func (g *Group) Deal(ranges [][][2]int, pairs ...Pair) *Exchange {
	return g.exchange("deal", post{src: sources(pairs)}, func(posts []post) (pieces []piece) {
		for k, pair := range pairs {
			at := 0 // of Dst
			for _, rows := range ranges[g.Me] {
				first := 0 // of the member's rows
				for i, p := range posts {
					src := p.src[k]
					if from, to := max(rows[0], first), min(rows[1], first+src.Rows); from < to {
						pieces = append(pieces, piece{i, pair.Dst.RowRange(at, at+to-from),
							src.RowRange(from-first, to-first)})
						at += to - from
					}
					first += src.Rows
				}
			}
			if at != pair.Dst.Rows {
				panic(fmt.Sprintf("parallel: %d rows dealt to %s", at, pair.Dst))
			}
		}
		return pieces
	})
}

// Broadcast copies what each member owns to the others: owned[i] are tensors that member i owns, as they lie in the
// memory of whoever calls. All members name the same ones in the same order.
func (g *Group) Broadcast(owned [][]kernels.Tensor) *Exchange {
	return g.exchange("broadcast", post{src: owned[g.Me]}, func(posts []post) (pieces []piece) {
		for i, p := range posts {
			if len(p.src) != len(owned[i]) {
				panic(fmt.Sprintf("parallel: rank %d broadcasts %d tensors, rank %d expects %d",
					g.shared.members[i].ID, len(p.src), g.rank.ID, len(owned[i])))
			}
			if i == g.Me {
				continue
			}
			for k, dst := range owned[i] {
				pieces = append(pieces, piece{i, dst, p.src[k]})
			}
		}
		return pieces
	})
}

// AllToAll copies blocks of rows: out[i] rows of Src of each pair, one block below the other, go to member i, and Dst
// gets in[i] rows from member i.
func (g *Group) AllToAll(in, out []int, pairs ...Pair) *Exchange {
	at := make([]int, len(in))
	for i := range at {
		at[i] = sum(in[:i])
	}
	for _, pair := range pairs {
		if sum(in) != pair.Dst.Rows || sum(out) != pair.Src.Rows {
			panic(fmt.Sprintf("parallel: %d rows of %s to %v and %d rows of %s from %v", sum(out), pair.Src, out,
				sum(in), pair.Dst, in))
		}
	}
	return g.Scatter(at, in, out, pairs...)
}

// Scatter is AllToAll where the rows from member i come to row at[i] of Dst, and other rows of Dst stay.
func (g *Group) Scatter(at, in, out []int, pairs ...Pair) *Exchange {
	return g.exchange("all-to-all", post{src: sources(pairs), rows: out}, func(posts []post) (pieces []piece) {
		for k, pair := range pairs {
			for i, p := range posts {
				first := sum(p.rows[:g.Me])
				src := p.src[k].RowRange(first, first+p.rows[g.Me])
				pieces = append(pieces, piece{i, pair.Dst.RowRange(at[i], at[i]+in[i]), src})
			}
		}
		return pieces
	})
}

// RowsToHeads is the all-to-all of DeepSpeed-Ulysses (Jacobs et al., arXiv 2309.14509): from Src of each pair, this
// member's rows of all columns, to Dst, the rows of all members of this one's columns. Columns are divided evenly, rows
// lie in the order of members.
func (g *Group) RowsToHeads(pairs ...Pair) *Exchange {
	return g.exchange("rows to heads", post{src: sources(pairs)}, func(posts []post) (pieces []piece) {
		for k, pair := range pairs {
			at, n := 0, pair.Dst.Cols
			for i, p := range posts {
				src := p.src[k].ColRange(g.Me*n, (g.Me+1)*n)
				pieces = append(pieces, piece{i, pair.Dst.RowRange(at, at+src.Rows), src})
				at += src.Rows
			}
			if at != pair.Dst.Rows || n*g.Size != pair.Src.Cols {
				panic(fmt.Sprintf("parallel: %d rows of %s to %s of %d ranks", at, pair.Src, pair.Dst, g.Size))
			}
		}
		return pieces
	})
}

// HeadsToRows is the way back: from the rows of all members of this one's columns to this member's rows of all columns.
func (g *Group) HeadsToRows(pairs ...Pair) *Exchange {
	var rows []int
	for _, pair := range pairs {
		rows = append(rows, pair.Dst.Rows)
	}
	return g.exchange("heads to rows", post{src: sources(pairs), rows: rows}, func(posts []post) (pieces []piece) {
		for k, pair := range pairs {
			from, at := 0, 0
			for _, p := range posts[:g.Me] {
				from += p.rows[k]
			}
			for i, p := range posts {
				src := p.src[k].RowRange(from, from+pair.Dst.Rows)
				pieces = append(pieces, piece{i, pair.Dst.ColRange(at, at+src.Cols), src})
				at += src.Cols
			}
			if at != pair.Dst.Cols {
				panic(fmt.Sprintf("parallel: %d columns of %s to %s", at, pair.Src, pair.Dst))
			}
		}
		return pieces
	})
}

// Read makes read enqueue operations that read what all members give where it lies: by kind, each in the order of
// members. They come once all members have computed theirs. The exchange is done when the others have read what is this
// member's.
func (g *Group) Read(read func(all [][]kernels.Tensor), own ...kernels.Tensor) *Exchange {
	dev, all := g.rank.Transfers, make([][]kernels.Tensor, len(own))
	var computed []kernels.Event
	for i, p := range g.come(post{exchange: "read", src: own, ready: []kernels.Event{dev.Record()}})() {
		for kind, t := range p.src {
			all[kind] = append(all[kind], t)
		}
		if i != g.Me {
			computed = append(computed, p.ready...)
		}
	}
	dev.WaitEvents(computed...)
	read(all)
	done := g.come(post{exchange: "read", ready: []kernels.Event{dev.Record()}})
	return &Exchange{rank: g.rank, unpin: g.rank.Stack.Pin(), read: func() (events []kernels.Event) {
		for i, p := range done() {
			if i != g.Me {
				events = append(events, p.ready...)
			}
		}
		return events
	}}
}

// Send offers a tensor to another member once the events have happened; the member's next Receive from this one takes
// it. Send does not wait for the other. It does not pin the stack: the tensor stays as it is until Wait.
func (g *Group) Send(to int, src kernels.Tensor, after ...kernels.Event) *Exchange {
	offer, taken := g.toNext(to, tensors)
	g.meet(offer, post{exchange: "receive", src: []kernels.Tensor{src}, ready: after})
	posts := g.meet(taken, post{exchange: "receive"})
	return &Exchange{rank: g.rank, unpin: func() {}, taken: func() bool { return len(g.posted(taken, 1)) > 0 },
		read: func() []kernels.Event { return posts()[1].ready }}
}

// Arrived tells whether the next Receive from another member has something to copy that has been computed.
func (g *Group) Arrived(from int) bool {
	n := g.calls.pairs[meetingPlace{from: from, to: g.Me, topic: tensors}]
	ready := g.posted(meetingPlace{from: from, to: g.Me, topic: tensors, n: 2 * n}, 0)
	return len(ready) > 0 && !slices.ContainsFunc(ready, func(e kernels.Event) bool { return !e.Happened() })
}

// Receive copies what another member sends, once the events have happened. It waits until the other has come to Send.
func (g *Group) Receive(from int, dst kernels.Tensor, after ...kernels.Event) *Exchange {
	offer, taken := g.fromNext(from, tensors)
	p := g.meet(offer, post{exchange: "receive"})()[0]
	copied := []kernels.Event{g.rank.Transfers.CopyPeer(slices.Concat(after, p.ready),
		kernels.PeerCopy{Dst: dst, Src: p.src[0]})}
	g.meet(taken, post{exchange: "receive", ready: copied})
	return &Exchange{rank: g.rank, unpin: func() {}, received: copied, read: func() []kernels.Event { return nil }}
}

// tensors is the topic of Send; those of Notify come behind it.
const tensors = 0

// Notify gives events to another member; its next Await of this one on the topic, 0 or more, returns them. Notify does
// not wait for the other.
func (g *Group) Notify(to, topic int, events ...kernels.Event) {
	offer, _ := g.toNext(to, tensors+1+topic)
	g.meet(offer, post{exchange: "await", ready: events})
}

// Await returns the events that another member notifies this one of. It waits until the other has come to Notify.
func (g *Group) Await(from, topic int) []kernels.Event {
	offer, _ := g.fromNext(from, tensors+1+topic)
	return g.meet(offer, post{exchange: "await"})()[0].ready
}

// piece is a copy that a member makes: of src, which lies in the memory of another or its own.
type piece struct {
	member   int
	dst, src kernels.Tensor
}

// exchange meets the others, and makes the copies that follow from what they posted.
func (g *Group) exchange(name string, p post, pieces func(posts []post) []piece) *Exchange {
	dev := g.rank.Transfers
	ready := dev.Record()
	p.exchange, p.ready = name, []kernels.Event{ready}
	posts := g.come(p)()
	for i, other := range posts {
		if other.exchange != name {
			panic(fmt.Sprintf("parallel: rank %d is at %s of %s, rank %d at %s", g.rank.ID, name, g.shared.name,
				g.shared.members[i].ID, other.exchange))
		}
	}
	list := pieces(posts)
	runs := g.runs(list)
	var copied, received, own []kernels.Event
	if runs != nil {
		copied, own = g.gather(posts, list, runs)
	} else {
		copied = g.copy(ready, posts, list)
		received = slices.DeleteFunc(slices.Clone(copied), func(e kernels.Event) bool { return e == nil })
	}
	unpin, others := g.rank.Stack.Pin(), g.come(post{exchange: name, copied: copied})
	read := func() (events []kernels.Event) {
		for i, p := range others() {
			if i != g.Me && p.copied[g.Me] != nil {
				events = append(events, p.copied[g.Me])
			}
		}
		return events
	}
	return &Exchange{rank: g.rank, received: received, read: read, own: own, unpin: unpin}
}

// run is rows of members that come below one another.
type run struct {
	dst   kernels.Tensor
	parts []kernels.Tensor
}

// runs are the pieces where they are few: an operation brings them by fewer calls of the driver, and sooner, than
// copies that wait for events and are waited for by others. Nil: they are not few.
func (g *Group) runs(pieces []piece) (list []run) {
	bytes := 0
	for _, c := range pieces {
		t := c.dst
		if t.Len() == 0 {
			continue
		}
		bytes += t.Bytes()
		if bytes > g.rank.Transfers.FewBytes() || t.DType == kernels.U8 || t.Groups > 1 || !t.Contiguous() ||
			!c.src.Contiguous() {
			return nil
		}
		last := len(list) - 1
		if last < 0 || len(list[last].parts) == g.Size || !below(list[last].dst, t) {
			t.Stride = t.Cols // of a single row it may be another
			list, last = append(list, run{dst: t}), last+1
		} else {
			list[last].dst.Rows += t.Rows
		}
		list[last].parts = append(list[last].parts, c.src)
	}
	return list
}

// below tells whether rows lie right below others, of as many columns.
func below(t, next kernels.Tensor) bool {
	return t.DType == next.DType && t.Cols == next.Cols && uintptr(t.Data)+uintptr(t.Bytes()) == uintptr(next.Data)
}

// gather makes copies by operations. own is when they are done, by member whose memory was copied in copied; nil: none
// was.
func (g *Group) gather(posts []post, pieces []piece, runs []run) (copied, own []kernels.Event) {
	dev := g.rank.Transfers
	var computed []kernels.Event
	from := make([]bool, g.Size)
	for _, c := range pieces {
		if c.member != g.Me && c.dst.Len() > 0 && !from[c.member] {
			from[c.member], computed = true, append(computed, posts[c.member].ready...)
		}
	}
	dev.WaitEvents(computed...)
	for _, r := range runs {
		dev.GatherPeers(r.dst, r.parts)
	}
	copied = make([]kernels.Event, g.Size)
	if computed == nil {
		return copied, nil
	}
	own = []kernels.Event{dev.Record()}
	for i := range copied {
		if from[i] {
			copied[i] = own[0]
		}
	}
	return copied, own
}

// leastByOperation is how many bytes of its own a member copies by an operation, while copy engines bring those of the
// others. Fewer are copied with those of another member, which takes fewer calls of the driver.
var leastByOperation = 1 << 20

// copy makes copies, and returns when those from each member are done; nil: none, or by an operation.
func (g *Group) copy(ready kernels.Event, posts []post, pieces []piece) []kernels.Event {
	copies, copied := make([][]kernels.PeerCopy, g.Size), make([]kernels.Event, g.Size)
	var own, large []kernels.PeerCopy
	for _, c := range pieces {
		switch pair := (kernels.PeerCopy{Dst: c.dst, Src: c.src}); {
		case c.dst.Len() == 0:
		case c.member != g.Me:
			copies[c.member] = append(copies[c.member], pair)
		case c.dst.Bytes() >= leastByOperation && c.dst.DType != kernels.I32:
			large = append(large, pair)
		default:
			own = append(own, pair)
		}
	}
	for i, list := range copies {
		if len(list) > 0 {
			copied[i] = g.rank.Transfers.CopyPeer([]kernels.Event{ready, posts[i].ready[0]}, append(list, own...)...)
			own = nil
		}
	}
	if len(own) > 0 { // there are none of others
		copied[g.Me] = g.rank.Transfers.CopyPeer([]kernels.Event{ready}, own...)
	}
	for _, c := range large {
		g.rank.Dev.Copy(c.Dst, c.Src)
	}
	return copied
}

func sum(v []int) (n int) {
	for _, x := range v {
		n += x
	}
	return n
}

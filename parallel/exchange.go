package parallel

import (
	"fmt"

	"lockstep/kernels"
)

// Exchange is a movement of memory between the members of a group that has begun. Until Wait returns its source must
// not be written, its destination not be read, and neither be released.
type Exchange struct {
	group  *Group
	name   string
	own    []kernels.Event // of the copies that this member made
	others func() []post   // what the others copied
	finish func()          // what is computed from the copies
	unpin  func()
}

// Wait holds operations that are enqueued later until the exchange is done: until this member has what it copies, and
// until the others have copied what is this member's.
func (x *Exchange) Wait() {
	defer x.unpin() // also where the rank leaves the exchange because another has failed
	posts, events := x.others(), x.own
	for i, p := range posts {
		if i != x.group.Me {
			events = append(events, p.copied[x.group.Me]...)
		}
	}
	x.group.rank.Transfers.WaitEvents(events...)
	if x.finish != nil {
		x.finish()
	}
}

// Share gives every member the tensors of all, in the order of members, and returns when all have come. It moves no
// memory, and waits for no device.
func (g *Group) Share(t kernels.Tensor) (all []kernels.Tensor) {
	for _, p := range g.come(post{exchange: "share", src: t})() {
		all = append(all, p.src)
	}
	return all
}

// AllGather copies the rows of all members to dst, one member's below the other's. Each has as many rows as it has; the
// types and columns are the same.
func (g *Group) AllGather(dst, src kernels.Tensor) *Exchange {
	return g.exchange("all-gather", post{src: src}, func(posts []post) (pieces []piece) {
		at := 0
		for i, p := range posts {
			pieces = append(pieces, piece{i, dst.RowRange(at, at+p.src.Rows), p.src})
			at += p.src.Rows
		}
		if at != dst.Rows {
			panic(fmt.Sprintf("parallel: %d rows gathered into %s", at, dst))
		}
		return pieces
	})
}

// Broadcast copies what each member owns to the others: owned[i] are tensors that member i owns, as they lie in the
// memory of whoever calls. All members name the same ones in the same order.
func (g *Group) Broadcast(owned [][]kernels.Tensor) *Exchange {
	return g.exchange("broadcast", post{owned: owned[g.Me]}, func(posts []post) (pieces []piece) {
		for i, p := range posts {
			if len(p.owned) != len(owned[i]) {
				panic(fmt.Sprintf("parallel: rank %d broadcasts %d tensors, rank %d expects %d",
					g.shared.members[i].ID, len(p.owned), g.rank.ID, len(owned[i])))
			}
			if i == g.Me {
				continue
			}
			for k, dst := range owned[i] {
				pieces = append(pieces, piece{i, dst, p.owned[k]})
			}
		}
		return pieces
	})
}

// AllToAll copies blocks of rows: out[i] rows of src, one block below the other, go to member i, and dst gets in[i]
// rows from member i.
func (g *Group) AllToAll(dst, src kernels.Tensor, in, out []int) *Exchange {
	return g.exchange("all-to-all", post{src: src, rows: out}, func(posts []post) (pieces []piece) {
		at := 0
		for i, p := range posts {
			first := sum(p.rows[:g.Me])
			pieces = append(pieces, piece{i, dst.RowRange(at, at+in[i]), p.src.RowRange(first, first+p.rows[g.Me])})
			at += in[i]
		}
		if at != dst.Rows || sum(out) != src.Rows {
			panic(fmt.Sprintf("parallel: %d rows of %s to %v and %d rows of %s from %v", sum(out), src, out, at, dst,
				in))
		}
		return pieces
	})
}

// ReduceScatter adds to dst F32 [1, n], the range of columns that this member owns, that range of the rows of all
// members, in the order of members and of their rows: dst = ((dst + first) + second) + ... src is F32 [rows, columns]
// with the ranges of the members side by side; each has as many rows as it has. The sums are enqueued by Wait.
func (g *Group) ReduceScatter(dst, src kernels.Tensor) *Exchange {
	var parts kernels.Tensor
	x := g.exchange("reduce-scatter", post{src: src, width: dst.Cols}, func(posts []post) (pieces []piece) {
		first, rows, columns := 0, 0, 0
		for i, p := range posts {
			if i < g.Me {
				first += p.width
			}
			columns, rows = columns+p.width, rows+p.src.Rows
		}
		if columns != src.Cols {
			panic(fmt.Sprintf("parallel: members own %d columns of %s", columns, src))
		}
		parts = g.rank.Stack.New(kernels.F32, rows, dst.Cols)
		at := 0
		for i, p := range posts {
			pieces = append(pieces, piece{i, parts.RowRange(at, at+p.src.Rows), p.src.ColRange(first, first+dst.Cols)})
			at += p.src.Rows
		}
		return pieces
	})
	x.finish = func() { g.rank.Dev.Accumulate(dst, parts) }
	return x
}

// piece is a copy that a member makes: of src, which lies in the memory of another or its own.
type piece struct {
	member   int
	dst, src kernels.Tensor
}

// exchange meets the others, and makes the copies that follow from what they posted.
func (g *Group) exchange(name string, p post, pieces func(posts []post) []piece) *Exchange {
	dev := g.rank.Transfers
	p.exchange, p.ready = name, dev.Record()
	posts := g.come(p)()
	for i, other := range posts {
		if other.exchange != name {
			panic(fmt.Sprintf("parallel: rank %d is at %s of %s, rank %d at %s", g.rank.ID, name, g.shared.name,
				g.shared.members[i].ID, other.exchange))
		}
	}
	x, copied := &Exchange{group: g, name: name}, make([][]kernels.Event, g.Size)
	for _, c := range pieces(posts) {
		e := dev.CopyPeer(c.dst, c.src, p.ready, posts[c.member].ready)
		x.own, copied[c.member] = append(x.own, e), append(copied[c.member], e)
	}
	x.unpin = g.rank.Stack.Pin()
	x.others = g.come(post{exchange: name, copied: copied})
	return x
}

func sum(v []int) (n int) {
	for _, x := range v {
		n += x
	}
	return n
}

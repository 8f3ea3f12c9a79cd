package model

// Reads is the bytes of weights that a forward has to read at least once, whatever it does with them.
type Reads struct {
	// every forward: all weights but those below, and but the embedding, of which it reads a row for each token
	Dense   int
	Head    int   // where logits are asked for
	Experts []int // one routed expert of each mixture, in the order in which a forward comes to them
}

// Reads counts by shapes.
func (m *Model) Reads() Reads {
	n := Reads{Head: m.Head.W.W.Bytes()}
	for _, p := range m.Params {
		if p != m.Embed && p != m.Head.W {
			n.Dense += p.W.Bytes()
		}
	}
	for _, bl := range m.Blocks {
		for _, sub := range bl {
			mix, ok := sub.Layer.(*MoE)
			if !ok {
				continue
			}
			all := 0
			for _, l := range mix.Experts.Linears() {
				all += l.bytes()
			}
			n.Dense -= all
			n.Experts = append(n.Experts, all/mix.Experts.GateUp.W.W.Groups)
		}
	}
	return n
}

// bytes of a projection with its biases and adapters.
func (l *Linear) bytes() int {
	n := l.W.W.Bytes()
	for _, s := range l.Subs {
		if s.Bias != nil {
			n += s.Bias.W.Bytes()
		}
		if s.LoRA != nil {
			n += s.LoRA.A.W.Bytes() + s.LoRA.B.W.Bytes()
		}
	}
	return n
}

// CacheReads is the bytes of a cache that a forward of one row or more of each sequence has to read at least once: keys
// and values of all its positions (lengths, of which so many are counted more than once, where sequences share them),
// in layers that see fewer of the latest or of chosen ones, and states. Keys by which an indexer chooses are left out
// where it leaves any.
func (m *Model) CacheReads(lengths []int, shared int) (bytes int) {
	for _, bl := range m.Blocks {
		mixer := bl.mixer()
		if mixer == nil {
			continue
		}
		all, seen, most := -shared, 0, m.sees(mixer)
		for _, n := range lengths {
			all += n
			seen += min(n, most)
		}
		bytes += min(all, seen)*mixer.PageBytes(1) + len(lengths)*mixer.SlotBytes()
	}
	return bytes
}

// sees is the most keys that a row of a mixer reads.
func (m *Model) sees(mixer Mixer) int {
	switch a := mixer.(type) {
	case *Attention:
		if a.Shape.Window > 0 {
			return a.Shape.Window
		}
	case *MLA:
		if a.Sparse {
			return a.TopK
		}
	}
	return m.MaxLength
}

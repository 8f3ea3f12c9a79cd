package model

// Reads is the bytes of weights that a forward reads at least once.
type Reads struct {
	// every forward: all weights but those below, and but the embedding, of which it reads a row for each token
	Dense   int
	Head    int   // where logits are asked for
	Experts []int // one routed expert of each mixture, in the order in which a forward comes to them
}

// Reads counts by shapes.
func (m *Model) Reads() Reads {
	n := Reads{Head: m.Head.W.Bytes()}
	for _, p := range m.Params {
		if p != m.Embed.Param && p != m.Head.W {
			n.Dense += p.Bytes()
		}
	}
	for _, bl := range m.Blocks {
		for _, sub := range bl {
			if mix, ok := sub.Layer.(mixture); ok {
				all, each := mix.expertBytes()
				n.Dense -= all
				n.Experts = append(n.Experts, each)
			}
		}
	}
	return n
}

// mixture is a layer whose tokens read some of its experts each.
type mixture interface {
	// expertBytes is the bytes of the weights of all routed experts, and of one.
	expertBytes() (all, each int)
}

func (m *MoE) expertBytes() (all, each int) {
	for _, l := range m.Experts.Linears() {
		all += l.bytes()
	}
	return all, all / m.Experts.GateUp.W.matrices()
}

// bytes of a projection with its biases and adapters.
func (l *Linear) bytes() int {
	n := l.W.Bytes()
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
// in layers that read a window or selected keys fewer, and states. Keys of an indexer are left out where it selects.
func (m *Model) CacheReads(lengths []int, shared int) (bytes int) {
	for _, bl := range m.Blocks {
		mixer := bl.mixer()
		if mixer == nil {
			continue
		}
		all, seen, most := -shared, 0, mixer.keys(m.MaxLength)
		for _, n := range lengths {
			all += n
			seen += min(n, most)
		}
		bytes += min(all, seen)*mixer.PageBytes(1) + len(lengths)*mixer.SlotBytes()
	}
	return bytes
}

func (a *Attention) keys(maxLength int) int {
	if a.Shape.Window > 0 {
		return a.Shape.Window
	}
	return maxLength
}

func (a *MLA) keys(maxLength int) int {
	if a.Sparse {
		return a.TopK
	}
	return maxLength
}

func (n *DeltaNet) keys(maxLength int) int { return maxLength }
func (m *Mamba) keys(maxLength int) int    { return maxLength }

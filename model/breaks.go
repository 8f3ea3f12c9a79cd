package model

import (
	"slices"

	"lockstep/kernels"
)

// Breaks are the rules that have a place in the model, and so can be broken in it, in the order of [kernels.Breaks].
func (m *Model) Breaks() []kernels.Break {
	found := []kernels.Break{kernels.BreakSplitK, kernels.BreakNormRows, kernels.BreakVocab}
	for _, bl := range m.Blocks {
		for _, sub := range bl {
			switch l := sub.Layer.(type) {
			case *Attention:
				found = append(found, l.breaks()...)
			case *MLA:
				found = append(found, m.latentBreaks(l)...)
			case *MoE:
				found = append(found, l.breaks()...)
			case *DeltaNet, *Mamba:
				found = append(found, kernels.BreakChunks)
			}
		}
	}
	if m.adapts() {
		found = append(found, kernels.BreakAdapter)
	}
	absent := func(b kernels.Break) bool { return !slices.Contains(found, b) }
	return slices.DeleteFunc(slices.Clone(kernels.Breaks), absent)
}

func (a *Attention) breaks() []kernels.Break {
	found := []kernels.Break{kernels.BreakKeyBlock}
	if !a.Rope.Cos.IsNil() {
		found = append(found, kernels.BreakRope)
	}
	if a.Sinks != nil {
		found = append(found, kernels.BreakSinks)
	}
	return found
}

// latentBreaks are those of latent attention. Sparse attention reads all keys where they are no more than an indexer
// chooses: then a block holds them all unless it chooses many.
func (m *Model) latentBreaks(a *MLA) []kernels.Break {
	if !a.Sparse {
		return []kernels.Break{kernels.BreakRope, kernels.BreakKeyBlock}
	}
	found := []kernels.Break{kernels.BreakRope}
	chooser, ok := m.Blocks[a.Chosen].mixer().(*MLA)
	if !ok || chooser.Index == nil {
		return found
	}
	chosen := chooser.Index.Shape.TopK
	if min(chosen, m.MaxLength) > kernels.Default().KeyBlock {
		found = append(found, kernels.BreakKeyBlock)
	}
	if m.MaxLength > chosen {
		found = append(found, kernels.BreakIndexScores, kernels.BreakKeyTies, kernels.BreakSparseOrder)
	}
	return found
}

func (m *MoE) breaks() []kernels.Break {
	found := []kernels.Break{kernels.BreakCombine, kernels.BreakRouterTies}
	if r := m.Router.Settings; r.TopGroups < r.Groups {
		found = append(found, kernels.BreakGroupLimits)
	}
	return found
}

// adapts reports whether an adapter adds anything: one that is new does not.
func (m *Model) adapts() bool {
	some := func(v float32) bool { return v != 0 }
	for _, l := range m.linears() {
		for _, s := range l.Subs {
			if s.LoRA != nil && slices.ContainsFunc(ReadValues(m.dev, s.LoRA.B.W), some) {
				return true
			}
		}
	}
	return false
}

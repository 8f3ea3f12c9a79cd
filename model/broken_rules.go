package model

import (
	"slices"

	"lockstep/kernels"
	"lockstep/quant"
)

// Breaks are the rules that apply to the model, and so can be broken in it, in the order of [kernels.Breaks].
func (m *Model) Breaks() []kernels.Break {
	found := []kernels.Break{kernels.BreakSplitK, kernels.BreakNormRows, kernels.BreakVocab}
	for _, bl := range m.Blocks {
		for _, sub := range bl {
			found = append(found, sub.Layer.breaks(m.MaxLength)...)
		}
	}
	if m.adapts() {
		found = append(found, kernels.BreakAdapter)
	}
	if m.dev.Definition().Acts != quant.AsTrained && slices.ContainsFunc(m.Params, func(p *Param) bool {
		return p.coded
	}) {
		found = append(found, kernels.BreakActs)
	}
	if m.dev.Definition().Cache != quant.AsTrained {
		found = append(found, kernels.BreakCache)
	}
	// a sum of two is the same in any order where it is not rounded
	if m.ExpertParallel() && slices.ContainsFunc(m.mixtures(), func(l *MoE) bool {
		return l.TopK > 2 || m.DType == kernels.BF16
	}) {
		found = append(found, kernels.BreakRankSums)
	}
	absent := func(b kernels.Break) bool { return !slices.Contains(found, b) }
	return slices.DeleteFunc(slices.Clone(kernels.Breaks), absent)
}

func (a *Attention) breaks(int) []kernels.Break {
	found := []kernels.Break{kernels.BreakKeyBlock}
	if a.Rope != nil {
		found = append(found, kernels.BreakRope)
	}
	if a.Sinks != nil {
		found = append(found, kernels.BreakSinks)
	}
	return found
}

// breaks of sparse attention: it reads all keys where they are no more than an indexer selects, and then one block
// holds them all unless TopK is large.
func (a *MLA) breaks(maxLength int) []kernels.Break {
	if !a.Sparse {
		return []kernels.Break{kernels.BreakRope, kernels.BreakKeyBlock}
	}
	found := []kernels.Break{kernels.BreakRope}
	if min(a.TopK, maxLength) > kernels.Default().KeyBlock {
		found = append(found, kernels.BreakKeyBlock)
	}
	if maxLength > a.TopK {
		found = append(found, kernels.BreakIndexScores, kernels.BreakKeyTies, kernels.BreakSparseOrder)
	}
	return found
}

func (m *MoE) breaks(int) []kernels.Break {
	found := []kernels.Break{kernels.BreakCombine, kernels.BreakRouterTies}
	if r := m.Router.Settings; r.TopGroups < r.Groups {
		found = append(found, kernels.BreakGroupLimits)
	}
	return found
}

func (n *DeltaNet) breaks(int) []kernels.Break { return []kernels.Break{kernels.BreakChunks} }
func (m *Mamba) breaks(int) []kernels.Break    { return []kernels.Break{kernels.BreakChunks} }
func (m *MLP) breaks(int) []kernels.Break      { return nil }
func (m *GatedMLP) breaks(int) []kernels.Break { return nil }

// adapts reports whether an adapter changes any output. A new one does not: its B is zero.
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

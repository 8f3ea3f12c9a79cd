package broken

import (
	"slices"

	"lockstep/kernels"
)

// Reaches forwards to the wrapped device.
func (d *Device) Reaches(other kernels.Device) error {
	if o, ok := other.(*Device); ok {
		other = o.operations
	}
	return d.operations.Reaches(other)
}

// CombinePeers breaks [kernels.BreakCombine] and [kernels.BreakRankSums].
func (d *Device) CombinePeers(out, residual kernels.Tensor, y kernels.PeerRows, weights,
	rowOf kernels.Tensor) {
	mem, release := d.scratch()
	defer release()
	if d.breaks(kernels.BreakCombine, out.Rows) && !weights.IsNil() {
		weights = d.throughBF16(mem, weights)
	}
	if d.rule != kernels.BreakRankSums || len(y.Parts) == 1 {
		d.operations.CombinePeers(out, residual, y, weights, rowOf)
		return
	}
	var ends []int
	for i, p := range y.Parts {
		ends = append(ends, y.Base[i]+p.Rows)
	}
	rows, offsets := slices.Max(ends), d.loadInts(y.Offsets)[0]
	for i := range ends[1:] {
		ends[i] = int(offsets[y.First[i+1]])
	}
	ends[len(ends)-1] = rows
	all, each := mem.New(out.DType, rows, out.Cols), mem.New(kernels.I32, 1, rows)
	ids := make([]int32, rows)
	for i := range ids {
		ids[i] = int32(i)
	}
	d.storeInts(each, [][]int32{ids})
	d.TakePeers(all, y, each)
	if residual.IsNil() {
		d.combineByRank(out, all, weights, rowOf, ends)
		return
	}
	sum := mem.New(out.DType, out.Rows, out.Cols)
	d.combineByRank(sum, all, weights, rowOf, ends)
	d.Add(out, residual, sum)
}

// combineByRank breaks [kernels.BreakRankSums]: the rows of each rank are combined and rounded, then the sums are added
// in the order of ranks, as an all-reduce does.
func (d *Device) combineByRank(out, y, weights, rowOf kernels.Tensor, ends []int) {
	mem, release := d.scratch()
	defer release()
	own, sum := mem.New(kernels.F32, rowOf.Rows, rowOf.Cols), mem.New(out.DType, out.Rows, out.Cols)
	all, from := d.loadInts(rowOf), 0
	for i, to := range ends {
		w := make([][]float32, len(all))
		for t, rows := range all {
			w[t] = slices.Repeat([]float32{1}, len(rows))
			if !weights.IsNil() {
				w[t] = d.load(weights.RowRange(t, t+1))[0]
			}
			for slot, row := range rows {
				if int(row) < from || int(row) >= to {
					w[t][slot] = 0
				}
			}
		}
		d.store(own, w)
		if from = to; i == 0 {
			d.operations.Combine(out, kernels.Tensor{}, y, own, rowOf)
			continue
		}
		d.operations.Combine(sum, kernels.Tensor{}, y, own, rowOf)
		d.Add(out, out, sum)
	}
}

//go:build cuda

package gemm

import (
	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

// gradTiling is a variant of the kernels in weightgrad_wgmma.cu. All give the same bits.
type gradTiling struct {
	name          string
	rows, columns int  // of a tile of dw
	stages, depth int  // of the ring; rows of dy and x in a stage
	streams       bool // sums come and go through shared memory, by one block on a multiprocessor; else two
}

var (
	gradWide   = gradTiling{"_wide", 128, 256, 4, 32, true}
	gradSquare = gradTiling{"_square", 128, 128, 5, 64, true}
	gradFew    = gradTiling{"_few", 64, 64, 6, 64, false}
)

// gradTilings are all that weightGradTiling may choose.
var gradTilings = []gradTiling{gradWide, gradSquare, gradFew}

// GradientPaths are the values of [driver.Context.Path] that force a kernel of weightgrad_wgmma.cu.
var GradientPaths = []string{gradWide.name, gradSquare.name, gradFew.name}

func (s gradTiling) blocks() int {
	if s.streams {
		return 1
	}
	return 2
}

// threads is wgmma_ring.cuh's.
func (s gradTiling) threads() int {
	if s.streams {
		return s.rows*2 + 128
	}
	return s.rows*2 + 32
}

// shared is the bytes of the ring, what aligning it may cost, and a tile of sums where they wait there.
func (s gradTiling) shared() int {
	ring := s.stages*(s.rows+s.columns)*s.depth*2 + 1024
	if s.streams {
		return ring + 4*s.rows*s.columns
	}
	return ring
}

func (s gradTiling) tiles(dw kernels.Tensor) int {
	return dw.Groups * driver.Blocks(dw.Rows, s.rows) * driver.Blocks(dw.Cols, s.columns)
}

// weightGradNative is WeightGrad by wgmma, of at most weightgradWgmmaMostPlaces places where rows lie.
func (d *Ops) weightGradNative(dw kernels.Tensor, places []kernels.GradRows, fresh bool) {
	rows, first := 0, places[0].Groups
	for _, p := range places {
		rows += p.X.Rows
	}
	s := d.weightGradTiling(dw, rows)
	at := weightgradWgmmaPlaces{count: driver.Int32(len(places))}
	for i, p := range places {
		at.of[i] = weightgradWgmmaPlace{dy: d.GroupBoxes(p.DY, p.Groups, s.depth),
			x: d.GroupBoxes(p.X, p.Groups, s.depth), offsets: driver.Address(p.Groups.Offsets),
			segments: driver.Int32(p.Groups.Segments)}
	}
	sharing := 0
	if first.Interleaved {
		sharing = first.Count / dw.Groups
	}
	launchWeightGradWgmma(d.Context, "weight_grad"+s.name, [3]int{min(s.tiles(dw), s.blocks()*d.Processors), 1, 1},
		s.threads(), s.shared(), &at, dw, dw.Groups, sharing, driver.Flag(first.Chain), driver.Flag(fresh), dw.Rows,
		dw.Cols)
}

// weightGradTiling is the variant for a shape and rows of all groups together. Small tiles take what is narrow, what
// has too few large ones, and what cannot stream: rows of dw must begin at multiples of 16 bytes. Wide ones read less
// next to dw, which is most of what moves where groups are short, and next to each other where a group is long.
func (d *Ops) weightGradTiling(dw kernels.Tensor, rows int) gradTiling {
	const short, long, narrow = 512, 4096, 64 // rows of a group; rows or columns of dw
	streams := dw.Cols%4 == 0
	for _, s := range gradTilings {
		if s.name == d.Path && (streams || !s.streams) {
			return s
		}
	}
	group := rows / dw.Groups
	switch {
	case !streams || min(dw.Rows, dw.Cols) <= narrow || gradSquare.tiles(dw) < d.Processors:
		return gradFew
	case (group < short || group >= long) && dw.Cols > gradSquare.columns && gradWide.tiles(dw) >= d.Processors:
		return gradWide
	}
	return gradSquare
}

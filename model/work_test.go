package model

import (
	"math"
	"path/filepath"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/meta"
	"lockstep/parallel"
)

// What a meta device counts of a forward is what layers say of themselves.
func TestCountedWork(t *testing.T) {
	families, err := filepath.Glob("testdata/*/golden.safetensors")
	if err != nil || len(families) == 0 {
		t.Fatal(families, err)
	}
	const rows = 40
	for _, file := range families {
		dir := filepath.Dir(file)
		for _, form := range []kernels.LatentForm{kernels.LatentExpanded, kernels.LatentAbsorbed} {
			t.Run(filepath.Base(dir)+" "+string(form), func(t *testing.T) {
				def := kernels.Default()
				def.Latent = form
				dev := meta.New(def, kernels.SpareCPU)
				r := &parallel.Rank{Dev: dev, Stack: kernels.NewArena(dev), Size: 1}
				m, err := LoadFolder(dev, dir, "", Options{})
				if err != nil {
					t.Fatal(err)
				}
				l := &kernels.Layout{Spans: []kernels.Span{{Rows: rows}}, Segments: []int32{0, rows}}
				dev.CountWork(true)
				m.TrainForward(r, NewBatch(r, make([]int32, rows), l, nil), false)
				want := 0.0
				for _, bl := range m.Blocks {
					w := bl.work(m.DType, m.Hidden, Extent{Rows: rows, Length: rows})
					want += w.output + w.again + w.once
					for _, res := range w.results {
						want += res.flops
					}
				}
				if got := dev.Work().FLOPs(); math.Abs(got/want-1) > 1e-3 {
					t.Errorf("%.0f FLOPs are counted, layers say %.0f", got, want)
				}
			})
		}
	}
}

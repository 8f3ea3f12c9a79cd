//go:build cuda

package attention

import (
	"embed"

	"lockstep/kernels/cuda/driver"
)

// Sources are the kernels.
//
//go:embed *.cu *.cuh
var Sources embed.FS

// Ops is the operations on one GPU.
type Ops struct {
	*driver.Context
	plans    attentionPlans
	tiles    latest[tileShape, *queryTiles]
	numbered latest[int, *numberedQueries] // by rows of a page
	stored   latest[int, []int32]          // likewise
}

// New is the operations by a context whose kernels are those of [Sources], among others.
func New(c *driver.Context) Ops {
	return Ops{Context: c, plans: attentionPlans{latest[planShape, *attentionPlan]{}},
		tiles: latest[tileShape, *queryTiles]{}, numbered: latest[int, *numberedQueries]{},
		stored: latest[int, []int32]{}}
}

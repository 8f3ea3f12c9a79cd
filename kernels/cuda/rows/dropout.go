//go:build cuda

package rows

import (
	"fmt"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

// Dropout: out = round(x * factor) or 0, both [T, H]. out may be x. Rows and columns are those of the tensors, never
// those of one long row.
func (d *Ops) Dropout(out, x kernels.Tensor, o kernels.Dropout) {
	if out.Groups != 1 || x.Groups != 1 || out.Rows != x.Rows || out.Cols != x.Cols {
		panic(fmt.Sprintf("cuda: dropout of %s to %s", x, out))
	}
	word := func(w uint32) int { return int(int32(w)) }
	launchDropout(d.Context, driver.Suffix(out), driver.ElementGrid(x.Rows, x.Cols), driver.ElementThreads, 0, out, x,
		o.Factor(), word(o.Threshold()), word(uint32(o.Seed)), word(uint32(o.Seed>>32)), word(o.Step), word(o.Layer),
		word(o.Row), x.Rows, x.Cols, out.Stride, x.Stride)
}

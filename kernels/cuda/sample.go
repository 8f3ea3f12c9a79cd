//go:build cuda

package cuda

import "lockstep/kernels"

// draw is a row's settings as sample.cu has them.
type draw struct {
	inv, topP, u float32
	topK         int32
}

// Sample chooses an id for each row of logits F32 [n, V]. NaN is a bug that this device does not report.
func (d *Device) Sample(ids, logits kernels.Tensor, rows []kernels.Sampling) {
	const threads = 512
	draws := make([]draw, len(rows))
	for i, r := range rows {
		draws[i] = draw{topP: r.TopP, topK: int32(r.TopK), u: kernels.Uniform(r.Seed, r.Request, r.Index)}
		if r.Temperature != 0 {
			draws[i].inv = kernels.Inverse(r.Temperature)
		}
	}
	d.launch("sample", [3]int{len(rows), 1, 1}, threads, 0, ids, logits, stage(d, draws), logits.Cols, logits.Stride)
}

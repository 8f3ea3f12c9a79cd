package kernels

// IndexLearning is how an indexer of sparse attention learns where attention looks (DeepSeek-V3.2-Exp report, section
// 2.1; for layers that share a choice arXiv 2603.12201): by the divergence KL(p || softmax(score)) of each row, p what
// attention gives each key, summed over heads and layers and normalised. Both sides are over the keys of the row's
// list, or with selected nil over all keys up to its own: lists hold positions of the row's sequence, ascending, and
// entry e of a row is its e-th key. Nothing but the indexer has a gradient of it. Layouts have no cache. The
// conventions are those of Device.
//
// A row depends on the rows of its own sequence alone, and a list of all keys gives the bits of selected nil. Entries
// behind a row's list are neither read nor written.
type IndexLearning interface {
	SparseAttention

	// LayerNormBackward, with c and rstd as in LayerNorm, g = dy*w and xh = c*rstd: dx = round(rstd*((g - tree(g)/n) -
	// xh*(tree(g*xh)/n))); dw[j] += dy*xh and dbias[j] += dy as sums over rows. dw, dbias F32 [1, n]. dx may be dy.
	LayerNormBackward(dx, dw, dbias, dy, x, w Tensor, eps float32, packs []int32)
	// IndexTarget adds what one layer's attention gives its keys to target F32 [T, entries]: target_e +=
	// Exp2(min(dot(q_h, k_j)*c - lse_h, 0)) for heads h ascending, with q, k, lse and c = float32(Scale*log2e) as in
	// Attention. The window must be 0.
	IndexTarget(target, q, k, lse, selected Tensor, l *Layout, a Attn)
	// IndexLoss turns what IndexTarget left, t_e, into loss F32 [1, T] and the gradient of loss*scale by the scores, in
	// place. With s_e = score_j as in SelectKeys (but not a number stays so), trees over the row's entries:
	//
	//	p_e = t_e/tree(t);  m = max(s);  y_e = Exp2((s_e-m)*log2e);  z = tree(y)
	//	loss = tree(p_e*(Ln(p_e) - ((s_e-m) - Ln(z)))), the term +0 where p_e < 2^-126
	//	ds_e = scale*(y_e*(1/z) - p_e)
	IndexLoss(loss, target, q, weights, k, selected Tensor, l *Layout, x Index, scale float32)
	// IndexBackward takes ds F32 [T, entries] down to dq [T, Heads*Dim], dk [T, Dim] and dweights F32 [T, Heads], which
	// are written. With r_h,j = dot(q_h, k_j)*c, c = float32(x.Scale):
	//
	//	dweights_h = tree over entries of ds_e*max(r_h,j, +0)
	//	dr_h,j = (ds_e*weights_h)*c where r_h,j > 0, else +0; with BF16 storage rounded to bf16, as operand of the
	//	dots below
	//	dq_h = round(dot over entries of dr_h,j, k_j  + 0)
	//	dk_j = round(dot over heads ascending, in each over queries ascending, of dr_h,j, q_h  + 0)
	//
	// DotTC16 takes steps of 16 entries for dq and of 16 queries from position 0, anew for each head, for dk; pairs
	// that are no entry count as +0.
	IndexBackward(dq, dk, dweights, ds, q, weights, k, selected Tensor, l *Layout, x Index)
}

// IndexLearner is a Device that holds what an indexer learns against the CPU before it is used; others compute all.
type IndexLearner interface {
	// LearnsIndex is nil where the operations of [IndexLearning] are written for a shape and an indexer and admitted.
	LearnsIndex(a Attn, x Index) error
}

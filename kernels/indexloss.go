package kernels

// IndexerLoss is the indexer loss of sparse attention (DeepSeek-V3.2-Exp report, section 2.1; for layers that share a
// selection arXiv 2603.12201): the divergence KL(p || softmax(score)) of each row. p is the attention probability of
// each key, summed over heads and layers and normalised. Both distributions are over the row's selected keys, or with
// selected nil over all keys up to the row's own. Lists hold positions of the row's sequence, ascending; entry e of a
// row is its e-th key. Only the indexer has a gradient of this loss. Layouts have no cache. The conventions are those
// of Device.
//
// A row depends only on rows of its own sequence. A list of all keys gives the bits of selected nil. Entries after the
// end of a row's list are neither read nor written.
type IndexerLoss interface {
	SparseAttention

	// LayerNormBackward, with c and rstd as in LayerNorm, g = dy*w and xh = c*rstd: dx = round(rstd*((g - tree(g)/n) -
	// xh*(tree(g*xh)/n))); dw[j] += dy*xh and dbias[j] += dy as sums over rows. dw, dbias F32 [1, n]. dx may be dy.
	LayerNormBackward(dx, dw, dbias, dy, x, w Tensor, eps float32, segments []int32)
	// IndexTarget adds the attention probabilities of one layer to target F32 [T, entries]: target_e +=
	// Exp2(min(dot(q_h, k_j)*c - lse_h, 0)) for heads h ascending, with q, k, lse and c = float32(Scale*log2e) as in
	// Attention. The window must be 0.
	IndexTarget(target, q, k, lse, selected Tensor, l *Layout, a Attn)
	// IndexLoss computes loss F32 [1, T] from the target t_e of IndexTarget and replaces the target by the gradient of
	// loss by the scores. With s_e = score_j as in SelectKeys (but NaN stays NaN), trees over the row's entries:
	//
	//	p_e = t_e/tree(t);  m = max(s);  y_e = Exp2((s_e-m)*log2e);  z = tree(y)
	//	loss = tree(p_e*(Ln(p_e) - ((s_e-m) - Ln(z)))), the term +0 where p_e < 2^-126
	//	ds_e = y_e*(1/z) - p_e
	IndexLoss(loss, target, q, weights, k, selected Tensor, l *Layout, x Index)
	// IndexBackward propagates ds F32 [T, entries] to dq [T, Heads*Dim], dk [T, Dim] and dweights F32 [T, Heads], which
	// are written. With r_h,j = dot(q_h, k_j)*c, c = float32(x.Scale):
	//
	//	dweights_h = tree over entries of ds_e*max(r_h,j, +0)
	//	dr_h,j = (ds_e*weights_h)*c where r_h,j > 0, else +0; with BF16 storage rounded to bf16, as operand of the
	//	dots below
	//	dq_h = round(dot over entries of dr_h,j, k_j  + 0)
	//	dk_j = round(dot over heads ascending, in each over queries ascending, of dr_h,j, q_h  + 0)
	//
	// DotTC16 takes k-steps of 16 entries for dq; for dk, k-steps of 16 queries from position 0, restarting at each
	// head. Pairs that are not in a list count as +0.
	IndexBackward(dq, dk, dweights, ds, q, weights, k, selected Tensor, l *Layout, x Index)
}

// IndexerLossChecker is a Device whose indexer loss supports only some shapes; other devices support all.
type IndexerLossChecker interface {
	// CheckIndexerLoss returns nil if the operations of [IndexerLoss] support a shape and an indexer and have passed
	// their self-test, otherwise the reason.
	CheckIndexerLoss(a Attn, x Index) error
}

package kernels

// Index is the shape of an indexer: Heads queries of Dim columns for each row, one key for each row, TopK keys chosen.
type Index struct {
	Heads, Dim, TopK int
	Scale            float64 // of a head's product, usually 1/sqrt(Dim)
}

// SparseAttention is attention to keys that an indexer has chosen (DeepSeek Sparse Attention, DeepSeek-V3.2 report;
// GLM-5). The conventions are those of Device. The indexer has no gradient here; its training is [IndexerLoss].
//
// Rule 3 of the definition. The list of a query at position i is the min(TopK, i+1) keys j <= i of the highest scores,
// equal ones by position, then sorted by position. Attention is rule 2 over the list in place of positions 0 ... i:
// blocks of KeyBlock entries, splits of KeySplit entries, from the list's start. A list of all keys gives the bits of
// Attention.
type SparseAttention interface {
	// LayerNorm: mean = tree(x)/n, c = x - mean, rstd = 1/sqrt(tree(c*c)/n + eps); out = round(c*rstd*w + bias),
	// products rounded, left to right. w, bias [1, n].
	LayerNorm(out, x, w, bias Tensor, eps float32)
	// SelectKeys writes the positions of each row's selected keys to selected int32 [T, TopK], -1 after the last. q is
	// [T, Heads*Dim], weights F32 [T, Heads], keys.K has Dim columns. score_j = sum over heads ascending, from +0, of
	// weights_h * max(dot(q_h, k_j)*c, +0), c = float32(Scale); NaN counts as -Inf.
	SelectKeys(selected, q, weights Tensor, keys KV, l *Layout, x Index)
	// SparseAttend is Attention to the keys in selected. The window must be 0.
	SparseAttend(out, lse, q Tensor, kv KV, selected Tensor, l *Layout, a Attn)
	// SparseAttendBackward is AttentionBackward with p = ds = +0 for keys that were not selected. The dot of dq goes
	// over the list (DotTC16 in k-steps of 16 entries).
	SparseAttendBackward(dq, dk, dv, dout, out, lse, q Tensor, kv KV, selected Tensor, l *Layout, a Attn)
}

// SparseAttentionChecker is a Device whose sparse attention supports only some shapes; other devices support all.
type SparseAttentionChecker interface {
	// CheckSparseAttention returns nil if the operations of [SparseAttention] support a shape and an indexer and have
	// passed their self-test, otherwise the reason.
	CheckSparseAttention(a Attn, x Index) error
}

package kernels

// KeyPart is a part of the work of dk and dv: some queries continue the chains of some keys.
type KeyPart struct {
	From, To int      // rows of the queries
	Keys     [][2]int // ranges [from, to) of rows of the keys, none in two of them
	Begins   bool     // the queries are the first: chains begin from +0
	Ends     bool     // they are the last: the gradients are written
}

// DividedAttention is [Device.AttentionBackward] and [SparseAttention.SparseAttendBackward] of sequences whose rows
// several devices have: each computes dq of its rows as queries, and dk and dv of its rows as keys. The bits are those
// of one call for all rows. selected nil: each query reads all keys up to its own. The conventions are those of Device.
type DividedAttention interface {
	// AttentionDelta writes D_i of AttentionBackward to delta F32 [T, Heads].
	AttentionDelta(delta, dout, out Tensor, a Attn)
	// AttentionQueryGrad writes dq of the rows of a layout, whose keys have rows of their own (see [Span.Shift]).
	AttentionQueryGrad(dq, dout, delta, lse, q Tensor, kv KV, selected Tensor, l *Layout, a Attn)
	// AttentionKeyGrad continues dk and dv of a part by the queries of some rows of a layout of whole sequences: those
	// that q, dout, delta, lse and selected have. Between calls the chains are in sums F32 [T,
	// KVHeads*(HeadDim+ValueDim)]. kv, dk and dv have T rows. Of other keys than the part's, rows of sums, dk and dv
	// are undefined afterwards. Without [Attn.Latent] a part has all rows as queries: its chains go over heads first.
	AttentionKeyGrad(dk, dv, sums, dout, delta, lse, q Tensor, kv KV, selected Tensor, l *Layout, a Attn, part KeyPart)
}

package kernels

// KeyPart is the keys whose gradients a call of [DividedAttention] takes, and where its heads are in their chains.
type KeyPart struct {
	From, To int  // rows of the keys
	Begins   bool // the heads are the first: chains begin from +0
	Ends     bool // they are the last: the gradients are written
}

// DividedAttention is [Device.AttentionBackward] and [SparseAttention.SparseAttendBackward] of sequences whose rows
// several devices have: each computes dq of its rows as queries, and dk and dv of its rows as keys. The bits are those
// of one call for all rows. selected nil: each query reads all keys up to its own. The conventions are those of Device.
type DividedAttention interface {
	// AttentionDelta writes D_i of AttentionBackward to delta F32 [T, Heads].
	AttentionDelta(delta, dout, out Tensor, a Attn)
	// AttentionQueryGrad writes dq of the rows of a layout, whose keys have rows of their own (see [Span.Shift]).
	AttentionQueryGrad(dq, dout, delta, lse, q Tensor, kv KV, selected Tensor, l *Layout, a Attn)
	// AttentionKeyGrad continues dk and dv of a part of the keys by some heads of every row of a layout of whole
	// sequences: those of a, whose columns q, dout, delta and lse have. Between calls the chains are in sums F32 [T,
	// KVHeads*(HeadDim+ValueDim)]. dk and dv have T rows. Of other keys than the part's, rows of sums, dk and dv are
	// undefined afterwards.
	AttentionKeyGrad(dk, dv, sums, dout, delta, lse, q Tensor, kv KV, selected Tensor, l *Layout, a Attn, part KeyPart)
}

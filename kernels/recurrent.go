package kernels

// Recurrence is the shape of a layer whose heads keep a state of [KeyDim, ValueDim] numbers. Head h of values reads
// head h/(Heads/KeyHeads) of keys and queries.
type Recurrence struct{ KeyHeads, Heads, KeyDim, ValueDim int }

// ChunkState is the cached state of a recurrence for the sequence in each slot: the state S at the start of the chunk
// of its last position, and k, n and c (see Recurrent) of that chunk's rows. All are F32. With them the next row costs
// no more than a step of the plain recurrence.
type ChunkState struct {
	S Tensor // [slots, Heads*KeyDim, ValueDim]
	K Tensor // [slots, KeyHeads*ChunkRows, KeyDim]
	N Tensor // [slots, Heads*ChunkRows, ValueDim]
	C Tensor // [slots, Heads, ChunkRows]
}

// NewChunkState allocates the state of slots sequences, for chunks of chunkRows rows.
func NewChunkState(mem *Arena, r Recurrence, slots, chunkRows int) ChunkState {
	return ChunkState{
		S: mem.NewGrouped(F32, slots, r.Heads*r.KeyDim, r.ValueDim),
		K: mem.NewGrouped(F32, slots, r.KeyHeads*chunkRows, r.KeyDim),
		N: mem.NewGrouped(F32, slots, r.Heads*chunkRows, r.ValueDim),
		C: mem.NewGrouped(F32, slots, r.Heads, chunkRows),
	}
}

// ChunkStateBytes is the memory of one slot in bytes.
func ChunkStateBytes(r Recurrence, chunkRows int) int {
	return F32.Size() * (r.Heads*r.KeyDim*r.ValueDim + chunkRows*(r.KeyHeads*r.KeyDim+r.Heads*r.ValueDim+r.Heads))
}

// Recurrent is the operations that all kinds of recurrent layers share. The conventions are those of Device.
//
// Rule 4 of the definition. A sequence is cut into chunks of ChunkRows rows from position 0. The state S [KeyDim,
// ValueDim] of a head is +0 at position 0. In a chunk with rows i = 0, 1, ..., state S at its start, queries q_i, keys
// k_i and decays g_i <= 0 (natural logarithms), every dot by fma whatever Definition.Dot:
//
//	c_i  = c_(i-1) + g_i*log2e, from +0;  E_i = Exp2(c_i);  G_ij = Exp2(c_i - c_j) for j <= i
//	n_i  = what row i adds to the state, as the kind of layer says
//	o_i  = E_i*dot(q_i, S), each element then continued by fma over j = 0 ... i with (dot(q_i, k_j)*G_ij, n_j)
//	S' = E_last*S, each element then continued by fma over the rows i with (k_i*Exp2(c_last - c_i), n_i): the state of
//	the next chunk
//
// Dots over a head's dimensions start from +0. A row depends only on S and on the rows before it in its chunk, so every
// cut of a prefill, a decode row and a training batch give the same bits. Spans that start at position 0 ignore the
// content of their slot. Without a state every span starts at position 0.
type Recurrent interface {
	// ShortConv is a causal depthwise convolution over the rows of a sequence, then SiLU: x, out [T, C], w [C, K], bias
	// [1, C] or nil. u = bias (nil: +0), then u += w[ch,j]*x[t-(K-1)+j, ch] over taps j ascending, without rows before
	// position 0; out = round(u*sigm(u)). state, where not nil, is [slots, K-1, C] like x; row p mod (K-1) of a slot
	// keeps x of position p. Backward (s = sigm(u), du = dout*(s*(1 + u*(1-s)))): dx[t] = round(+0 + du[t]*w[K-1] +
	// du[t+1]*w[K-2] + ...), without rows after the span; dw[ch,j] += du[t]*x[t-(K-1)+j] and dbias += du as sums over
	// rows. dw F32 [C, K] or nil; dbias F32 [1, C] or nil.
	ShortConv(out, x, w, bias, state Tensor, l *Layout)
	ShortConvBackward(dx, dw, dbias, dout, x, w, bias Tensor, l *Layout)

	// Decay: s = softplus(a + bias), step = min(max(s, lo), hi), g = -(exp(rate)*step). a [T, H]; rate and bias F32 [1,
	// H]; g, step F32 [T, H]. softplus(x) = max(x, 0) + Ln1p(Exp2(-|x|*log2e)); exp(x) = Exp2(x*log2e) for x <= 0, else
	// 1/Exp2(-(x*log2e)). Backward: z = (dstep - exp(rate)*dg)*sigm(a + bias), +0 where step is not s; dstep nil counts
	// as +0. da = round(z); dbias += z and drate += dg*g as sums over rows. drate and dbias are F32 [1, H], both or
	// none nil.
	Decay(g, step Tensor, x DecayOperands, lo, hi float32)
	DecayBackward(dx DecayOperands, dg, dstep, g Tensor, x DecayOperands, lo, hi float32, segments []int32)
}

// DecayOperands are what Decay reads, or their gradients.
type DecayOperands struct {
	A          Tensor // [T, H]
	Rate, Bias Tensor // F32 [1, H]
}

// RecurrenceChecker is a Device whose recurrences support only some shapes; other devices support all.
type RecurrenceChecker interface {
	// CheckRecurrence returns nil if the operations of [DeltaNet] (delta) or [Mamba] support a shape and have passed
	// their self-test, otherwise the reason.
	CheckRecurrence(r Recurrence, delta bool) error
}

// DeltaNet is the operations of Gated DeltaNet (Yang, Kautz & Hatamizadeh, arXiv 2412.06464) and of the gated attention
// layers in the same models.
type DeltaNet interface {
	Recurrent

	// DeltaRule: q, k [T, KeyHeads*KeyDim], v, out [T, Heads*ValueDim], g F32 [T, Heads], b [T, Heads]. Rule 4 on q and
	// k normalised to length 1, x*rs with rs = 1/sqrt(tree(x*x) + 1e-6), q then times float32(KeyDim^-0.5), with beta =
	// sigm(b) and out = round(o + 0):
	//
	//	M_ij = beta_i*(dot(k_i, k_j)*G_ij) for j < i
	//	n_i  = beta_i*(v_i - E_i*dot(k_i, S)), each element then continued by fma over j = 0 ... i-1 with (-M_ij, n_j)
	//
	// Backward is for layouts without a cache; kernels/cpu/chunks_backward.go states it. dq, dk, dv, db are written, dg
	// F32 too.
	DeltaRule(out Tensor, x DeltaRuleOperands, s *ChunkState, l *Layout, r Recurrence)
	DeltaRuleBackward(dx DeltaRuleOperands, dout Tensor, x DeltaRuleOperands, l *Layout, r Recurrence)

	// NormThenGate works on each head of n columns of x and z [T, heads*n] with w F32 [1, n]: rstd as in RMSNorm, out =
	// round(((x*rstd)*w)*(z*sigm(z))). rstd F32 [T, heads]. Backward (s = sigm(z), y = (x*rstd)*w, d = dout*(z*s)): dz
	// = round((dout*y)*(s*(1 + z*(1-s)))); dx = round(rstd*(d*w - xh*(tree((d*w)*xh)/n))) with xh = x*rstd; dw[j] +=
	// d*xh as a sum over rows, heads as in HeadNormRope. dw may be nil.
	NormThenGate(out, rstd, x, z, w Tensor, eps float32)
	NormThenGateBackward(dx, dz, dw, dout, x, z, rstd, w Tensor, segments []int32)

	// SigmoidGate: out = round(x*sigm(gate)); x, out [R, n], gate [R, n] or [R, 1]. out may be x. Backward (s =
	// sigm(gate)): dx = round(dout*s); dgate = round((dout*x)*(s*(1-s))), for [R, 1] round(tree(dout*x)*(s*(1-s))). dx
	// may be dout.
	SigmoidGate(out, x, gate Tensor)
	SigmoidGateBackward(dx, dgate, dout, x, gate Tensor)
}

// DeltaRuleOperands are what DeltaRule reads, or their gradients.
type DeltaRuleOperands struct {
	Q, K Tensor // [T, KeyHeads*KeyDim]
	V    Tensor // [T, Heads*ValueDim]
	G    Tensor // F32 [T, Heads]
	B    Tensor // [T, Heads]
}

// Mamba is the operations of Mamba2 (Dao & Gu, arXiv 2405.21060) and of the feed-forward layers in the same models.
type Mamba interface {
	Recurrent

	// StateSpace: c, b [T, KeyHeads*KeyDim] are the queries and keys, x, out [T, Heads*ValueDim], g, dt F32 [T, Heads],
	// skip F32 [1, Heads]. Rule 4 with n_i = dt_i*x_i; out = round((o + skip*x) + 0). Backward is for layouts without a
	// cache; kernels/cpu/chunks_backward.go states it. dc, db, dx are written, dg and ddt F32 too; dskip F32 [1, Heads]
	// += tree(dout*x) of the head as a sum over rows; it may be nil.
	StateSpace(out Tensor, x StateSpaceOperands, s *ChunkState, l *Layout, r Recurrence)
	StateSpaceBackward(dx StateSpaceOperands, dout Tensor, x StateSpaceOperands, l *Layout, r Recurrence)

	// GateThenNorm: y = x*(z*sigm(z)); rstd as in RMSNorm over each of `groups` equal parts of y's columns; out =
	// round((y*rstd)*w). x, z [T, n], w [1, n], rstd F32 [T, groups]. Backward (d = dout*w, yh = y*rstd, m the columns
	// of a group): dy = rstd*(d - yh*(tree(d*yh)/m)); dx = round(dy*(z*s)), dz = round((dy*x)*(s*(1 + z*(1-s)))), s =
	// sigm(z); dw[j] += dout*yh as a sum over rows. dw may be nil.
	GateThenNorm(out, rstd, x, z, w Tensor, groups int, eps float32)
	GateThenNormBackward(dx, dz, dw, dout, x, z, rstd, w Tensor, groups int, segments []int32)

	// ReLU2: out = round(r*r), r = max(x, 0) (+0 for -0 and NaN stays). Backward: dx = round(dout*(2*r)). dx may be x.
	ReLU2(out, x Tensor)
	ReLU2Backward(dx, dout, x Tensor)
}

// StateSpaceOperands are what StateSpace reads, or their gradients.
type StateSpaceOperands struct {
	C, B  Tensor // queries and keys [T, KeyHeads*KeyDim]
	X     Tensor // [T, Heads*ValueDim]
	G, DT Tensor // F32 [T, Heads]
	Skip  Tensor // F32 [1, Heads]
}

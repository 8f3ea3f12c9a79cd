package kernels

import "fmt"

// Device carries out the operations of the definition on its own memory. Operations are enqueued in order and may
// return before they are done; Sync waits and reports the first failure. An operation panics with a message about
// shapes if its arguments do not fit, which is a bug of the caller, and with a [Fault] if the device fails.
//
// Conventions. Activations, weights and their gradients (names x, y, w, d...) are F32 or BF16; within one call all have
// the storage type of the model unless said otherwise. Arithmetic is IEEE fp32, every operation rounded to nearest even
// by itself (mul then add, never fused, unless "fma" or "dot" is written); round(.) is the one conversion to the
// storage type at the end.
//
//	dot       one chain over ascending k by Definition.Dot, started from +0 (or from what is said)
//	tree(v) Lanes lanes; lane l adds v[l], v[l+Lanes], ... ascending, started from +0; then for s = Lanes/2 ... 1:
//	lane[l] += lane[l+s]; lane[0]
//	Exp2      of this package by Definition.Exp2 (Exp2 or Exp2H), for arguments <= 0; Ln of this package
//	sigm(x)   e = Exp2(-|x|*log2e); x >= 0 ? 1/(1+e) : e/(1+e)
//
// A gradient of a weight (dw) is F32, contiguous, and accumulates: the sum of each segment of the layout starts from
// +0, and is added to what is stored, segments ascending. It does not depend on how many segments a call has. A sum
// over rows (gradients of norms' weights) cuts a segment into blocks of RowBlock rows and a block into runs of RowRun
// rows, the last ones shorter. A run is a chain of rounded products from +0 over its rows ascending; the runs of a
// block are added from +0, ascending, and so are the blocks of a segment. Such a dw may have a matrix for each segment,
// as its groups, to which that segment alone is added; see [SegmentStep].
//
// No result depends on how many rows a call has, on where a row lies in its batch, or on how many threads run.
type Device interface {
	// Name describes the device for messages: its kind, and its instruction set or model.
	Name() string
	// Definition is the arithmetic that the device computes by.
	Definition() Definition

	// Alloc returns zeroed device memory that lives as long as the device. The host may read and write the slice only
	// if the device's memory is host memory. It panics with a [Fault] if there are not as many bytes.
	Alloc(bytes int) []byte
	// Spare is the size in bytes that one temporary may take, such as the logits of a chunk of rows: [SpareCPU] or
	// [SpareGPU].
	Spare() int
	// Write copies src to a contiguous tensor, Read copies a contiguous tensor to dst after all operations enqueued
	// before it. Slices have Tensor.Bytes bytes of little-endian elements.
	Write(dst Tensor, src []byte)
	Read(dst []byte, src Tensor)
	// Zero sets all elements to +0. Copy converts between F32 and BF16, rounding to nearest even; dst and src have the
	// same shape.
	Zero(t Tensor)
	Copy(dst, src Tensor)
	// Sync waits for all enqueued operations and returns the first error among them.
	Sync() error
	// Close frees the device's memory: its tensors are invalid afterwards.
	Close() error

	// Draw fills t, F32 or BF16 and contiguous, with elements First, First+1, ... of [Draw], by the formulas of Values:
	// integers, one product in fp64 rounded to fp32, and round(.). t may be memory of [HostMemory], which the host may
	// read after Sync.
	Draw(t Tensor, d Draw)

	// Embed: out[t] = table[ids[t]], with table [V, n], ids int32 [T], out [T, n]. EmbedBackward, for each segment and
	// each id v in it, adds to dtable[v], F32 [V, n], the sum from +0 of dout[t] over its rows with ids[t] = v, t
	// ascending.
	Embed(out, table, ids Tensor)
	EmbedBackward(dtable, dout, ids Tensor, segments []int32)

	// Add: out = round(a + b). out may be a or b.
	Add(out, a, b Tensor)
	// AddBias: out[t] = round(x[t] + bias), bias [1, n]; with groups, bias [Count, 1, n] has one row for each group. x
	// and out [T, n] are of one type; bias may be of another. out may be x. BiasGrad: dbias F32 [Count, 1, n] += dy,
	// for each group a sum over the rows of its segments. The rows of a dense layer are one group.
	AddBias(out, x, bias Tensor, g *Groups)
	BiasGrad(dbias, dy Tensor, g *Groups)
	// Accumulate: dst = ((dst + parts[0]) + parts[1]) + ..., with dst F32 of n contiguous elements, parts F32 [S, n];
	// and so others, each apart from all before it.
	Accumulate(dst, parts Tensor, then ...PartSum)
	// Scale: out = round(x * a). out may be x.
	Scale(out, x Tensor, a float32)
	// Dropout: out[r,c] = round(x[r,c] * Factor) where word c%4 of Words(r, c/4) is at least the threshold, else +0,
	// whatever x is. The settings are the key: see Dropout. out may be x.
	Dropout(out, x Tensor, d Dropout)

	// RMSNorm: rstd[t] = 1/sqrt(tree(x*x)/n + Eps); out = round((x*rstd)*w). rstd is F32 [1, T]. With PlusOne, w is
	// float32(1 + w) here and below. By Definition.Norm, without PlusOne, x*rstd is rounded to bf16 before w multiplies
	// it, as transformers does for Llama and Qwen. Other norms have no such rounding. Backward (g = dy*w, xh = x*rstd):
	// dx = round(dx + rstd*(g - xh*(tree(g*xh)/n))); dw[j] += dy*xh as a sum over rows. dw may be nil.
	RMSNorm(out, rstd, x, w Tensor, norm Norm)
	// AddRMSNorm: sum = round(a + b); out and rstd are RMSNorm of sum as it is stored. sum may be a or b.
	AddRMSNorm(out, sum, rstd, a, b, w Tensor, norm Norm)
	RMSNormBackward(dx, dw, dy, x, rstd, w Tensor, norm Norm, segments []int32)

	// HeadNormRope works on each head of x [T, heads*D], D = HeadDim. With w [1, D]: xh = x*rstd as in RMSNorm over the
	// head (rstd F32 [T, heads]; Definition.Norm too), z = xh*w; w nil: z = x. Then the R = 2*Cos.Cols columns from
	// First on are rotated in pairs (Su et al., arXiv 2104.09864), with c, s of the row's position, int32 [T]: for i <
	// R/2, a = First+i and b = a+R/2, or Interleaved a = First+2i and b = a+1: out[a] = round(z[a]*c - z[b]*s); out[b]
	// = round(z[b]*c + z[a]*s). In other columns out = round(z). Interleaved pairs have no w. Backward rotates dout
	// back to dz (dz[a] = dout[a]*c + dout[b]*s, dz[b] = dout[b]*c - dout[a]*s), then writes dx = round(rstd*(g -
	// xh*(tree(g*xh)/D))), g = dz*w, or round(dz), and dw[j] += dz[j]*xh[j] as a sum over rows where each head has its
	// chain of a run's rows, and the run adds its heads from +0, ascending. out may be x; dx may be dout.
	HeadNormRope(out, rstd, x, w, positions Tensor, rope Rope, norm Norm)
	HeadNormRopeBackward(dx, dw, dout, x, rstd, w, positions Tensor, rope Rope, norm Norm, segments []int32)

	// JoinHeads concatenates columns of each head, own [T, heads*n], with columns that all heads share, shared [T, r]:
	// head h of out [T, heads*(n+r)] is (own of h, shared). Backward: dOwn [T, heads*n] is its columns of dout;
	// dshared[i] = round(sum over heads ascending, from +0, of dout).
	JoinHeads(out, own, shared Tensor)
	JoinHeadsBackward(dOwn, dshared, dout Tensor)

	// MatMul: out[m,n] = round(dot over the terms in order, over k of x[m,k]*w[n,k]): one chain, the next term
	// continues it. MatMulT: out[m,k] = round(dot over the terms in order, over n of x[m,n]*w[n,k]). A term of MatMul
	// may count for a range of out's columns alone, see Term: the chains of the others are those of the product without
	// it, bit for bit. Both with groups: row m uses the matrix of its group. out may be F32 in a BF16 model (logits).
	// Operands of DotTC16 must be BF16. X and out may have strides; W's matrices are contiguous or row-strided. The
	// rows of a group are consecutive or interleaved with those of others, see Groups.
	MatMul(out Tensor, g *Groups, terms ...Term)
	MatMulT(out Tensor, g *Groups, terms ...Term)
	// MatMulLoRA: u[m,r] = round(scale * round(dot over k of x[m,k]*a[r,k])), MatMul and Scale of one term, then out is
	// MatMul of terms. Those behind the first may have columns of u for their X; the first does not read it.
	MatMulLoRA(out, u, x, a Tensor, scale float32, g *Groups, terms ...Term)
	// WeightGrad: dw[n,k] += dot over rows m ascending of dy[m,n]*x[m,k], for each segment of the group from +0; steps
	// of DotTC16 restart with it. Where interleaved groups share dw the dot of a segment goes over the rows of group 0,
	// then of group 1, steps restarting at each. With Groups.Chain the dot continues from dw instead; with Fresh dw is
	// +0 before. What then has follows, as if it came by a call of its own: dw is read and written once.
	WeightGrad(dw, dy, x Tensor, g *Groups, then ...GradRows)

	// StoreKV writes rows k [T, KVHeads*HeadDim] and v [T, KVHeads*ValueDim] to the pages of their spans.
	StoreKV(cache KV, k, v Tensor, l *Layout)
	// Attention: rule 2 of the definition, stated in kernels/cpu/attention.go. q is [T, Heads*HeadDim], out [T,
	// Heads*ValueDim], lse F32 [T, Heads] in units of log2.
	Attention(out, lse, q Tensor, kv KV, l *Layout, a Attn)
	// AttentionBackward is stated in kernels/cpu/attention_backward.go. Layouts have no pages. dq, dk, dv are written.
	// Chains of dk and dv go over heads, in each over queries; of Attn.Latent over queries, in each over heads.
	AttentionBackward(dq, dk, dv, dout, out, lse, q Tensor, kv KV, l *Layout, a Attn)

	// Sinks adds a learned logit of each head, sinks [1, Heads], to the softmax of an attention that was computed
	// without it. A sink takes probability and has no value row (gpt-oss). With t = sinks[h]*log2e, m = max(lse, t), a
	// = Exp2(lse-m), l = a + Exp2(t-m): out = round(out*(a/l)), lse = m + Ln(l)*log2e, in place. AttentionBackward
	// takes out and lse as Sinks leaves them. Backward: dsinks F32 [1, Heads] += -(Exp2(min(t-lse, 0))*tree(dout*out))
	// as a sum over rows, the tree over the head dim.
	Sinks(out, lse, sinks Tensor)
	SinksBackward(dsinks, dout, out, lse, sinks Tensor, segments []int32)

	// Route, for each row x of logits F32 [T, E], n = Norm and s = Scale of the settings:
	//
	//	p  = softmax of x (m = max; e_j = Exp2((x_j-m)*log2e); p_j = e_j * (1/tree(e))), or sigm(x) with Sigmoid
	//	b  = p + Bias; b = p without one; NaN counts as -Inf
	//	with Groups: b = -Inf outside the TopGroups groups of E/Groups consecutive experts whose two largest b add up
	//	to most, ties to the lower group
	//	the k largest by (b descending, expert ascending) go to experts int32 [T, K]
	//	weights F32 [T, K] = p*s, or with n (p / (sum of p in slot order + Epsilon))*s; probs F32 [T, E] keeps p
	//
	// Backward writes dlogits F32 [T, E]; with n, m = (sum over slots of w_j*dw_j)/s and t_i = dw_i - m, without t_i =
	// dw_i:
	//
	//	Sigmoid        (w_i*t_i)*(1-p_i) on selected experts, 0 elsewhere
	//	softmax, n     w_i*t_i on selected experts, 0 elsewhere
	//	softmax        p_j*([j selected]*(dw*s) - sum over slots of p_i*(dw_i*s))
	//
	// The choice and Bias have no gradient. By Definition.Router x is first rounded to bf16, as if the gate's output
	// were bf16; the gate's dot is unchanged.
	Route(weights, experts, probs, logits Tensor, r Router)
	RouteBackward(dlogits, dweights, weights, experts, probs Tensor, r Router)
	// Dispatch fills the plan from experts int32 [T, K], a stable counting sort by expert; segments are those of the
	// layout.
	Dispatch(p Plan, experts Tensor, segments []int32)
	// Gather: out[r] = x[source[r]], with source int32 [R], x [T, n], out [R, n].
	Gather(out, x, source Tensor)
	// Combine: sum[t] = round(sum over slots k ascending, from +0, of weights[t,k]*y[rowOf[t,k]]), each product
	// rounded; weights nil: of y alone. out[t] = round(residual[t] + sum[t]), or residual nil: sum[t]. out may be
	// residual. By Definition.Combine each product is rounded to bf16, and so is the sum after each slot, unless
	// weights are nil: as a fused MoE kernel does that writes each expert's weighted output in bf16. (transformers also
	// rounds the weights, and adds by expert, not by slot.) Backward, of the sum alone, of pairs p = t*K + slot with r
	// = rowOf[p], where no row is named twice: dy[r] = round(weights[p]*dout[t]) and dweights[p] = tree(dout[t]*y[r]).
	// Of an owner y and dy are the rows from `from` on; pairs whose rows it does not have are left out, and dweights
	// F32 [R, 1] are by row. Without owners from is AllRows.
	Combine(out, residual, y, weights, rowOf Tensor)
	CombineBackward(dy, dweights, dout, y, weights, rowOf Tensor, from int)

	// SwiGLU: gu is [R, 2I], gate columns first; out[r,i] = round((g*sigm(g))*u).
	// Backward (s = sigm(g)): du = round(dout*(g*s)); dg = round((dout*u)*(s*(1 + g*(1-s)))). dgu may be gu.
	SwiGLU(out, gu Tensor)
	SwiGLUBackward(dgu, dout, gu Tensor)
	// ClampedSwiGLU: with g = min(g, Limit) and u = min(max(u, -Limit), Limit): out[r,i] =
	// round((g*sigm(Alpha*g))*(u+1)). Backward (s = sigm(Alpha*g)): du = round(dout*(g*s)), dg =
	// round((dout*(u+1))*(s*(1 + (Alpha*g)*(1-s)))), each 0 where its clamp took effect. dgu may be gu.
	ClampedSwiGLU(out, gu Tensor, c Clamp)
	ClampedSwiGLUBackward(dgu, dout, gu Tensor, c Clamp)

	// LogProb is the log-softmax of logits F32 [T, V] at targets int32 [1, T], at temperatures whose inverses are inv
	// F32 [1, T], above 0; nil: all 1. With z = logit*inv[t], as in Sample: in blocks of VocabBlock columns m_b = max,
	// s_b = tree(Exp2((z-m_b)*log2e)), merged ascending from (m_0, s_0): m' = max(m, m_b), s = s*Exp2((m-m')*log2e) +
	// s_b*Exp2((m_b-m')*log2e). stats F32 [T, 2] = (m, s); logprob[t] = (z_target - m) - Ln(s). A target below 0 is
	// ignored: its logprob is 0. Backward: dlogits[j] = round((dlogprob[t]*inv[t])*([j = target] -
	// Exp2((z_j-m)*log2e)*(1/s))); rows of ignored targets are 0.
	LogProb(logprob, stats, logits, targets, inv Tensor)
	LogProbBackward(dlogits, dlogprob, stats, logits, targets, inv Tensor)
	// Sample draws one token id for each row of logits F32 [n, V] into ids int32 [n], stated in kernels/cpu/sample.go;
	// -1 for a row with a NaN or +Inf.
	Sample(ids, logits Tensor, rows []Sampling)
	// AdjustLogits changes the rows of logits F32 [n, V] that Sample is to draw from, in place, each by its own
	// Adjustment and nothing of its neighbours. An entry of Logits changes one logit x, as vLLM does: x = x + Bias;
	// with r = Repetition x = x/r where x > 0, else x*r (Keskar et al., arXiv 1909.05858); x = x - Penalty. A NaN stays
	// as it is. Then MinP (Nguyen et al., arXiv 2407.01082) makes every logit -Inf whose e_j of Sample, at the row's
	// temperature, is below it: the probability of the likeliest id is 1 there. A row of temperature 0 keeps all, and
	// so does one with a NaN or +Inf, or whose m of Sample is not finite.
	AdjustLogits(logits Tensor, rows []Adjustment)

	// SumSquares: out[e] = tree over blocks b of tree(v*v) of each block of 4096 consecutive elements of group e of t.
	// out is F32 [1, Groups], t contiguous. And so of others.
	SumSquares(out, t Tensor, then ...Squares)
	// ClipScale computes the norm of gradients that are to be multiplied by scale, and the factor that does so and
	// clips them, from sums of squares F32 [1, n]: norm = scale*sqrt(their sum, ascending), out F32 [1, 2] = (norm,
	// factor), factor = scale*clip/(norm+1e-6) where clip > 0 and norm > clip, else scale; in fp64 and rounded once.
	// The factor of a norm that is not finite is NaN.
	ClipScale(out, sums Tensor, scale, clip float64)
	// AdamW (Loshchilov & Hutter, arXiv 1711.05101) with gradients times factor F32 [1, 1]. A factor of NaN changes
	// nothing. g =
	// grad*factor; m = b1*m + (1-b1)*g; v = b2*v + ((1-b2)*g)*g; master = master - (LR*WeightDecay)*master; master =
	// master - LR*((m/Correction1) / (sqrt(v/Correction2) + Eps)); w = round(master). w may be master. grad is cleared.
	// And so of others, each apart from all before it.
	AdamW(w, master, m, v, grad, factor Tensor, s AdamW, then ...Moments)
}

// SpareGPU is rows of logits that fill a card with tiles.
const SpareCPU, SpareGPU = 64 << 20, 512 << 20

// Fault is the panic of an operation when the device fails: out of memory, a lost card, a failed kernel.
type Fault struct{ Err error }

func (f Fault) Error() string { return f.Err.Error() }

// OutOfMemory is the Fault of an allocation of more bytes than are left.
func OutOfMemory(bytes, left int) Fault {
	const gib = 1 << 30
	return Fault{Err: fmt.Errorf("out of memory: %.1f GiB are needed and %.1f left", float64(bytes)/gib,
		float64(left)/gib)}
}

// Profiler is a Device that can time its kernels, one by one.
type Profiler interface {
	StartProfile()
	StopProfile() []KernelTime
}

// KernelTime is the time of all calls of a kernel between StartProfile and StopProfile.
type KernelTime struct {
	Kernel  string
	Calls   int
	Seconds float64
}

// Repeater is a Device that can replay a repeated sequence of operations, such as a step of decoding, with less CPU
// overhead. On a GPU the sequence becomes a graph.
type Repeater interface {
	// Repeat runs body, which enqueues operations and reads nothing back. Bodies of one key should enqueue the same
	// operations, on shapes that may differ in rows. Another sequence costs time and changes no result.
	Repeat(key string, body func())
}

// Repeat runs body through the device's Repeater if it has one, otherwise directly.
func Repeat(d Device, key string, body func()) {
	if r, ok := d.(Repeater); ok {
		r.Repeat(key, body)
		return
	}
	body()
}

// AttentionChecker is a Device whose Attention supports only some shapes; other devices support all.
type AttentionChecker interface {
	// CheckAttention returns nil if Attention and its gradient support a shape and have passed their self-test,
	// otherwise the reason.
	CheckAttention(a Attn) error
}

// MemoryReader is a Device that can read the memory of others.
type MemoryReader interface {
	// CanRead reports whether operations of this device may read what another computed: both share memory and the order
	// of operations.
	CanRead(other Device) bool
}

// Bounded is a Device that knows its memory.
type Bounded interface {
	// Available is how many bytes Alloc can still give; 0: unknown.
	Available() int
}

// Counter is a Device that counts launches, allocations and waits.
type Counter interface{ Counts() Counts }

// Counts are totals since the device was opened.
type Counts struct {
	Launches    int // kernels launched; a replayed graph counts once
	Graphs      int // captured of repeated sequences
	Allocations int // of device memory
	Waits       int // of the host for the device
	Bytes       int // of device memory held now
	Pinned      int // bytes of host memory held now, see [HostMemory]
}

// Package kernels holds the numerical definition of every operation, the list of operations that a [Device] carries
// out, and the tensors they work on. kernels/cpu is the reference; any other device must equal it on every bit.
// Of the project the package imports quant alone.
package kernels

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"lockstep/quant"
)

// DotMode names the arithmetic of a dot product: one chain of steps over ascending k applied to one fp32 accumulator.
type DotMode string

const (
	// DotFMA is one IEEE fp32 fused multiply-add for each k. Operands may be fp32 or bf16.
	DotFMA DotMode = "fma"
	// DotTC16 is the step of bf16 tensor cores: 16 exact products and the accumulator, aligned to the largest exponent
	// among them, each truncated toward zero at 25 fractional bits, added exactly, the sum truncated toward zero to
	// fp32 (measured on an H200, see LOG.md; the model is that of arXiv 2511.10909). Operands must be bf16. A short
	// last step is filled with zeros.
	DotTC16 DotMode = "tc16"
)

// Break names a rule that package broken makes a device violate. Each makes a result depend on the layout of the batch,
// which every rule forbids, so the proof (lockstep verify --break) must catch it in every model that uses the
// operation. "Few rows" are at most 4 in a call.
type Break string

const (
	BreakNone     Break = ""
	BreakSplitK   Break = "split-k"      // dot products of few rows are two half chains added
	BreakKeyBlock Break = "key-blocks"   // calls of few rows: a lone query merges two halves of its keys, rounded
	BreakNormRows Break = "norm-rows"    // few rows: RMSNorm rounds squares to bf16 and adds them in one lane
	BreakCombine  Break = "combine"      // calls of few tokens round the experts' weights to bf16
	BreakVocab    Break = "vocab-blocks" // log-softmax of few rows takes blocks of 64 columns in descending order
	// in a cache recurrences cut chunks from position -32 on, with states in bf16
	BreakChunks      Break = "chunks"
	BreakIndexScores Break = "index-scores" // few rows score keys by heads' weights in 4 significant bits
	BreakKeyTies     Break = "key-ties"     // few rows choose the last of keys whose scores are equal in 4 bits
	BreakSparseOrder Break = "sparse-order" // few rows merge attention to two halves of their chosen keys, rounded
	BreakRouterTies  Break = "router-ties"  // few tokens choose the last of experts whose scores are equal in 4 bits
	BreakGroupLimits Break = "group-limits" // few tokens choose among the experts of all groups
	BreakAdapter     Break = "adapter"      // few rows: an adapter's product is rounded and added, no part of the chain
	BreakRope        Break = "rope"         // few rows are rotated by sines and cosines in bf16
	BreakSinks       Break = "sinks"        // few rows apply sinks to a log-sum-exp in bf16
	BreakActs        Break = "acts"         // few rows are read as they are, where Definition.Acts rounds them
	BreakCache       Break = "cache"        // few keys and values are not rounded, where Definition.Cache rounds them
	// with experts cut over ranks their outputs are added and rounded on each rank first, as before an all-reduce
	BreakRankSums Break = "rank-sums"
)

// Breaks lists every rule that can be broken.
var Breaks = []Break{
	BreakSplitK, BreakKeyBlock, BreakNormRows, BreakCombine, BreakVocab, BreakChunks, BreakIndexScores, BreakKeyTies,
	BreakSparseOrder, BreakRouterTies, BreakGroupLimits, BreakAdapter, BreakRope, BreakSinks,
	BreakActs, BreakCache, BreakRankSums,
}

// Rounding says how an operation rounds an intermediate value, at a place where stacks are known to differ.
type Rounding string

const (
	Unrounded Rounding = ""     // fp32 to the end, the default
	ToBF16    Rounding = "bf16" // rounded to nearest even, as [NearestBF16]
)

// LatentForm says what multi-head latent attention multiplies queries with. Both forms compute the same attention and
// round at different places.
type LatentForm string

const (
	// LatentAuto: absorbed where an indexer selects keys, otherwise expanded.
	LatentAuto LatentForm = ""
	// LatentExpanded: with keys and values of each head, projected from the latent. A pair of rows takes fewer
	// products; the cache holds keys and values of all heads.
	LatentExpanded LatentForm = "expanded"
	// LatentAbsorbed: with the latent itself, which is key and value of all heads. Queries are multiplied by each
	// head's key weight first (DeepSeek-V2, arXiv 2405.04434, section 2.1.2). The cache holds one row for all heads, as
	// in serving stacks, and sparse attention reads one row for each selected key. GPUs support sparse attention in
	// this form only.
	LatentAbsorbed LatentForm = "absorbed"
)

// Definition is everything that decides the bits of a forward. Two parts of a run that must agree compare digests.
//
// Combine, Router, Norm and another KeySplit reproduce the arithmetic of other stacks, to measure the effect of a
// mismatch. Each is as independent of the batch as the default; the rules of [Device] say where it applies. Gradients
// are those of the arithmetic without the rounding.
type Definition struct {
	Version    int        `json:"version"`
	Dot        DotMode    `json:"dot"`
	Exp2       Exp2Mode   `json:"exp2"`
	KeyBlock   int        `json:"key_block"`   // keys of one step of the online softmax, from absolute position 0
	KeySplit   int        `json:"key_split"`   // keys of one online softmax; splits are merged in ascending order
	Lanes      int        `json:"lanes"`       // lanes of the reduction tree of row sums
	VocabBlock int        `json:"vocab_block"` // columns of one block of the log-softmax
	ChunkRows  int        `json:"chunk_rows"`  // rows of a chunk of a recurrence, from absolute position 0
	Segment    int        `json:"segment"`     // rows of a pack whose gradients are one sum, see [CutSegments]
	Latent     LatentForm `json:"latent,omitempty"`
	Combine    Rounding   `json:"combine,omitempty"` // of each expert's weighted output and of the running sum
	Router     Rounding   `json:"router,omitempty"`  // of a router's logits, before softmax or sigmoid
	// of a normalised value, before the weight of an RMSNorm multiplies it
	Norm Rounding `json:"norm,omitempty"`
	// Acts is what the inputs of projections that are kept in codes are rounded to before a product reads them, in
	// blocks of columns: MXFP8, FP8x128 or nothing. With MXFP8 the dot is unchanged: E4M3 times a power of two is a
	// bf16 number. With FP8x128 and weights in FP8 products are of codes, see [Term]. Gradients are straight through,
	// and those of weights read what forward read, as numbers.
	Acts quant.Encoding `json:"acts,omitempty"`
	// Grads is what gradients of outputs of such projections are rounded to, MXFP8 or nothing: for the gradient of the
	// input in blocks of columns; for that of the weight they and the inputs in blocks of rows, from the first row of
	// each segment of each group on (Mishra et al., "Recipes for Pre-training LLMs with MXFP8", arXiv 2506.08027, with
	// one encoding of weights).
	Grads quant.Encoding `json:"grads,omitempty"`
	// Cache is what attention's keys, behind their norm and rotation, and values are rounded to before it reads them,
	// MXFP8 or nothing: from stored numbers, in blocks of 32 columns of each head; of absorbed latent attention the
	// latent's columns, not the rotated ones. It is the same in training, prefill and decoding, so pages may hold the
	// codes. Gradients are straight through. Index keys and recurrent states are not rounded.
	Cache quant.Encoding `json:"cache,omitempty"`
	Break Break          `json:"break,omitempty"`
}

// Default is version 3 of the definition with the dot step of the CPU. Version 1 had gradients that were one sum
// through all packs of a step. Version 2 summed the gradients of keys of absorbed latent attention over heads, in each
// over queries, as those of other attention still are.
func Default() Definition {
	return Definition{Version: 3, Dot: DotFMA, Exp2: Exp2Poly, KeyBlock: 64, KeySplit: 2048, Lanes: 256,
		VocabBlock: 1024, ChunkRows: 64, Segment: 8192}
}

// Validate returns an error for a definition that no device implements.
func (d Definition) Validate() error {
	want := Default()
	want.Dot, want.Exp2 = d.Dot, d.Exp2
	want.KeySplit, want.Combine, want.Router, want.Norm, want.Latent = d.KeySplit, d.Combine, d.Router, d.Norm, d.Latent
	want.Segment, want.Acts, want.Grads, want.Cache = d.Segment, d.Acts, d.Grads, d.Cache
	if d.Latent != LatentAuto && d.Latent != LatentExpanded && d.Latent != LatentAbsorbed {
		return fmt.Errorf("latent %q: want %q, %q or nothing", d.Latent, LatentExpanded, LatentAbsorbed)
	}
	if d.Dot != DotFMA && d.Dot != DotTC16 {
		return fmt.Errorf("dot mode %q: want %q or %q", d.Dot, DotFMA, DotTC16)
	}
	if d.Exp2 != Exp2Poly && d.Exp2 != Exp2Ex2h {
		return fmt.Errorf("exp2 %q: want %q or %q", d.Exp2, Exp2Poly, Exp2Ex2h)
	}
	if d.KeySplit <= 0 || d.KeySplit%want.KeyBlock != 0 || d.KeySplit > mostKeySplit {
		return fmt.Errorf("key_split %d: want a multiple of %d up to %d", d.KeySplit, want.KeyBlock, mostKeySplit)
	}
	if d.Segment <= 0 || d.Segment%RowBlock != 0 || d.Segment > mostSegment {
		return fmt.Errorf("segment %d: want a multiple of %d up to %d", d.Segment, RowBlock, mostSegment)
	}
	for _, r := range []struct {
		name  string
		value Rounding
	}{{"combine", d.Combine}, {"router", d.Router}, {"norm", d.Norm}} {
		if r.value != Unrounded && r.value != ToBF16 {
			return fmt.Errorf("%s %q: want %q or nothing", r.name, r.value, ToBF16)
		}
	}
	for _, r := range []struct {
		name  string
		value quant.Encoding
	}{{"grads", d.Grads}, {"cache", d.Cache}} {
		if r.value != quant.AsTrained && r.value != quant.MXFP8 {
			return fmt.Errorf("%s %q: want %q or nothing", r.name, r.value, quant.MXFP8)
		}
	}
	switch {
	case d.Acts != quant.AsTrained && d.Acts != quant.MXFP8 && d.Acts != quant.FP8x128:
		return fmt.Errorf("acts %q: want %q, %q or nothing", d.Acts, quant.MXFP8, quant.FP8x128)
	case d.Acts == quant.FP8x128 && d.Dot != DotTC16:
		return fmt.Errorf("acts %q with dot %q: want dot %q, or acts %q or nothing", d.Acts, d.Dot, DotTC16,
			quant.MXFP8)
	}
	if d.Break != BreakNone {
		return fmt.Errorf("break %q: only package broken breaks rules", d.Break)
	}
	if d != want {
		return fmt.Errorf("definition %+v: only version %d with its constants is implemented", d, want.Version)
	}
	return nil
}

// mostKeySplit is more than the positions of any model, and mostSegment more than the rows of any pack.
const mostKeySplit, mostSegment = 1 << 24, 1 << 24

// Settings are the keys of [Definition.Set].
var Settings = []string{"acts", "cache", "combine", "dot", "exp2", "key_split", "norm", "router"}

// Set changes one of the [Settings] to a value written as in JSON, without quotes; "" is a rounding's default. It
// returns an error for an unknown key and for a definition that is not valid then.
func (d *Definition) Set(key, value string) error {
	switch key {
	case "acts":
		d.Acts = quant.Encoding(value)
	case "cache":
		d.Cache = quant.Encoding(value)
	case "combine":
		d.Combine = Rounding(value)
	case "dot":
		d.Dot = DotMode(value)
	case "exp2":
		d.Exp2 = Exp2Mode(value)
	case "key_split":
		n, err := strconv.Atoi(value)
		if err != nil {
			return fmt.Errorf("key_split %q: want a number", value)
		}
		d.KeySplit = n
	case "norm":
		d.Norm = Rounding(value)
	case "router":
		d.Router = Rounding(value)
	default:
		return fmt.Errorf("no setting %q of the definition: want one of %s", key, strings.Join(Settings, ", "))
	}
	return d.Validate()
}

// Digest is the SHA-256 of the definition's canonical JSON, in hex.
func (d Definition) Digest() string {
	b, err := json.Marshal(d)
	if err != nil {
		panic(err) // a struct of strings and ints
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

package kernels

// Span is a run of consecutive rows of a batch that are consecutive positions of one sequence.
type Span struct {
	Row   int     // first row in the batch
	Rows  int     // rows
	Pos   int     // position in its sequence of the first row
	Pages []int32 // cached sequences: the page that holds positions [i*PageRows, (i+1)*PageRows); nil otherwise
	// Shift is, without pages, how many rows the row Row+p of position p lies further down among the keys: those of
	// other ranks, of a sequence that several have. 0 otherwise.
	Shift int
	// Slot is where recurrent layers keep the state of a cached sequence. It belongs to the sequence from its span at
	// position 0 to its last one.
	Slot int
}

// KeyRow is, without pages, the row of the key at position 0.
func (s *Span) KeyRow() int { return s.Row + s.Shift }

// Layout says which rows of a batch belong to which sequence. Without a cache every span starts at position 0 and its
// keys are its own rows (a packed training batch); with a cache the keys of a span are positions [0, Pos+Rows) of its
// pages. It must not change once an operation has used it: devices cache what they derive from it.
type Layout struct {
	Spans []Span
	// Segments are row offsets, [0 ... rows], at which the sums of weight gradients end and begin anew; see
	// [CutSegments]. Without gradients one segment is enough.
	Segments []int32
}

// Rows is the number of rows of the batch.
func (l *Layout) Rows() int { return int(l.Segments[len(l.Segments)-1]) }

// Part is ranges [from, to) of the rows of a layout of whole sequences, one range below the other, as a layout whose
// keys have the rows of the whole one. None of its spans has rows of two ranges.
func (l *Layout) Part(ranges ...[2]int) *Layout {
	part, row := &Layout{}, 0
	for _, rows := range ranges {
		for _, s := range l.Spans {
			if first, end := max(s.Row, rows[0]), min(s.Row+s.Rows, rows[1]); first < end {
				at := row + first - rows[0]
				part.Spans = append(part.Spans, Span{Row: at, Rows: end - first, Pos: first - s.Row, Shift: s.Row - at})
			}
		}
		row += rows[1] - rows[0]
	}
	part.Segments = []int32{0, int32(row)}
	return part
}

// Keys of a tile that one of several devices takes of a sequence, at least and at most.
const leastKeyTile, mostKeyTile = 16, 1408

// DealKeys is ranges of rows of keys for each of several devices, in tiles from position 0 of each sequence. In two
// rounds of tiles they come in both orders, so that devices have as much work where earlier keys have more. There are
// some tiles for each device, of a long sequence tiles of mostKeyTile keys.
func (l *Layout) DealKeys(devices int) [][][2]int {
	d := l.deal(devices)
	for _, s := range l.Spans {
		d.add(s.Row, s.Row+s.Rows)
	}
	return d.ranges
}

// DealRows is ranges of rows for each of several devices, as DealKeys deals keys of a sequence, in tiles from row 0 of
// the batch: what a device is dealt takes memory, which must not depend on how many sequences share the rows. Devices
// have as much work where later rows of a sequence have more.
func (l *Layout) DealRows(devices int) [][][2]int {
	d := l.deal(devices)
	d.add(0, l.Rows())
	return d.ranges
}

// deal is tiles that are dealt to devices, back and forth.
type deal struct {
	size, next int // rows of a tile; how many have been dealt
	ranges     [][][2]int
}

func (l *Layout) deal(devices int) *deal {
	size := leastKeyTile
	for size < mostKeyTile && size < l.Rows()/(8*devices) {
		size *= 2
	}
	return &deal{size: min(size, mostKeyTile), ranges: make([][][2]int, devices)}
}

// add deals the rows [from, to).
func (d *deal) add(from, to int) {
	devices := len(d.ranges)
	for ; from < to; from += d.size {
		at := d.next % (2 * devices)
		at = min(at, 2*devices-1-at)
		d.ranges[at] = append(d.ranges[at], [2]int{from, min(from+d.size, to)})
		d.next++
	}
}

// CutSegments cuts each pack of a batch into segments of Definition.Segment rows from its first row, the last one
// shorter. Packs are row offsets, [0 ... rows], and so are the segments.
func CutSegments(packs []int32, rows int) []int32 {
	segments := []int32{0}
	for i, from := range packs[:len(packs)-1] {
		for at := int(from) + rows; at < int(packs[i+1]); at += rows {
			segments = append(segments, int32(at))
		}
		segments = append(segments, packs[i+1])
	}
	return segments
}

// RowBlock and RowRun are the numbers of rows of a block of a sum over rows, and of a run inside a block.
const RowBlock, RowRun = 64, 8

// RowBlocks returns the first row of each block of the segments, then the number of rows; and the index of the first
// block of each segment, then the number of blocks.
func RowBlocks(segments []int32) (blocks, starts []int32) { return cutEach(segments, RowBlock) }

// RowRuns returns the first row of each run of blocks of rows, then the number of rows; and the index of the first run
// of each block, then the number of runs.
func RowRuns(blocks []int32) (runs, starts []int32) { return cutEach(blocks, RowRun) }

// cutEach cuts the rows between bounds into pieces of at most so many rows, none across a bound. It returns the first
// row of each piece, then the number of rows; and the index of the first piece behind each bound.
func cutEach(bounds []int32, most int32) (pieces, starts []int32) {
	for i, at := range bounds[:len(bounds)-1] {
		starts = append(starts, int32(len(pieces)))
		for ; at < bounds[i+1]; at += most {
			pieces = append(pieces, at)
		}
	}
	return append(pieces, bounds[len(bounds)-1]), append(starts, int32(len(pieces)))
}

// KV is the keys and values of attention. Paged: K is [pages*PageRows, KVHeads*HeadDim], V [pages*PageRows,
// KVHeads*ValueDim], and spans name pages. Not paged (PageRows 0): both have the rows of the batch, and position p of a
// span is row Row+p; where spans have a Shift, the rows of all ranks that have the batch, see [Span.KeyRow].
type KV struct {
	K, V     Tensor
	PageRows int
	Codes    *KVCodes // of pages; nil: K and V are numbers
}

// Attn is the shape of an attention layer.
type Attn struct {
	Heads, KVHeads, HeadDim int
	ValueDim                int     // columns of a head of V and of the output; 0: HeadDim
	Scale                   float64 // of scores, usually 1/sqrt(HeadDim)
	Window                  int     // key j is visible to query i iff i-Window < j <= i; 0: all j <= i
	// Latent: the only KV head is a latent that all heads read, as in absorbed latent attention. It decides the order
	// of its gradient's sums, see AttentionBackward: over queries, in each over heads.
	Latent bool
}

// Values is the number of columns of a head of V.
func (a Attn) Values() int {
	if a.ValueDim == 0 {
		return a.HeadDim
	}
	return a.ValueDim
}

// Rope is a rotary position embedding of 2*Cos.Cols columns of each head; the others are not rotated. Tables are F32
// [positions, pairs], computed on the host in float64 and rounded once.
type Rope struct {
	Cos, Sin    Tensor
	HeadDim     int
	First       int  // the first rotated column
	Interleaved bool // pairs are columns (2i, 2i+1), not (i, i + pairs)
}

// Norm are the settings of an RMSNorm.
type Norm struct {
	Eps     float32
	PlusOne bool // the weight is stored as w - 1
}

// Clamp are the settings of a clamped SwiGLU.
type Clamp struct{ Alpha, Limit float32 }

// Router are the settings of a mixture's router. Router{Scale: 1} is a softmax whose k largest probabilities are the
// weights.
type Router struct {
	Sigmoid   bool
	Bias      Tensor // F32 [1, E]: added to the scores to choose experts, not to their weights; nil: none
	Groups    int    // of experts, at most MaxGroups, of at least two experts each; 0: no groups
	TopGroups int    // groups to choose from
	Norm      bool   // weights are divided by their sum plus Epsilon
	Epsilon   float32
	Scale     float32 // of the weights
}

// MaxGroups is the largest number of groups of a [Router].
const MaxGroups = 32

// SegmentStep is how many elements lie between the sums of two segments in a gradient of a weight that all rows share:
// 0 where they are added to one matrix, the size of a matrix where each segment has one of its own.
func SegmentStep(dw Tensor) int {
	if dw.Groups > 1 {
		return dw.Rows * dw.Cols
	}
	return 0
}

// Groups says which rows of a grouped matmul belong to which weight, and where segments (see [Layout]) lie inside:
// rows of group e, segment s are Offsets[e*Segments+s] up to the next offset. A dense weight gradient has one group.
// Rows before the first offset or behind the last belong to no group: results there may be anything.
//
// With Interleaved, row m belongs to group m % Count (heads of a token, one weight for each head), and segment s has
// the group's own rows Offsets[s] up to the next offset. A weight with one group is then shared by all groups. The sum
// of a segment of its gradient goes over the rows of group 0, then of group 1 and so on.
type Groups struct {
	Offsets     Tensor // int32 [Count*Segments+1]; [Segments+1] with Interleaved, where only weight gradients need it
	Count       int
	Segments    int
	Interleaved bool
	// Chain, of a weight gradient: dw is the sum of a segment that goes on through several calls, and each chain
	// continues from what is stored. There is one segment then.
	Chain bool
	// Fresh, of a weight gradient: dw counts as +0, whatever lies there, and all of it is written.
	Fresh bool
}

// GradRows are more rows of a weight gradient, with segments of their own in the same groups.
type GradRows struct {
	DY, X  Tensor
	Groups *Groups
}

// PartSum is a sum that parts are added to, see [Device.Accumulate].
type PartSum struct{ Dst, Parts Tensor }

// Squares is a tensor, and where the sums of squares of its groups go: see [Device.SumSquares].
type Squares struct{ Out, T Tensor }

// Moments are weights with their optimizer's state and gradient, see [Device.AdamW].
type Moments struct{ W, Master, M, V, Grad Tensor }

// Plan is the permutation of a mixture-of-experts layer: every (token, slot) pair is one row, rows sorted by expert,
// then by token.
type Plan struct {
	Groups Groups
	Source Tensor // int32 [T*K]: the token of a row
	RowOf  Tensor // int32 [T, K]: the row of a token's slot
}

// AllRows is where rows begin to CombineBackward that have no owners.
const AllRows = -1

// AdamW are the settings of one optimizer step; the corrections are 1-beta^t, computed in float64 and rounded once.
type AdamW struct {
	LR, Beta1, Beta2, Eps, WeightDecay float32
	Correction1, Correction2           float32
}

// Sampling is how the next token of one row is drawn.
type Sampling struct {
	Temperature float32 // 0: the largest logit, lowest id first
	TopK        int     // 0: all
	TopP        float32 // 1: all
	Seed        uint64
	Request     uint64 // identity of the sample, so that samples of one prompt differ
	Index       uint64 // of the token in its sequence
}

// Adjustment is how the logits of one row are changed before its token is drawn.
type Adjustment struct {
	Logits      []LogitAdjustment // no id twice
	MinP        float32           // least probability, relative to the likeliest id's; 0: all
	Temperature float32           // of Sampling
}

// LogitAdjustment changes the logit of one id.
type LogitAdjustment struct {
	ID         int32
	Bias       float32 // is added
	Repetition float32 // above 0; 1: none
	Penalty    float32 // is taken away
}

// LeastTemperature and MostTemperature bound a temperature that is not 0: beyond them logits become infinite or equal.
const LeastTemperature, MostTemperature = 1e-6, 1e6

// LeastRepetition and MostRepetition bound a repetition penalty: within them finite logits stay finite.
const LeastRepetition, MostRepetition = 0.01, 100

// Inverse is the factor of logits at a temperature, for sampling and for log-probabilities: 1/temperature. At 0
// sampling takes the largest logit, and log-probabilities are those of temperature 1.
func Inverse(temperature float32) float32 {
	if temperature == 0 {
		return 1
	}
	return 1 / temperature
}

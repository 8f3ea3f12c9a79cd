package cpu

import (
	"fmt"
	"slices"
	"time"

	"lockstep/kernels"
)

// GEMMResult is one line of BenchGEMM.
type GEMMResult struct {
	Case   string
	DType  kernels.DType
	GFLOPS float64 // 2 floating-point operations for each multiply-add, median
	Peak   float64 // GFLOP/s of FMAs on registers alone, of the same threads, measured around each sample
	Ratio  float64 // median of the samples' ratios to their peaks
}

// GEMMCase is a matrix product of a benchmark: Rows x Cols over Depth, for each of Groups.
type GEMMCase struct {
	// MatMul [rows, depth] x [cols, depth]^T, MatMulT [rows, depth] x [depth, cols], WeightGrad [rows, cols] over depth
	// rows
	Op                string
	Groups            int // 0: dense. Rows are those of one group; for WeightGrad depth is
	Rows, Cols, Depth int
}

// gemmOperands are the tensors of a case.
type gemmOperands struct {
	terms  []kernels.Term
	out    kernels.Tensor
	groups *kernels.Groups
}

func (c GEMMCase) String() string {
	s := fmt.Sprintf("%s %dx%dx%d", c.Op, c.Rows, c.Cols, c.Depth)
	if c.Groups > 0 {
		s = fmt.Sprintf("%s x%d", s, c.Groups)
	}
	return s
}

// Flops is 2 for each multiply-add.
func (c GEMMCase) Flops() float64 {
	return 2 * float64(max(c.Groups, 1)) * float64(c.Rows) * float64(c.Cols) * float64(c.Depth)
}

// BenchGEMM times matrix products on the device, about `each` for every case, with fp32 or bf16 operands.
func (d *Device) BenchGEMM(dtype kernels.DType, cases []GEMMCase, each time.Duration) []GEMMResult {
	var results []GEMMResult
	for _, c := range cases {
		results = append(results, c.measure(d, dtype, each))
	}
	return results
}

const (
	benchSamples = 9
	peakTime     = 2 * time.Millisecond
)

func (c GEMMCase) measure(d *Device, dtype kernels.DType, each time.Duration) GEMMResult {
	x := c.allocate(d, dtype)
	c.run(d, x)
	start := time.Now()
	c.run(d, x)
	once := max(time.Since(start), time.Microsecond)
	reps := max(int(each/benchSamples/once), 1)
	flops := c.Flops() * float64(reps)
	var rates, peaks, ratios []float64
	before := d.mm.Peak(d.pool.threads, d.pool.each, peakTime)
	for range benchSamples {
		start := time.Now()
		for range reps {
			c.run(d, x)
		}
		rate := flops / time.Since(start).Seconds()
		after := d.mm.Peak(d.pool.threads, d.pool.each, peakTime)
		rates, peaks = append(rates, rate/1e9), append(peaks, (before+after)/2e9)
		ratios = append(ratios, rate/((before+after)/2))
		before = after
	}
	return GEMMResult{Case: c.String(), DType: dtype, GFLOPS: median(rates), Peak: median(peaks), Ratio: median(ratios)}
}

func median(x []float64) float64 {
	slices.Sort(x)
	return x[len(x)/2]
}

// allocate makes operands of small multiples of 1/64.
func (c GEMMCase) allocate(d *Device, dtype kernels.DType) (o gemmOperands) {
	groups := max(c.Groups, 1)
	tensor := func(dtype kernels.DType, groups, rows, cols int) kernels.Tensor {
		t := kernels.NewArena(d).NewGrouped(dtype, groups, rows, cols)
		m := d.matrix(t)
		buf := make([]float32, cols)
		for r := range groups * rows {
			row := m.target(r, buf)
			for j := range row {
				row[j] = float32((r*7+j*13)%127-63) / 64
			}
			m.store(r, row)
		}
		return t
	}
	rows, n, k := groups*c.Rows, c.Cols, c.Depth
	var x, w kernels.Tensor
	switch c.Op {
	case "MatMul":
		x, w, o.out = tensor(dtype, 1, rows, k), tensor(dtype, groups, n, k), tensor(dtype, 1, rows, n)
	case "MatMulT":
		x, w, o.out = tensor(dtype, 1, rows, k), tensor(dtype, groups, k, n), tensor(dtype, 1, rows, n)
	case "WeightGrad":
		rows = groups * k
		x, w, o.out = tensor(dtype, 1, rows, c.Rows), tensor(dtype, 1, rows, n), tensor(kernels.F32, groups, c.Rows, n)
	default:
		panic("cpu: no operation " + c.Op)
	}
	o.terms = []kernels.Term{{X: x, W: w}}
	if c.Groups > 0 || c.Op == "WeightGrad" {
		offsets := []int32{0}
		for g := range groups {
			offsets = append(offsets, int32((g+1)*rows/groups))
		}
		o.groups = &kernels.Groups{Offsets: kernels.WrapI32(offsets), Count: groups, Segments: 1}
	}
	return o
}

func (c GEMMCase) run(d *Device, o gemmOperands) {
	switch c.Op {
	case "MatMul":
		d.MatMul(o.out, o.groups, o.terms...)
	case "MatMulT":
		d.MatMulT(o.out, o.groups, o.terms...)
	case "WeightGrad":
		d.WeightGrad(o.out, o.terms[0].X, o.terms[0].W, o.groups)
	}
}

// copyBytes is more than the caches hold.
const copyBytes = 128 << 20

// BenchCopy measures a copy in memory on all threads for about this long. It returns the median of bytes read and
// written per second.
func (d *Device) BenchCopy(each time.Duration) float64 {
	from, to := make([]byte, copyBytes), make([]byte, copyBytes)
	for i := range from { // memory that was never written has no pages of its own
		from[i] = byte(i)
	}
	run := func() {
		d.pool.each(copyBytes, 1<<20, func(_, i, j int) { copy(to[i:j], from[i:j]) })
	}
	run()
	var rates []float64
	for began := time.Now(); len(rates) == 0 || time.Since(began) < each; {
		start := time.Now()
		run()
		rates = append(rates, 2*copyBytes/time.Since(start).Seconds())
	}
	return median(rates)
}

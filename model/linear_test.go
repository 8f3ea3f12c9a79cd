package model_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/model"
	"lockstep/model/peft"
	"lockstep/parallel"
)

// counting is a device that counts products and scalings.
type counting struct {
	kernels.Device
	lora, matmul, matmulT, scale int
}

func (d *counting) MatMulLoRA(out, u, x, a kernels.Tensor, scale float32, g *kernels.Groups, terms ...kernels.Term) {
	d.lora++
	d.Device.MatMulLoRA(out, u, x, a, scale, g, terms...)
}

func (d *counting) MatMul(out kernels.Tensor, g *kernels.Groups, terms ...kernels.Term) {
	d.matmul++
	d.Device.MatMul(out, g, terms...)
}

func (d *counting) MatMulT(out kernels.Tensor, g *kernels.Groups, terms ...kernels.Term) {
	d.matmulT++
	d.Device.MatMulT(out, g, terms...)
}

func (d *counting) Scale(out, x kernels.Tensor, a float32) {
	d.scale++
	d.Device.Scale(out, x, a)
}

// stackedLinear is the first layer's q, k, v with adapters of a rank on some of them, every weight drawn.
func stackedLinear(t *testing.T, dev kernels.Device, dtype kernels.DType, rank int, targets ...string) *model.Linear {
	t.Helper()
	return linearWith(t, dev, dtype, peft.Config{Rank: rank, Alpha: 3, Targets: targets})
}

func linearWith(t *testing.T, dev kernels.Device, dtype kernels.DType, c peft.Config) *model.Linear {
	t.Helper()
	m, err := model.LoadFolder(dev, filepath.Join("testdata", "qwen3"), "", model.Options{DType: dtype})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.AddLoRA(c); err != nil {
		t.Fatal(err)
	}
	m.Initialise(5)
	l := m.Blocks[0][0].Layer.Linears()[0]
	for i, s := range l.Subs {
		if s.LoRA != nil {
			write(dev, s.LoRA.B.W, i)
		}
	}
	m.TrainAll()
	return l
}

// write fills a tensor with values of both signs.
func write(dev kernels.Device, t kernels.Tensor, seed int) {
	var raw []byte
	for i := range t.Len() {
		v := float32((i*7+seed*13+i*i%11)%127-63) / 97
		if t.DType == kernels.BF16 {
			raw = binary.LittleEndian.AppendUint16(raw, kernels.RoundBF16(v))
		} else {
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
		}
	}
	dev.Write(t, raw)
}

// values of columns, rows of which may lie apart.
func values(dev kernels.Device, t kernels.Tensor) (all []float32) {
	for i := range t.Rows {
		all = append(all, model.ReadValues(dev, t.RowRange(i, i+1))...)
	}
	return all
}

// apart is the forward and the gradient of a Linear, projection by projection: a product A, a scaling, a product of the
// base's rows that B continues; and a term of dx for each adapter.
func apart(r *parallel.Rank, l *model.Linear, x, dy kernels.Tensor) (y, dx kernels.Tensor) {
	y, dx = r.Stack.New(x.DType, x.Rows, l.W.W.Rows), r.Stack.New(x.DType, x.Rows, x.Cols)
	back := []kernels.Term{{X: dy, W: l.W.W}}
	for _, s := range l.Subs {
		terms := []kernels.Term{{X: x, W: l.W.W.RowRange(s.From, s.To)}}
		if a := s.LoRA; a != nil {
			u, du := r.Stack.New(x.DType, x.Rows, a.A.W.Rows), r.Stack.New(x.DType, x.Rows, a.A.W.Rows)
			r.Dev.MatMul(u, nil, kernels.Term{X: x, W: a.A.W})
			r.Dev.Scale(u, u, a.Scale)
			terms = append(terms, kernels.Term{X: u, W: a.B.W})
			r.Dev.MatMulT(du, nil, kernels.Term{X: dy.ColRange(s.From, s.To), W: a.B.W})
			r.Dev.Scale(du, du, a.Scale)
			back = append(back, kernels.Term{X: du, W: a.A.W})
		}
		r.Dev.MatMul(y.ColRange(s.From, s.To), nil, terms...)
	}
	r.Dev.MatMulT(dx, nil, back...)
	return y, dx
}

// Stacked adapters give the bits of products taken apart, forward for any rank and backward where a rank is whole dot
// steps, in one operation.
func TestStackedAdapters(t *testing.T) {
	for _, c := range []struct {
		dot      kernels.DotMode
		dtype    kernels.DType
		rank     int
		backward bool // the gradient of the input too
		targets  []string
	}{
		{kernels.DotFMA, kernels.F32, 5, true, []string{"q_proj", "k_proj", "v_proj"}},
		{kernels.DotFMA, kernels.BF16, 4, true, []string{"q_proj", "v_proj"}},
		{kernels.DotTC16, kernels.BF16, 16, true, []string{"q_proj", "k_proj", "v_proj"}},
		{kernels.DotTC16, kernels.BF16, 4, false, []string{"k_proj", "v_proj"}},
		{kernels.DotTC16, kernels.BF16, 8, true, []string{"k_proj"}},
	} {
		def := kernels.Default()
		def.Dot = c.dot
		host, err := cpu.New(def, cpu.Options{})
		if err != nil {
			t.Fatal(err)
		}
		dev := &counting{Device: host}
		err = parallel.Run([]kernels.Device{dev}, func(r *parallel.Rank) error {
			l := stackedLinear(t, dev, c.dtype, c.rank, c.targets...)
			x, dy := r.Stack.New(c.dtype, 7, l.W.W.Cols), r.Stack.New(c.dtype, 7, l.W.W.Rows)
			write(dev, x, 1)
			write(dev, dy, 2)
			rows := r.Stack.New(kernels.I32, 1, 2)
			dev.Write(rows, []byte{0, 0, 0, 0, 7, 0, 0, 0})
			var saved model.LinearSaved
			y := l.Forward(r, x, nil, nil, &saved)
			if dev.lora != 1 || dev.matmul != 0 || dev.scale != 0 {
				t.Errorf("%+v: %d products with adapters, %d others and %d scalings forward, want 1, 0 and 0", c,
					dev.lora, dev.matmul, dev.scale)
			}
			dx := l.Backward(r, dy, nil, &kernels.Groups{Offsets: rows, Count: 1, Segments: 1}, &saved)
			if dev.matmulT != len(c.targets)+1 || dev.scale != 1 {
				t.Errorf("%+v: %d products and %d scalings backward, want %d and 1", c, dev.matmulT, dev.scale,
					len(c.targets)+1)
			}
			wantY, wantDX := apart(r, l, x, dy)
			if !slices.Equal(values(dev, y), values(dev, wantY)) {
				t.Errorf("%+v: forward has other bits than products taken apart", c)
			}
			if c.backward && !slices.Equal(values(dev, dx), values(dev, wantDX)) {
				t.Errorf("%+v: the gradient of the input has other bits than products taken apart", c)
			}
			for _, s := range l.Subs {
				if s.LoRA != nil {
					write(dev, s.LoRA.B.W, 3)
				}
			}
			if other, _ := apart(r, l, x, dy); slices.Equal(values(dev, y), values(dev, other)) {
				t.Errorf("%+v: adapters with other weights have the same bits", c)
			}
			return nil
		})
		if err != nil {
			t.Fatal(fmt.Errorf("%+v: %w", c, err))
		}
		if err := host.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Adapters of one input with ranks and scales of their own give the bits of products taken apart, forward and backward.
func TestAdapterScales(t *testing.T) {
	onRank(t, func(r *parallel.Rank) error {
		l := linearWith(t, r.Dev, kernels.F32, peft.Config{Rank: 4, Alpha: 3,
			Targets:      []string{"q_proj", "k_proj", "v_proj"},
			RankPattern:  []peft.ModuleValue{{Pattern: "k_proj", Value: 2}},
			AlphaPattern: []peft.ModuleValue{{Pattern: "v_proj", Value: 7}}})
		x, dy := r.Stack.New(kernels.F32, 7, l.W.W.Cols), r.Stack.New(kernels.F32, 7, l.W.W.Rows)
		write(r.Dev, x, 1)
		write(r.Dev, dy, 2)
		rows := r.Stack.New(kernels.I32, 1, 2)
		r.Dev.Write(rows, []byte{0, 0, 0, 0, 7, 0, 0, 0})
		var saved model.LinearSaved
		y := l.Forward(r, x, nil, nil, &saved)
		dx := l.Backward(r, dy, nil, &kernels.Groups{Offsets: rows, Count: 1, Segments: 1}, &saved)
		wantY, wantDX := apart(r, l, x, dy)
		if !slices.Equal(values(r.Dev, y), values(r.Dev, wantY)) {
			t.Error("forward has other bits than products taken apart")
		}
		if !slices.Equal(values(r.Dev, dx), values(r.Dev, wantDX)) {
			t.Error("the gradient of the input has other bits than products taken apart")
		}
		for i, want := range []float32{0.75, 1.5, 1.75} {
			if got := l.Subs[i].LoRA.Scale; got != want || l.A.Rows != 10 {
				t.Errorf("projection %d: scale %g, want %g; ranks %d", i, got, want, l.A.Rows)
			}
		}
		return nil
	})
}

// Parameters of stacked adapters are rows of one tensor in the order of projections, each contiguous and of its own.
func TestStackedParameters(t *testing.T) {
	onRank(t, func(r *parallel.Rank) error {
		l := stackedLinear(t, r.Dev, kernels.F32, 3, "q_proj", "v_proj")
		q, v := l.Subs[0].LoRA.A, l.Subs[2].LoRA.A
		want := slices.Concat(values(r.Dev, q.W), values(r.Dev, v.W))
		if got := values(r.Dev, l.A); l.A.Rows != 6 || !slices.Equal(got, want) {
			t.Errorf("A %s is not that of q and then that of v", l.A)
		}
		if slices.Equal(values(r.Dev, q.W), values(r.Dev, v.W)) || !q.W.Contiguous() || q.Parts[0].Rows != 3 {
			t.Errorf("adapters of q and v: %s and %s", q, v)
		}
		return nil
	})
}

package checkpoint

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"unsafe"

	"lockstep/data/safetensors"
	"lockstep/kernels"
	"lockstep/quant"
)

// encodedAtRandom is groups of matrices in host memory, each encoded from its own first row.
func encodedAtRandom(e quant.Encoding, groups, rows, cols int) kernels.QuantizedWeight {
	w := kernels.NewQuantizedWeight(e.Format(), kernels.F32, groups, rows, cols, func(d kernels.DType, groups, rows,
		cols int) kernels.Tensor {
		t := kernels.Tensor{DType: d, Groups: groups, Rows: rows, Cols: cols, Stride: cols}
		t.Data = unsafe.Pointer(unsafe.SliceData(make([]uint32, t.Bytes()/4+1)))
		return t
	})
	rng := rand.New(rand.NewPCG(1, 2))
	x := make([]float32, rows*cols)
	for g := range groups {
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		for row := 0; row < rows; row += e.High() {
			w.EncodeRows(e, g*rows+row, x[row*cols:min(row+e.High(), rows)*cols])
		}
	}
	return w
}

// What Tensors writes under the config of QuantizationConfig is read as the same numbers, also experts in one tensor,
// whose squares of FP8 begin anew with each.
func TestTensorsAreRead(t *testing.T) {
	for _, c := range []struct {
		name               string
		as                 quant.Encoding
		blocks             bool
		groups, rows, cols int
	}{
		{"a.weight", quant.INT4, false, 1, 5, 96},
		{"a.weight", quant.MXFP4, false, 1, 5, 96},
		{"a.weight", quant.MXFP8, false, 1, 5, 96},
		{"a.weight", quant.FP8, false, 1, 130, 200},
		{"experts.up", quant.FP8, false, 3, 200, 160},
		{"experts.up", quant.MXFP4, true, 3, 5, 64},
	} {
		t.Run(fmt.Sprintf("%s %s", c.as, c.name), func(t *testing.T) {
			q, shape := encodedAtRandom(c.as, c.groups, c.rows, c.cols), []int{c.rows, c.cols}
			switch {
			case c.blocks:
				shape = []int{c.groups, c.cols, c.rows}
			case c.groups > 1:
				shape = []int{c.groups, c.rows, c.cols}
			}
			tensors, err := Quantized{Name: c.name, Shape: shape, Encoding: c.as, Format: q.Format,
				EachRow: func(w io.Writer, write RowWriter) (err error) {
					for i := 0; i < c.groups*c.rows && err == nil; i++ {
						_, err = w.Write(write(nil, i, QuantizedRow{q.Group(i / c.rows), i % c.rows}))
					}
					return err
				}}.Tensors(c.blocks)
			if err != nil {
				t.Fatal(err)
			}
			got := readBack(t, tensors, c.name, map[string]any{"model_type": "gpt_oss",
				ConfigKey: QuantizationConfig(c.as, quant.AsTrained, c.blocks, nil)})
			want := make([]float32, c.cols)
			for row := range c.groups * c.rows {
				q.DecodeRow(want, row, 0)
				for col, x := range want {
					at := row*c.cols + col
					if c.blocks {
						at = (row/c.rows*c.cols+col)*c.rows + row%c.rows
					}
					if got[at] != x {
						t.Fatalf("row %d, column %d: %g, want %g", row, col, got[at], x)
					}
				}
			}
		})
	}
}

// readBack writes tensors to a file and reads a weight of it as a config says.
func readBack(t *testing.T, tensors []safetensors.OutTensor, name string, config map[string]any) []float32 {
	t.Helper()
	dir := t.TempDir()
	if err := safetensors.Write(filepath.Join(dir, "model.safetensors"), tensors, nil); err != nil {
		t.Fatal(err)
	}
	c, err := safetensors.OpenCheckpoint(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	format, err := ParseFormat(text)
	if err != nil {
		t.Fatal(err)
	}
	w, err := NewWeights(c, format)
	if err != nil {
		t.Fatal(err)
	}
	from, err := w.Find(name, "config.json")
	if err != nil {
		t.Fatal(err)
	}
	values := make([]float32, safetensors.TensorInfo{Shape: from.Shape}.Len())
	if err := from.Read(values); err != nil {
		t.Fatal(err)
	}
	return values
}

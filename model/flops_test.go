package model

import (
	"fmt"
	"math"
	"path/filepath"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/parallel"
)

// meter is a device that counts the FLOPs of matrix products of activations with weights.
type meter struct {
	*cpu.Device
	flops float64
}

func (m *meter) MatMul(out kernels.Tensor, g *kernels.Groups, terms ...kernels.Term) {
	m.flops += 2 * float64(out.Len()) * float64(terms[0].X.Cols)
	m.Device.MatMul(out, g, terms...)
}

func (m *meter) MatMulT(out kernels.Tensor, g *kernels.Groups, terms ...kernels.Term) {
	m.flops += 2 * float64(out.Len()) * float64(terms[0].X.Cols)
	m.Device.MatMulT(out, g, terms...)
}

// eachModel runs body with every golden's model, frozen and trained, latent attention in both forms, and a batch of two
// sequences.
func eachModel(t *testing.T, body func(t *testing.T, r *parallel.Rank, dev *meter, m *Model, ids [][]int32)) {
	files, err := filepath.Glob("testdata/*/golden.safetensors")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		family := filepath.Base(filepath.Dir(file))
		for _, form := range []kernels.LatentForm{kernels.LatentExpanded, kernels.LatentAbsorbed} {
			for _, trained := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s %s %t", family, form, trained), func(t *testing.T) {
					onModel(t, family, form, func(r *parallel.Rank, dev *meter, m *Model) {
						if trained {
							m.TrainAll()
						}
						body(t, r, dev, m, randomIDs(3, m.Vocab, 40, 24))
					})
				})
			}
		}
	}
}

// onModel runs body with a golden's model on a device that counts.
func onModel(t *testing.T, family string, form kernels.LatentForm, body func(r *parallel.Rank, dev *meter, m *Model)) {
	t.Helper()
	def := kernels.Default()
	def.Latent = form
	host, err := cpu.New(def, cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	dev := &meter{Device: host}
	defer dev.Close()
	err = parallel.Run([]kernels.Device{dev}, func(r *parallel.Rank) error {
		m, err := LoadFolder(dev, filepath.Join("testdata", family), "", Options{})
		if err == nil {
			body(r, dev, m)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// at is the address of the next tensor on the stack, which takes no more than one chunk.
func at(r *parallel.Rank) uintptr {
	defer r.Stack.Release(r.Stack.Mark())
	return uintptr(r.Stack.New(kernels.I32, 1, 1).Data)
}

// What a block keeps of each result takes as many bytes as the plan says, besides its output; what it computes again
// is, in products, as many FLOPs as the plan says, with and without the results. All layers of all families.
func TestWork(t *testing.T) {
	eachModel(t, func(t *testing.T, r *parallel.Rank, dev *meter, m *Model, ids [][]int32) {
		rows := 0
		for _, s := range ids {
			rows += len(s)
		}
		for _, save := range []Save{0, SaveProjections, SaveAttention, SaveResidual, SaveGateUp, SaveExperts,
			SaveAll - 1} {
			b := indexerBatch(r, m, ids...)
			b.Prepare(r, m)
			x := r.Stack.New(m.DType, rows, m.Hidden)
			r.Dev.Embed(x, m.Embed.W, b.IDs)
			for i, bl := range m.Blocks {
				w := bl.work(m.DType, m.Hidden, Extent{Rows: rows, Length: 40})
				k := &Keep{save: save}
				from, flops := at(r), dev.flops
				y := r.Stack.New(x.DType, x.Rows, x.Cols)
				bl.Forward(r, y, x, b, k)
				forward := dev.flops - flops
				bytes, again, saved := kernels.ArenaBytes(y.DType, y.Rows, y.Cols), w.again, 0.0
				for _, res := range w.results {
					switch {
					case save&res.save != 0:
						bytes += res.bytes()
						saved += products(res)
					default:
						again += products(res)
					}
				}
				if got := int(at(r) - from); got != bytes {
					t.Errorf("block %d keeps %d bytes of %b, the plan %d", i, got, save, bytes)
				}
				mark := r.Stack.Mark()
				flops = dev.flops
				bl.forward(r, kernels.Tensor{}, x, b, k.rerun())
				if got := dev.flops - flops; got != again {
					t.Errorf("block %d computes %g FLOPs again where it keeps %b, the plan %g", i, got, save, again)
				}
				if all := again + saved + w.output + onceProducts(bl, rows); forward != all {
					t.Errorf("block %d computes %g FLOPs, the plan %g", i, forward, all)
				}
				r.Stack.Release(mark)
				x = y
			}
		}
	})
}

// products are the FLOPs of a result that is one of matrix products with weights.
func products(res result) float64 {
	if res.save == SaveAttention {
		return 0
	}
	return res.flops
}

// onceProducts are the products of a block's indexer.
func onceProducts(bl Block, rows int) float64 {
	if a, ok := bl.mixer().(*MLA); ok && a.Index != nil {
		return a.Index.flops(Extent{Rows: rows})
	}
	return 0
}

// The mean number of keys that a row sees, counted row by row.
func TestExtent(t *testing.T) {
	for length := range 40 {
		for _, bounds := range [][2]int{{0, 0}, {1, 0}, {7, 0}, {0, 5}, {3, 9}, {9, 3}, {39, 0}, {100, 50}} {
			seen := 0
			for row := range length {
				n := row + 1
				for _, b := range bounds {
					if b > 0 {
						n = min(n, b)
					}
				}
				seen += n
			}
			want := float64(seen) / float64(max(length, 1))
			if got := (Extent{Rows: 1, Length: length}).keys(bounds[0], bounds[1]); math.Abs(got-want) > 1e-9 {
				t.Errorf("sequences of %d, bounds %v: %g keys, want %g", length, bounds, got, want)
			}
		}
	}
}

package model_test

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unsafe"

	"lockstep/kernels"
	"lockstep/model"
	"lockstep/parallel"
)

// passed is the output of the blocks and every gradient of one micro-batch, for a drawn gradient of that output. run
// takes a batch forward, and then the gradient backward.
func passed(r *parallel.Rank, m *model.Model, ids []int32, run func(b *model.Batch, d kernels.Tensor) []float32,
) map[string][]float32 {
	defer r.Stack.Release(r.Stack.Mark())
	rows := len(ids)
	b := model.NewBatch(r, ids, &kernels.Layout{Spans: []kernels.Span{{Rows: rows}}, Segments: []int32{0, int32(rows)}},
		nil)
	rng := rand.New(rand.NewPCG(1, 2))
	values := make([]float32, rows*m.Hidden)
	for i := range values {
		values[i] = float32(rng.NormFloat64())
	}
	d := parallel.Upload(r, values).Reshape(rows, m.Hidden)
	out := map[string][]float32{"output": run(b, d)}
	out["input"] = model.ReadValues(r.Dev, d)
	for _, p := range m.Trained() {
		out[p.Name] = model.ReadValues(r.Dev, p.Grad)
		r.Dev.Zero(p.Grad)
	}
	return out
}

// Stages one after the other give the bits of the model that they are cut from, wherever it is cut, within blocks too.
func TestStages(t *testing.T) {
	for _, family := range []string{"qwen3_moe", "glm5", "nemotron_h"} {
		onRank(t, func(r *parallel.Rank) error {
			dir := filepath.Join("testdata", family)
			m, err := learner(r, dir, kernels.F32, false)
			if err != nil {
				return err
			}
			ids := openGolden(t, dir).ids("ids.0")
			want := passed(r, m, ids, func(b *model.Batch, d kernels.Tensor) []float32 {
				p := &model.Pass{Batch: b, D: d, Saved: new(model.Saved)}
				p.X = m.Forward(r, b, p.Saved)
				x := model.ReadValues(r.Dev, p.X)
				m.Backward(r, &model.Share{Passes: []*model.Pass{p}})
				return x
			})
			for range 2 {
				for cut := range len(m.Blocks) + 1 {
					got := passed(r, m, ids, func(b *model.Batch, d kernels.Tensor) []float32 {
						first, second := m.Stage(0, cut), m.Stage(cut, len(m.Blocks))
						b.Prepare(r, m)
						p := &model.Pass{Batch: b, D: d, X: m.Embed.Forward(r, b)}
						one := &model.Share{Passes: []*model.Pass{p}}
						kept := &model.Saved{Policy: m.Everywhere(0)}
						p.Saved = kept
						first.Forward(r, p)
						p.Saved = &model.Saved{Policy: m.Everywhere(model.SaveAttention)}
						second.Forward(r, p)
						y := model.ReadValues(r.Dev, p.X)
						second.Backward(r, one)
						p.Saved = kept
						first.Backward(r, one)
						m.Embed.Backward(r, d, b)
						return y
					})
					if name := differs(got, want); name != "" {
						t.Errorf("%s, cut before block %d of %d: %s differs", family, cut, len(m.Blocks), name)
					}
				}
				m.HalveBlocks()
			}
			return nil
		})
	}
}

// Halves of blocks have the parameters of their layers, in every family, and know the block of config.json that they
// are of.
func TestHalves(t *testing.T) {
	files, err := filepath.Glob("testdata/*/golden.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	halved := 0
	for _, file := range files {
		dir := filepath.Dir(file)
		if strings.Contains(dir, "glm5") { // has indexers, which no pipeline takes
			continue
		}
		onRank(t, func(r *parallel.Rank) error {
			m, err := model.LoadFolder(r.Dev, dir, "", model.Options{DType: kernels.F32})
			if err != nil {
				return err
			}
			blocks := len(m.Blocks)
			m.HalveBlocks()
			if n := m.BlocksOf(0, len(m.Blocks)); n != float64(blocks) {
				t.Errorf("%s: %d blocks are %g", dir, blocks, n)
			}
			if len(m.Blocks) > blocks {
				halved++
			}
			for i, bl := range m.Blocks {
				name := fmt.Sprintf("layers.%d.", m.Layer(i))
				for p := range parameters(bl) {
					if p.Block() != i || !strings.Contains(p.Name, name) {
						t.Errorf("%s: %s of block %d, %s, is in block %d", dir, p.Name, i, name, p.Block())
					}
				}
			}
			return nil
		})
	}
	onRank(t, func(r *parallel.Rank) error {
		_, err := model.LoadFolder(r.Dev, "testdata/nemotron_h", "", model.Options{DType: kernels.F32, Stages: 2,
			Ranks: []kernels.Device{r.Dev, r.Dev}, Cut: []float64{1.5, 2.5}})
		if want := "block 1 of nemotron_h is one layer, and has no halves"; err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		return nil
	})
	if halved < 10 {
		t.Errorf("%d families have halves: the test shows little", halved)
	}
}

// parameters are those that a block refers to.
func parameters(bl model.Block) map[*model.Param]bool {
	found, seen := map[*model.Param]bool{}, map[unsafe.Pointer]bool{}
	var visit func(v reflect.Value)
	visit = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.Pointer:
			if v.IsNil() || seen[v.UnsafePointer()] {
				return
			}
			seen[v.UnsafePointer()] = true
			if v.Type() == reflect.TypeFor[*model.Param]() {
				found[(*model.Param)(v.UnsafePointer())] = true
				return
			}
			visit(v.Elem())
		case reflect.Interface:
			visit(v.Elem())
		case reflect.Slice:
			for i := range v.Len() {
				visit(v.Index(i))
			}
		case reflect.Struct:
			for i := range v.NumField() {
				visit(v.Field(i))
			}
		}
	}
	visit(reflect.ValueOf(bl))
	return found
}

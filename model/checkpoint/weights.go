package checkpoint

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"lockstep/data/safetensors"
	"lockstep/kernels"
)

// Weights are the tensors of a checkpoint as numbers. Codes and scales appear as the weight that they decode to, under
// its name and in its shape. A weight is decoded when it is read.
type Weights struct {
	*safetensors.Checkpoint
	Format *Format // nil: every tensor is what it is
	used   map[string]bool
}

// Weight is one tensor of numbers.
type Weight struct {
	Shape []int
	Codes *Codes // nil: the checkpoint has the numbers themselves

	read  func(dst []float32) error
	plain *safetensors.TensorInfo // the numbers themselves; nil: in codes
	codes *safetensors.TensorInfo // nil: plain
}

// Read gives the numbers in fp32, products of codes and scales rounded to it; len(dst) is the number of elements. NaN
// and infinite numbers are errors, here and in Convert.
func (w Weight) Read(dst []float32) error { return w.read(dst) }

// Convert gives the weight in a storage type to a function. Numbers of another type are converted some millions at a
// time, so that there is no second copy of the weight; those of the same type come from the file. raw is valid during
// the call.
func (w Weight) Convert(d kernels.DType, visit func(from int, raw []byte) error) error {
	switch {
	case w.plain != nil && w.plain.DType == DTypeName(d):
		return inPieces(*w.plain, d, visit)
	case w.plain != nil:
		return converted(*w.plain, d, visit)
	}
	values := make([]float32, safetensors.TensorInfo{Shape: w.Shape}.Len())
	if err := w.read(values); err != nil {
		return err
	}
	raw := Round(values, d)
	if firstNotFinite(raw, d) >= 0 {
		return tooLarge(*w.codes, d)
	}
	return visit(0, raw)
}

// CheckShape is an error where the weight has another shape. config is the file that says which it should have.
func (w Weight) CheckShape(want []int, name string, from *Weights, config string) error {
	if slices.Equal(w.Shape, want) {
		return nil
	}
	return fmt.Errorf("%s: tensor %s has shape %v, %s wants %v", from.Path(), name, w.Shape, config, want)
}

// Forget releases the pages of the file that were read.
func (w Weight) Forget() {
	if w.plain != nil {
		w.plain.Forget()
	}
}

// NewWeights finds the weights that a checkpoint stores in a format. Codes without scales, and scales without codes,
// are errors.
func NewWeights(c *safetensors.Checkpoint, format *Format) (*Weights, error) {
	w := &Weights{Checkpoint: c, Format: format, used: map[string]bool{}}
	if format == nil {
		return w, nil
	}
	found := false
	for _, name := range c.Names() {
		of := w.Owner(name)
		if of == "" {
			continue
		}
		names, encoded := w.Encoded(of)
		if !encoded {
			t, _ := c.Tensor(name)
			return nil, fmt.Errorf("%s: tensor %s: there are no codes for it, %s in %s: fetch the checkpoint again",
				t.File, name, names[0], format.dtype)
		}
		for _, other := range names[1:] {
			if _, ok := c.Tensor(other); !ok {
				return nil, fmt.Errorf("%s: no tensor %s, which says what %s stands for: the checkpoint is incomplete",
					c.Path(), other, names[0])
			}
		}
		found = true
	}
	if !found {
		return nil, fmt.Errorf("%s: %s of config.json says %s, and no tensor is kept so: remove the field", c.Path(),
			ConfigKey, format.Name)
	}
	return w, nil
}

// Owner is the weight that a tensor of the checkpoint belongs to; "": the tensor is a weight itself.
func (w *Weights) Owner(name string) string {
	if w.Format == nil {
		return ""
	}
	for _, ending := range append([]string{w.Format.codes}, w.Format.others...) {
		stem, ok := strings.CutSuffix(name, ending)
		if !ok {
			continue
		}
		if of := stem + w.Format.weight; of != name {
			return of
		} else if _, encoded := w.Encoded(of); encoded {
			return of
		}
	}
	return ""
}

// Encoded tells whether the checkpoint has codes of a weight, and the names of the codes and of the tensors that belong
// to them.
func (w *Weights) Encoded(of string) (names []string, ok bool) {
	if w.Format == nil {
		return nil, false
	}
	stem, ok := strings.CutSuffix(of, w.Format.weight)
	if !ok {
		return nil, false
	}
	for _, ending := range append([]string{w.Format.codes}, w.Format.others...) {
		names = append(names, stem+ending)
	}
	codes, ok := w.Tensor(names[0])
	return names, ok && (names[0] != of || codes.DType == w.Format.dtype)
}

// Ignored tells whether a tensor says how activations are rounded before a product with a weight in codes. They are not
// rounded here.
func (w *Weights) Ignored(name string) bool {
	if w.Format == nil || w.Format.Ignored == "" {
		return false
	}
	stem, ok := strings.CutSuffix(name, w.Format.Ignored)
	if !ok {
		return false
	}
	_, encoded := w.Encoded(stem + w.Format.weight)
	return encoded
}

// CountIgnored is how many tensors are ignored.
func (w *Weights) CountIgnored() (n int) {
	for _, name := range w.Names() {
		if w.Ignored(name) {
			n++
		}
	}
	return n
}

// Has tells whether there is a weight of a name.
func (w *Weights) Has(name string) bool {
	if _, ok := w.Encoded(name); ok {
		return true
	}
	_, ok := w.Tensor(name)
	return ok
}

// Find is the weight of a name, for [Weights.CheckUnused] to leave out. config is the file that says what the
// checkpoint should hold.
func (w *Weights) Find(name, config string) (Weight, error) {
	if names, ok := w.Encoded(name); ok {
		var parts []safetensors.TensorInfo
		for _, n := range names {
			t, _ := w.Tensor(n)
			parts, w.used[n] = append(parts, t), true
		}
		if err := wantType(parts[0], w.Format.dtype); err != nil {
			return Weight{}, err
		}
		found, err := w.Format.open(parts[0], parts[1:])
		found.codes = &parts[0]
		return found, err
	}
	t, ok := w.Tensor(name)
	if !ok {
		return Weight{}, fmt.Errorf("%s: no tensor %s: the checkpoint is incomplete, or %s does not belong to it",
			w.Path(),
			name, config)
	}
	w.used[name] = true
	return plainWeight(t), nil
}

func plainWeight(t safetensors.TensorInfo) Weight {
	return Weight{Shape: t.Shape, plain: &t, read: func(dst []float32) error {
		return inRanges(t, func(part safetensors.TensorInfo, from, to int) error {
			if err := safetensors.ToF32(dst[from:to], part); err != nil {
				return err
			}
			for i, x := range dst[from:to] {
				if x-x != 0 {
					return notFinite(t, from+i, kernels.F32)
				}
			}
			return nil
		})
	}}
}

// Used tells whether [Weights.Find] has returned a tensor of the checkpoint, or decoded it.
func (w *Weights) Used(tensor string) bool { return w.used[tensor] }

// CheckUnused is an error that names the tensors of the checkpoint that Find has not returned, but for those that pass.
func (w *Weights) CheckUnused(pass func(name string) bool, config string) error {
	var names []string
	for _, name := range w.Names() {
		if !w.used[name] && !w.Ignored(name) && !pass(name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	more := ""
	if len(names) > 3 {
		more = fmt.Sprintf(" and %d more", len(names)-3)
	}
	return fmt.Errorf("%s: unexpected tensors %s%s: check that %s belongs to these weights", w.Path(),
		strings.Join(names[:min(3, len(names))], ", "), more, config)
}

// converted is [Weight.Convert] of numbers of another type, on all cores.
func converted(t safetensors.TensorInfo, d kernels.DType, visit func(from int, raw []byte) error) error {
	const together = 1 << 22
	size := d.Size()
	raw := make([]byte, size*min(together, t.Len()))
	for from := 0; from < t.Len(); from += together {
		to := min(from+together, t.Len())
		err := inRanges(slice(t, from, to), func(part safetensors.TensorInfo, i, j int) error {
			return convert(raw[i*size:], part, d, func(at int) error { return notFinite(t, from+i+at, d) })
		})
		if err == nil {
			err = visit(from, raw[:(to-from)*size])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// convert writes numbers in a storage type, through fp32 buffers that fit into cache. It returns the error that refuse
// makes of the first element that is not finite.
func convert(raw []byte, t safetensors.TensorInfo, d kernels.DType, refuse func(at int) error) error {
	const near = 1 << 13
	values := make([]float32, min(near, t.Len()))
	for from := 0; from < t.Len(); from += near {
		to := min(from+near, t.Len())
		if err := safetensors.ToF32(values[:to-from], slice(t, from, to)); err != nil {
			return err
		}
		PutAll(raw[from*d.Size():], d, values[:to-from])
		if i := firstNotFinite(raw[from*d.Size():to*d.Size()], d); i >= 0 {
			return refuse(from + i)
		}
	}
	return nil
}

// inRanges calls body for ranges of a tensor's elements on all cores.
func inRanges(t safetensors.TensorInfo, body func(part safetensors.TensorInfo, from, to int) error) error {
	var failed atomic.Pointer[error]
	InParallel(t.Len(), 1, func(from, to int) {
		if err := body(slice(t, from, to), from, to); err != nil {
			failed.Store(&err)
		}
	})
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// slice is some of a tensor's elements, as a vector.
func slice(t safetensors.TensorInfo, from, to int) safetensors.TensorInfo {
	size := len(t.Data) / t.Len()
	t.Shape, t.Data = []int{to - from}, t.Data[from*size:to*size]
	return t
}

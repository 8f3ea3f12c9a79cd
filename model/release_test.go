package model_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/data/safetensors"
	"lockstep/kernels"
	"lockstep/model"
	"lockstep/parallel"
)

// A release in a quantised format is made here from a golden, by encoders that share nothing with package quant, next
// to the same checkpoint with the numbers that the codes stand for. Opened, both must be the same model on every bit.

// numbers is a tensor before it is encoded, rows first.
type numbers struct {
	shape  []int
	values []float32
}

// release is a checkpoint: tensors in some format, what config.json says of it, and the numbers of every weight.
type release struct {
	dir    string // of the golden
	config map[string]any
	files  map[string]safetensors.OutTensor
	plain  map[string]numbers
	coded  map[string]bool // weights that the files have in codes
}

func bytesOf(name, dtype string, shape []int, raw []byte) safetensors.OutTensor {
	return safetensors.OutTensor{Name: name, DType: dtype, Shape: shape, Write: func(w io.Writer) error {
		_, err := w.Write(raw)
		return err
	}}
}

func f32s(values []float32) (raw []byte) {
	for _, v := range values {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
	}
	return raw
}

// nearestBF16 rounds by the neighbours, ties to even.
func nearestBF16(x float32) float32 {
	low := math.Float32frombits(math.Float32bits(x) &^ 0xffff)
	high := math.Float32frombits(math.Float32bits(low) + 1<<16)
	below, above := math.Abs(float64(x)-float64(low)), math.Abs(float64(high)-float64(x))
	if above < below || above == below && math.Float32bits(low)>>16&1 == 1 {
		return high
	}
	return low
}

func bf16s(values []float32) (raw []byte) {
	for _, v := range values {
		raw = binary.LittleEndian.AppendUint16(raw, uint16(math.Float32bits(nearestBF16(v))>>16))
	}
	return raw
}

// newRelease starts from a golden whose experts lie one by one, or (fused) as one tensor of all gates and ups and one
// of all downs.
func newRelease(t *testing.T, family string, fused bool) *release {
	t.Helper()
	r := &release{dir: filepath.Join("testdata", family), files: map[string]safetensors.OutTensor{},
		plain: map[string]numbers{}, coded: map[string]bool{}}
	text, err := os.ReadFile(filepath.Join(r.dir, "config.json"))
	if err == nil {
		err = json.Unmarshal(text, &r.config)
	}
	if err != nil {
		t.Fatal(err)
	}
	g := golden{t, openCheckpoint(t, r.dir)}
	experts := map[string][]numbers{}
	for _, name := range g.c.Names() {
		info, _ := g.c.Tensor(name)
		n := numbers{info.Shape, g.f32(name)}
		if at := strings.Index(name, ".experts."); fused && at >= 0 {
			var e int
			var module string
			if _, err := fmt.Sscanf(name[at:], ".experts.%d.%s", &e, &module); err != nil {
				t.Fatal(name, err)
			}
			p := name[:at] + ".experts." + strings.TrimSuffix(module, ".weight")
			experts[p] = append(experts[p], n) // names are sorted, and there are fewer than ten
			continue
		}
		r.plain[name] = n
	}
	for p, downs := range experts {
		stem, ok := strings.CutSuffix(p, "down_proj")
		if !ok {
			continue
		}
		gateUp, down := numbers{}, numbers{}
		for e, d := range downs {
			gate, up := experts[stem+"gate_proj"][e], experts[stem+"up_proj"][e]
			gateUp.values = slices.Concat(gateUp.values, gate.values, up.values)
			gateUp.shape = []int{e + 1, 2 * gate.shape[0], gate.shape[1]}
			down.values, down.shape = append(down.values, d.values...), []int{e + 1, d.shape[0], d.shape[1]}
		}
		r.plain[stem+"gate_up_proj"], r.plain[p] = gateUp, down
	}
	for name, n := range r.plain {
		r.files[name] = bytesOf(name, "F32", n.shape, f32s(n.values))
	}
	return r
}

// encode takes a weight's plain tensor out of the files, and its numbers become those that its codes stand for.
func (r *release) encode(name string, decoded numbers, parts ...safetensors.OutTensor) {
	delete(r.files, name)
	r.plain[name], r.coded[name] = decoded, true
	for _, p := range parts {
		r.files[p.Name] = p
	}
}

// e4m3 are the numbers of the codes 0 to 126, by the format's formula; those from 128 on are their negatives.
var e4m3 = func() (v []float64) {
	for code := range 127 {
		exponent, fraction := code>>3, float64(code&7)/8
		if exponent == 0 {
			v = append(v, math.Ldexp(fraction, -6))
		} else {
			v = append(v, math.Ldexp(1+fraction, exponent-7))
		}
	}
	return v
}()

// nearestOf is the index of the ascending number that is nearest to |x|, and whether x is negative.
func nearestOf(ascending []float64, x float64) (code int, negative bool) {
	i, _ := slices.BinarySearch(ascending, math.Abs(x))
	if i == len(ascending) || i > 0 && math.Abs(x)-ascending[i-1] < ascending[i]-math.Abs(x) {
		i--
	}
	return i, math.Signbit(x)
}

// fp8 encodes a weight in blocks of high x wide with scales of a type.
func (r *release) fp8(name string, high, wide int, scaleType string) {
	n := r.plain[name]
	rank := len(n.shape)
	down, across := (n.shape[rank-2]+high-1)/high, (n.shape[rank-1]+wide-1)/wide
	r.fp8As(name, high, wide, scaleType, name+"_scale_inv", append(slices.Clone(n.shape[:rank-2]), down, across)...)
}

// fp8As is fp8 with the name and the shape that the tensor of scales has.
func (r *release) fp8As(name string, high, wide int, scaleType, scaleName string, scaleShape ...int) {
	n := r.plain[name]
	rank := len(n.shape)
	rows, cols := n.shape[rank-2], n.shape[rank-1]
	down, across := (rows+high-1)/high, (cols+wide-1)/wide
	block := func(i int) int {
		matrix, row, col := i/(rows*cols), i/cols%rows, i%cols
		return (matrix*down+row/high)*across + col/wide
	}
	scales := make([]float32, len(n.values)/(rows*cols)*down*across)
	for i, x := range n.values {
		scales[block(i)] = max(scales[block(i)], float32(math.Abs(float64(x)))/448)
	}
	raw := encodeScales(scales, scaleType)
	codes, decoded := make([]byte, len(n.values)), make([]float32, len(n.values))
	for i, x := range n.values {
		s := float64(scales[block(i)])
		code, negative := nearestOf(e4m3, float64(x)/s)
		decoded[i] = float32(e4m3[code] * s)
		if codes[i] = byte(code); negative {
			codes[i], decoded[i] = byte(code|0x80), -decoded[i]
		}
	}
	r.encode(name, numbers{n.shape, decoded}, bytesOf(name, "F8_E4M3", n.shape, codes), bytesOf(scaleName, scaleType,
		scaleShape, raw))
}

// encodeScales is the bytes of scales in a type, whose numbers they become.
func encodeScales(scales []float32, dtype string) (raw []byte) {
	switch dtype {
	case "BF16":
		raw = bf16s(scales)
		for i := range scales {
			scales[i] = nearestBF16(scales[i])
		}
		return raw
	case "F8_E8M0": // upward, so that codes reach every number
		for i, s := range scales {
			exponent := math.Ceil(math.Log2(float64(s)))
			scales[i], raw = float32(math.Pow(2, exponent)), append(raw, byte(exponent+127))
		}
		return raw
	}
	return f32s(scales)
}

// fp8Rows encodes a weight as compressed-tensors does, with a scale for each row or, next to the scale of activations,
// one for all.
func (r *release) fp8Rows(name string, whole bool, scaleType string) {
	shape := r.plain[name].shape
	if !whole {
		r.fp8As(name, 1, shape[1], scaleType, name+"_scale", shape[0], 1)
		return
	}
	r.fp8As(name, shape[0], shape[1], scaleType, name+"_scale", 1)
	inputScale := strings.TrimSuffix(name, ".weight") + ".input_scale"
	r.files[inputScale] = bytesOf(inputScale, scaleType, []int{1}, encodeScales([]float32{0.5}, scaleType))
}

// fp8Compressed encodes a weight in blocks as compressed-tensors does.
func (r *release) fp8Compressed(name string, high, wide int, scaleType string) {
	shape := r.plain[name].shape
	r.fp8As(name, high, wide, scaleType, name+"_scale", (shape[0]+high-1)/high, (shape[1]+wide-1)/wide)
}

// int4 packs a weight as compressed-tensors does.
func (r *release) int4(name string, group int) {
	n, stem := r.plain[name], strings.TrimSuffix(name, ".weight")
	rows, cols := n.shape[0], n.shape[1]
	scales := make([]float32, rows*cols/group)
	for i, x := range n.values {
		scales[i/group] = max(scales[i/group], float32(math.Abs(float64(x)))/7)
	}
	for i := range scales {
		scales[i] = nearestBF16(scales[i])
	}
	words, decoded := make([]uint32, rows*cols/8), make([]float32, rows*cols)
	for i, x := range n.values {
		s := float64(scales[i/group])
		code := int(min(max(math.Round(float64(x)/s), -8), 7)) // an integer: nothing below 0 rounds to -0
		decoded[i] = float32(float64(code) * s)
		words[i/8] |= uint32(code+8) << (4 * (i % 8))
	}
	var packed []byte
	for _, w := range words {
		packed = binary.LittleEndian.AppendUint32(packed, w)
	}
	shape := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, uint32(rows)), uint32(cols))
	r.encode(name, numbers{n.shape, decoded}, bytesOf(stem+".weight_packed", "I32", []int{rows, cols / 8}, packed),
		bytesOf(stem+".weight_scale", "BF16", []int{rows, cols / group}, bf16s(scales)), bytesOf(stem+".weight_shape",
			"I32", []int{2}, shape))
}

// mxfp4 converts experts [n, in, out] to blocks and scales of [n, out, in].
func (r *release) mxfp4(name string) {
	n := r.plain[name]
	experts, in, out := n.shape[0], n.shape[1], n.shape[2]
	blocks, scales, decoded := encodeMXFP4(n.values, func(b, i int) int {
		e, row, first := b/(in/32)/out, b/(in/32)%out, b%(in/32)*32
		return (e*in+first+i)*out + row
	})
	r.encode(name, numbers{n.shape, decoded}, bytesOf(name+"_blocks", "U8", []int{experts, out, in / 32, 16}, blocks),
		bytesOf(name+"_scales", "U8", []int{experts, out, in / 32}, scales))
}

// mxfp4Packed encodes a weight as compressed-tensors does.
func (r *release) mxfp4Packed(name string) {
	n, stem := r.plain[name], strings.TrimSuffix(name, ".weight")
	rows, cols := n.shape[0], n.shape[1]
	blocks, scales, decoded := encodeMXFP4(n.values, func(b, i int) int { return 32*b + i })
	r.encode(name, numbers{n.shape, decoded}, bytesOf(stem+".weight_packed", "U8", []int{rows, cols / 2}, blocks),
		bytesOf(stem+".weight_scale", "U8", []int{rows, cols / 32}, scales))
}

// encodeMXFP4 encodes numbers, the i-th of block b at(b, i).
func encodeMXFP4(values []float32, at func(b, i int) int) (blocks, scales []byte, decoded []float32) {
	e2m1 := []float64{0, 0.5, 1, 1.5, 2, 3, 4, 6}
	blocks, scales, decoded = make([]byte, len(values)/2), make([]byte, len(values)/32), make([]float32, len(values))
	for b := range scales {
		largest := 0.0
		for i := range 32 {
			largest = max(largest, math.Abs(float64(values[at(b, i)])))
		}
		exponent := math.Floor(math.Log2(largest)) - 2
		scales[b] = byte(exponent + 127)
		for i := range 32 {
			code, negative := nearestOf(e2m1, math.Ldexp(float64(values[at(b, i)]), -int(exponent)))
			x := float32(math.Ldexp(e2m1[code], int(exponent)))
			if negative {
				code, x = code|8, -x
			}
			blocks[b*16+i/2] |= byte(code << (4 * (i % 2)))
			decoded[at(b, i)] = x
		}
	}
	return blocks, scales, decoded
}

// nf4 encodes a weight as bitsandbytes does, in blocks of 64 numbers that go on from row to row, the first of two codes
// in the high bits. Nested absmax are codes of a table, in blocks of 256, plus their mean.
func (r *release) nf4(name string, nested bool) {
	const block, nestedBlock = 64, 256
	n, table := r.plain[name], nf4Table()
	absmax := make([]float32, (len(n.values)+block-1)/block)
	for i, x := range n.values {
		absmax[i/block] = max(absmax[i/block], float32(math.Abs(float64(x))))
	}
	state := map[string]any{"quant_type": "nf4", "blocksize": block, "dtype": "bfloat16", "shape": n.shape}
	var parts []safetensors.OutTensor
	if nested {
		parts = nestedAbsmax(name, absmax, nestedBlock, state)
	} else {
		parts = append(parts, bytesOf(name+".absmax", "F32", []int{len(absmax)}, f32s(absmax)))
	}
	packed, decoded := make([]byte, (len(n.values)+1)/2), make([]float32, len(n.values))
	for i, x := range n.values {
		s := float64(absmax[i/block])
		code := nearestIn(table, float64(x)/s)
		decoded[i] = float32(float64(table[code]) * s)
		packed[i/2] |= byte(code << (4 - 4*(i%2)))
	}
	text, err := json.Marshal(state)
	if err != nil {
		panic(err) // numbers and strings
	}
	r.encode(name, numbers{n.shape, decoded}, append(parts, bytesOf(name, "U8", []int{len(packed), 1}, packed),
		bytesOf(name+".quant_map", "F32", []int{16}, f32s(table)),
		bytesOf(name+".quant_state.bitsandbytes__nf4", "U8", []int{len(text)}, text))...)
}

// nestedAbsmax encodes absmax, which become the numbers of their codes, and says how in a quant_state.
func nestedAbsmax(name string, absmax []float32, block int, state map[string]any) []safetensors.OutTensor {
	table, codes := make([]float32, 256), make([]byte, len(absmax))
	scales := make([]float32, (len(absmax)+block-1)/block)
	for i := range table {
		x := float64(i-127) / 128
		table[i] = float32(x * math.Abs(x))
	}
	sum := 0.0
	for _, a := range absmax {
		sum += float64(a)
	}
	offset := float32(sum / float64(len(absmax)))
	for i, a := range absmax {
		scales[i/block] = max(scales[i/block], float32(math.Abs(float64(a-offset))))
	}
	for i, a := range absmax {
		s := float64(scales[i/block])
		codes[i] = byte(nearestIn(table, float64(a-offset)/s))
		absmax[i] = float32(float64(float32(float64(table[codes[i]])*s)) + float64(offset))
	}
	maps.Copy(state, map[string]any{"nested_blocksize": block, "nested_dtype": "float32",
		"nested_offset": float64(offset)})
	return []safetensors.OutTensor{bytesOf(name+".absmax", "U8", []int{len(codes)}, codes),
		bytesOf(name+".nested_absmax", "F32", []int{len(scales)}, f32s(scales)),
		bytesOf(name+".nested_quant_map", "F32", []int{256}, f32s(table))}
}

// nf4Table is the 16 numbers in their shortest form: what differs from quantiles of a normal distribution is
// bitsandbytes' own.
func nf4Table() []float32 {
	return []float32{-1, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.091050036, 0, 0.0795803,
		0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1}
}

// nearestIn is the index of the number that is nearest to x.
func nearestIn(values []float32, x float64) (best int) {
	for i, v := range values {
		if math.Abs(float64(v)-x) < math.Abs(float64(values[best])-x) {
			best = i
		}
	}
	return best
}

// write makes the release's folder.
func (r *release) write(t *testing.T) string {
	t.Helper()
	return writeFolder(t, r.config, slices.Collect(maps.Values(r.files)))
}

// writePlain makes the folder of its numbers, those that codes stand for in a storage type.
func (r *release) writePlain(t *testing.T, d kernels.DType) string {
	t.Helper()
	config := maps.Clone(r.config)
	delete(config, "quantization_config")
	if text, ok := config["text_config"].(map[string]any); ok {
		text = maps.Clone(text)
		delete(text, "quantization_config")
		config["text_config"] = text
	}
	var tensors []safetensors.OutTensor
	for name, n := range r.plain {
		switch {
		case !r.coded[name]:
			tensors = append(tensors, r.files[name])
		case d == kernels.F32:
			tensors = append(tensors, bytesOf(name, "F32", n.shape, f32s(n.values)))
		default:
			tensors = append(tensors, bytesOf(name, "BF16", n.shape, bf16s(n.values)))
		}
	}
	return writeFolder(t, config, tensors)
}

func writeFolder(t *testing.T, config map[string]any, tensors []safetensors.OutTensor) string {
	t.Helper()
	dir := t.TempDir()
	text, err := json.Marshal(config)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "config.json"), text, 0o644)
	}
	if err == nil {
		err = safetensors.Write(filepath.Join(dir, "model.safetensors"), tensors, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// projection names what FP8 releases have in codes.
func projection(name string) bool {
	for _, other := range []string{"weights_proj", "in_proj_a.", "in_proj_b.", "in_proj_ba.", "mm_projector",
		"vision_tower", "_bias", ".bias"} {
		if strings.Contains(name, other) {
			return false
		}
	}
	for _, part := range []string{"_proj", ".wk.", ".wq_b.", ".w1.", ".w2.", ".w3."} {
		if strings.Contains(name, part) {
			return true
		}
	}
	return false
}

// each runs encode on the weights that are chosen.
func (r *release) each(chosen func(name string) bool, encode func(name string)) *release {
	for _, name := range slices.Sorted(maps.Keys(r.plain)) {
		if chosen(name) {
			encode(name)
		}
	}
	return r
}

func fp8Config(high, wide int) map[string]any {
	return map[string]any{
		"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": []int{high, wide},
		"modules_to_not_convert": []string{"lm_head", "gate"},
	}
}

func int4Config(group int) map[string]any {
	return compressedConfig("pack-quantized", map[string]any{"num_bits": 4, "type": "int", "strategy": "group",
		"group_size": group})
}

// compressedConfig is what compressed-tensors writes, with what weights say besides.
func compressedConfig(format string, weights map[string]any) map[string]any {
	maps.Copy(weights, map[string]any{"symmetric": true, "dynamic": false, "actorder": nil})
	return map[string]any{
		"quant_method": "compressed-tensors", "format": format, "ignore": []string{"lm_head", "re:.*self_attn.*",
			"re:.*shared_experts.*"}, "kv_cache_scheme": nil,
		"config_groups": map[string]any{"group_0": map[string]any{"targets": []string{"Linear"},
			"input_activations": nil, "output_activations": nil, "weights": weights}},
		"quantization_status": "compressed", "sparsity_config": map[string]any{}, "transform_config": map[string]any{},
	}
}

func floatConfig(strategy string) map[string]any {
	return compressedConfig("float-quantized", map[string]any{"num_bits": 8, "type": "float", "strategy": strategy,
		"group_size": nil, "block_structure": nil})
}

// floatRelease is one of compressed-tensors in FP8 with a scale for each row or for a tensor.
func floatRelease(t *testing.T, family string, whole bool, scaleType string) *release {
	t.Helper()
	r := newRelease(t, family, false)
	r.config["quantization_config"] = floatConfig(map[bool]string{false: "channel", true: "tensor"}[whole])
	return r.each(projection, func(name string) { r.fp8Rows(name, whole, scaleType) })
}

// blockRelease is one of compressed-tensors in FP8 blocks whose activations are not rounded.
func blockRelease(t *testing.T, family string, high, wide int) *release {
	t.Helper()
	r := newRelease(t, family, false)
	r.config["quantization_config"] = compressedConfig("naive-quantized", map[string]any{"num_bits": 8, "type": "float",
		"strategy": "block", "block_structure": []int{high, wide}})
	return r.each(projection, func(name string) { r.fp8Compressed(name, high, wide, "BF16") })
}

func mxfp4PackedRelease(t *testing.T, family string) *release {
	t.Helper()
	r := newRelease(t, family, false)
	r.config["quantization_config"] = compressedConfig("mxfp4-pack-quantized", map[string]any{"num_bits": 4,
		"type": "float", "strategy": "group", "group_size": 32})
	return r.each(projection, r.mxfp4Packed)
}

func fp8Release(t *testing.T, family string, fused bool, high, wide int, scaleType string) *release {
	t.Helper()
	r := newRelease(t, family, fused)
	r.config["quantization_config"] = fp8Config(high, wide)
	return r.each(projection, func(name string) { r.fp8(name, high, wide, scaleType) })
}

func int4Release(t *testing.T, family string) *release {
	t.Helper()
	r := newRelease(t, family, false)
	if text, ok := r.config["text_config"].(map[string]any); ok {
		text["quantization_config"] = int4Config(32)
	} else {
		r.config["quantization_config"] = int4Config(32)
	}
	return r.each(func(name string) bool {
		return strings.Contains(name, ".mlp.experts.")
	}, func(name string) { r.int4(name, 32) })
}

func mxfp4Release(t *testing.T) *release {
	t.Helper()
	r := newRelease(t, "gpt_oss", false)
	r.config["quantization_config"] = map[string]any{"quant_method": "mxfp4",
		"modules_to_not_convert": []string{"model.layers.*.self_attn", "model.layers.*.mlp.router"}}
	return r.each(func(name string) bool {
		return strings.HasSuffix(name, "experts.gate_up_proj") || strings.HasSuffix(name, "experts.down_proj")
	}, r.mxfp4)
}

// nf4Release is one of bitsandbytes that transformers has saved; the lm_head and routers stay numbers there.
func nf4Release(t *testing.T, family string, nested bool) *release {
	t.Helper()
	r := newRelease(t, family, false)
	r.config["quantization_config"] = nf4Config(nested)
	return r.each(projection, func(name string) { r.nf4(name, nested) })
}

func nf4Config(nested bool) map[string]any {
	return map[string]any{"quant_method": "bitsandbytes", "load_in_4bit": true, "load_in_8bit": false,
		"_load_in_4bit": true, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": nested,
		"bnb_4bit_quant_storage": "uint8", "bnb_4bit_compute_dtype": "bfloat16", "llm_int8_skip_modules": nil,
		"llm_int8_threshold": 6.0}
}

// releases in every format; blocks that do not divide the matrices are cut at the edges.
func releases(t *testing.T) map[string]*release {
	return map[string]*release{
		"FP8 qwen3":               fp8Release(t, "qwen3", false, 128, 128, "BF16"),
		"FP8 qwen3_moe":           fp8Release(t, "qwen3_moe", false, 16, 16, "F32"),
		"FP8 qwen3_5_moe_wrapped": fp8Release(t, "qwen3_5_moe_wrapped", false, 32, 32, "BF16"),
		"FP8 qwen3_5_moe fused":   fp8Release(t, "qwen3_5_moe", true, 16, 24, "F32"),
		"FP8 minimax_m2":          fp8Release(t, "minimax_m2", false, 24, 40, "F32"),
		"FP8 glm5":                fp8Release(t, "glm5", false, 16, 16, "F32"),
		"FP8 deepseek_v3_grouped": fp8Release(t, "deepseek_v3_grouped", false, 32, 32, "F32"),
		"INT4 kimi_k2":            int4Release(t, "kimi_k2"),
		"INT4 kimi_k25_wrapped":   int4Release(t, "kimi_k25_wrapped"),
		"MXFP4 gpt_oss":           mxfp4Release(t),
		"FP8 E8M0 qwen3_moe":      fp8Release(t, "qwen3_moe", false, 16, 16, "F8_E8M0"),
		"FP8 rows glm4_moe":       floatRelease(t, "glm4_moe", false, "BF16"),
		"FP8 rows llama3":         floatRelease(t, "llama3", false, "F32"),
		"FP8 tensors qwen3_moe":   floatRelease(t, "qwen3_moe", true, "BF16"),
		"FP8 blocks qwen3":        blockRelease(t, "qwen3", 24, 40),
		"MXFP4 qwen3_moe":         mxfp4PackedRelease(t, "qwen3_moe"),
		"NF4 qwen3":               nf4Release(t, "qwen3", false),
		"NF4 kimi_k2 nested":      nf4Release(t, "kimi_k2", true),
		"FP8 kimi_k2 and further layer": withFurtherLayer(fp8Release(t, "kimi_k2", false, 16, 16, "F32"),
			func(r *release, name string) {
				r.fp8(name, 16, 16, "F32")
			}),
		"FP8 glm4_moe and further layer": withFurtherLayer(floatRelease(t, "glm4_moe", true, "F32"),
			func(r *release, name string) {
				r.fp8Rows(name, true, "F32")
			}),
	}
}

// withFurtherLayer adds weights of a layer that only predicts further tokens, one in codes.
func withFurtherLayer(r *release, encode func(r *release, name string)) *release {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, name := range []string{"model.layers.3.mlp.up_proj.weight", "model.layers.3.eh_proj.weight"} {
		n := numbers{shape: []int{40, 24}}
		for range 40 * 24 {
			n.values = append(n.values, float32(rng.NormFloat64()))
		}
		r.plain[name], r.files[name] = n, bytesOf(name, "BF16", n.shape, bf16s(n.values))
	}
	encode(r, "model.layers.3.mlp.up_proj.weight")
	return r
}

// opened is what a folder's model gives: logits, the losses of two steps of full fine-tuning, and every tensor that it
// saves before them.
type opened struct {
	logits, losses []float32
	said           string
	saved          string
}

func openFolder(t *testing.T, dir, adapter string, d kernels.DType, ids []int32) (o opened) {
	t.Helper()
	o.saved = t.TempDir()
	onRank(t, func(r *parallel.Rank) error {
		m, err := model.LoadFolder(r.Dev, dir, adapter, model.Options{DType: d})
		if err != nil {
			return err
		}
		o.said = m.Opened()
		b, _ := packed(r, ids)
		o.logits = model.ReadValues(r.Dev, m.Head.Logits(r, m.Forward(r, b, nil)))
		if adapter == "" {
			if err := m.SaveFolder(o.saved, dir); err != nil {
				return err
			}
			if err := m.Load(openCheckpoint(t, o.saved)); err != nil { // as a run that goes on does
				return err
			}
		}
		o.losses = adamW(r, m, 2, ids)
		return nil
	})
	return o
}

func TestReleasesOpenAsTheirNumbers(t *testing.T) {
	for name, r := range releases(t) {
		for _, d := range []kernels.DType{kernels.F32, kernels.BF16} {
			t.Run(fmt.Sprintf("%s %s", name, d), func(t *testing.T) {
				ids := openGolden(t, r.dir).ids("ids.0")
				got, want := openFolder(t, r.write(t), "", d, ids), openFolder(t, r.writePlain(t, d), "", d, ids)
				if !slices.Equal(got.logits, want.logits) || !slices.Equal(got.losses, want.losses) {
					t.Errorf("logits or losses of training differ from those of the numbers that the codes stand for")
				}
				if !strings.HasPrefix(got.said, "weights: "+strings.Fields(name)[0]) ||
					!strings.Contains(got.said, ", opened as "+d.String()) || want.said != "" {
					t.Errorf("says %q of the release and %q of its numbers", got.said, want.said)
				}
				sameFolder(t, got.saved, want.saved)
			})
		}
	}
}

// sameFolder wants the same fields of config.json, none of quantisation, and the same tensors, of numbers.
func sameFolder(t *testing.T, got, want string) {
	t.Helper()
	a, b := openCheckpoint(t, got), openCheckpoint(t, want)
	if !slices.Equal(a.Names(), b.Names()) {
		t.Fatalf("saved %d tensors, want %d", len(a.Names()), len(b.Names()))
	}
	for _, name := range a.Names() {
		x, _ := a.Tensor(name)
		y, _ := b.Tensor(name)
		if x.DType != y.DType || !bytes.Equal(x.Data, y.Data) || !slices.Equal(x.Shape, y.Shape) || x.DType != "F32" &&
			x.DType != "BF16" {
			t.Errorf("saved %s %s %v is not %s %v", name, x.DType, x.Shape, y.DType, y.Shape)
		}
	}
	var texts [2]map[string]any
	for i, dir := range []string{got, want} {
		text, err := os.ReadFile(filepath.Join(dir, "config.json"))
		if err == nil {
			err = json.Unmarshal(text, &texts[i])
		}
		if err != nil || bytes.Contains(text, []byte("quantization")) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if x, y := fmt.Sprint(texts[0]), fmt.Sprint(texts[1]); x != y {
		t.Errorf("config.json %s, want %s", x, y)
	}
}

// Scales of activations are counted, and a tensor that is called so without a weight in codes is unexpected.
func TestScalesOfActivationsAreIgnored(t *testing.T) {
	r := floatRelease(t, "llama3", true, "BF16")
	said := openFolder(t, r.write(t), "", kernels.BF16, []int32{1, 2, 3}).said
	if want := "weights: FP8 with one scale for a tensor, opened as bf16; 14 tensors .input_scale are ignored: " +
		"activations are not rounded"; said != want {
		t.Errorf("says %q, want %q", said, want)
	}
	const stray = "model.layers.0.input_layernorm.input_scale"
	r.files[stray] = bytesOf(stray, "F32", []int{1}, f32s([]float32{1}))
	if err := loadError(t, r.write(t)); err == nil || !strings.Contains(err.Error(), "unexpected tensors "+stray) {
		t.Errorf("an input_scale without codes: %v", err)
	}
}

// An adapter on a release is one on its numbers.
func TestAdapterOnRelease(t *testing.T) {
	r, adapter := mxfp4Release(t), filepath.Join("testdata", "adapters", "gpt_oss")
	ids := openGolden(t, adapter).ids("ids")
	got, want := openFolder(t, r.write(t), adapter, kernels.BF16, ids), openFolder(t, r.writePlain(t, kernels.BF16),
		adapter, kernels.BF16, ids)
	if !slices.Equal(got.logits, want.logits) || !slices.Equal(got.losses, want.losses) {
		t.Error("logits or losses of training adapters differ")
	}
}

func TestInspectRelease(t *testing.T) {
	s, err := model.Inspect(mxfp4Release(t).write(t))
	if err != nil {
		t.Fatal(err)
	}
	// Two layers of 4 experts: codes of 64*64 and 32*64 weights, two in a byte, and a scale for 32 of them.
	if want := 2 * 4 * (64*64 + 32*64) * 17 / 32; s.Kept != "MXFP4 blocks of 32" || s.Decoded != 4 ||
		s.Formats["U8"] != want {
		t.Errorf("%q, %d weights, %d bytes; want %d", s.Kept, s.Decoded, s.Formats["U8"], want)
	}
	if text := s.String(); !strings.Contains(text, "quantised   4 weights in MXFP4 blocks of 32") ||
		!strings.Contains(text, "U8 0.00 GiB") {
		t.Error(text)
	}
}

// What is wrong with a release is one line that names the file, the tensor and what is wanted.
func TestReleaseRefuses(t *testing.T) {
	fp8 := func() *release { return fp8Release(t, "qwen3", false, 16, 16, "F32") }
	int4 := func() *release { return int4Release(t, "kimi_k2") }
	mx := func() *release { return mxfp4Release(t) }
	rows := func() *release { return floatRelease(t, "qwen3", false, "BF16") }
	tensors := func() *release { return floatRelease(t, "qwen3", true, "F32") }
	packedMX := func() *release { return mxfp4PackedRelease(t, "qwen3") }
	e8m0 := func() *release { return fp8Release(t, "qwen3", false, 16, 16, "F8_E8M0") }
	nf := func() *release { return nf4Release(t, "qwen3", false) }
	nested := func() *release { return nf4Release(t, "qwen3", true) }
	state := func(old, new string) func(r *release, name string) {
		return func(r *release, name string) {
			var text bytes.Buffer
			if err := r.files[name].Write(&text); err != nil || !strings.Contains(text.String(), old) {
				t.Fatalf("%s has no %s (%v)", name, old, err)
			}
			changed := strings.Replace(text.String(), old, new, 1)
			r.files[name] = bytesOf(name, "U8", []int{len(changed)}, []byte(changed))
		}
	}
	const nfState = ".quant_state.bitsandbytes__nf4"
	const proj, expert, experts = "model.layers.0.self_attn.k_proj.weight",
		"model.layers.1.mlp.experts.0.up_proj.weight", "model.layers.0.mlp.experts.down_proj"
	whole := func(dtype string, fill byte, shape ...int) func(r *release, name string) {
		return func(r *release, name string) {
			size := map[string]int{"F32": 4, "I32": 4, "I64": 8, "BF16": 2, "U8": 1, "F8_E4M3": 1, "F8_E8M0": 1}[dtype]
			for _, n := range shape {
				size *= n
			}
			r.files[name] = bytesOf(name, dtype, shape, bytes.Repeat([]byte{fill}, size))
		}
	}
	gone := func(r *release, name string) { delete(r.files, name) }
	for _, c := range []struct {
		of     func() *release
		tensor string
		change func(r *release, name string)
		want   string
	}{
		{fp8, proj + "_scale_inv", gone, "incomplete"},
		{fp8, proj, gone, "no codes"},
		{fp8, proj, whole("BF16", 0, 32, 64), "no codes"},
		{fp8, "model.norm.weight_scale_inv", whole("F32", 0, 1), "no codes"},
		{fp8, proj + "_scale_inv", whole("F32", 0, 2, 3), "want [2 4]"},
		{fp8, proj + "_scale_inv", whole("F32", 0xff, 2, 4), "scale [0 0] is NaN"},
		{fp8, proj + "_scale_inv", whole("I32", 0, 2, 4), "want [F32 BF16 F8_E8M0]"},
		{e8m0, proj + "_scale_inv", whole("F8_E8M0", 255, 2, 4), "scale [0 0] is NaN"},
		{e8m0, proj + "_scale_inv", whole("F8_E8M0", 0, 4, 2), "want [2 4]"},
		{rows, proj + "_scale", gone, "incomplete"},
		{rows, proj, gone, "no codes"},
		{rows, proj, whole("BF16", 0, 32, 64), "no codes"},
		{rows, proj, whole("F8_E4M3", 0, 1, 32, 64), "want a matrix"},
		{rows, proj, whole("F8_E4M3", 0x7f, 32, 64), "decode to NaN"},
		{rows, proj, whole("F8_E4M3", 0, 32, 63), "config.json wants [32 64]"},
		{rows, proj + "_scale", whole("BF16", 0, 32), "want [32 1]"},
		{rows, proj + "_scale", whole("BF16", 0, 1), "want [32 1]"},
		{rows, proj + "_scale", whole("BF16", 0xff, 32, 1), "scale [0 0] is NaN"},
		{rows, proj + "_scale", whole("U8", 0, 32, 1), "want [F32 BF16]"},
		{tensors, proj + "_scale", gone, "incomplete"},
		{tensors, proj + "_scale", whole("F32", 0, 32, 1), "want [1]"},
		{tensors, proj + "_scale", whole("F32", 0x7e, 1), "more than fp32 holds"},
		{packedMX, proj + "_scale", gone, "incomplete"},
		{packedMX, proj + "_packed", gone, "no codes"},
		{packedMX, proj + "_packed", whole("U8", 0, 32, 24), "want [out, in/2]"},
		{packedMX, proj + "_scale", whole("U8", 0, 32, 1), "want [32 2]"},
		{packedMX, proj + "_scale", whole("U8", 255, 32, 2), "scale [0 0] is NaN"},
		{packedMX, proj + "_scale", whole("U8", 254, 32, 2), "more than fp32 holds"},
		{packedMX, proj + "_scale", whole("BF16", 0, 32, 2), "want [U8]"},
		{nf, proj, gone, "no codes"},
		{nf, proj, whole("BF16", 0, 32, 64), "no codes"},
		{nf, proj, whole("U8", 0, 1024), "want [1024 1]"},
		{nf, proj + ".absmax", gone, "incomplete"},
		{nf, proj + ".absmax", whole("U8", 0, 32), "want [F32]"},
		{nf, proj + ".absmax", whole("F32", 0, 31), "want [32]"},
		{nf, proj + ".absmax", whole("F32", 0xff, 32), "scale [0] is NaN"},
		{nf, proj + ".quant_map", whole("F32", 0, 16), "other numbers than NF4"},
		{nf, proj + ".quant_map", whole("F32", 0, 15), "want [16]"},
		{nf, proj + nfState, gone, "incomplete"},
		{nf, proj + nfState, whole("F32", 0, 2), "want [U8]"},
		{nf, proj + nfState, whole("U8", 'x', 9), "invalid character"},
		{nf, proj + nfState, state(`"nf4"`, `"fp4"`), `quant_type is "fp4"`},
		{nf, proj + nfState, state(`:64`, `:48`), "blocksize is 48"},
		{nf, proj + nfState, state(`[32,64]`, `[32,66]`), "want [1056 1]"},
		{nf, proj + nfState, state(`[32,64]`, `[64,32]`), "config.json wants [32 64]"},
		{nf, proj + nfState, state(`[32,64]`, `[32,-64]`), "want the shape"},
		{nf, proj + nfState, state(`[32,64]`, `[4294967296,4294967296]`), "want the shape"},
		{nf, proj + nfState, state(`[32,64]`, `null`), "no shape"},
		{nested, proj + ".nested_absmax", gone, "incomplete"},
		{nested, proj + ".nested_absmax", whole("F32", 0, 2), "want [1]"},
		{nested, proj + ".nested_absmax", whole("F32", 0xff, 1), "scale [0] is NaN"},
		{nested, proj + ".nested_quant_map", whole("F32", 0, 16), "want [256]"},
		{nested, proj + ".nested_quant_map", whole("F32", 0xff, 256), "scale [0] is NaN"},
		{nested, proj + ".nested_quant_map", func(r *release, name string) {
			whole("F32", 0x7f, 256)(r, name)
			whole("F32", 0x7f, 1)(r, proj+".nested_absmax")
		}, "more than fp32 holds"},
		{nested, proj + ".absmax", whole("F32", 0, 32), "want [U8]"},
		{nested, proj + nfState, state(`"nested_blocksize":256`, `"nested_blocksize":0`), "nested_blocksize is 0"},
		{nested, proj + nfState, state(`"nested_dtype":"float32"`, `"nested_dtype":"float16"`), `"float16"`},
		{nested, proj + nfState, state(`"nested_offset"`, `"offset"`), "no nested_offset"},
		{nested, proj + nfState, state(`"nested_offset":`, `"nested_offset":1e39,"old":`), "more than fp32 holds"},
		{fp8, proj, whole("F8_E4M3", 0x7f, 32, 64), "decode to NaN"},
		{fp8, proj + "_scale_inv", whole("F32", 0x7e, 2, 4), "more than fp32 holds"},
		{fp8, proj, whole("F8_E4M3", 0, 2048), "want a matrix"},
		{int4, expert + "_scale", gone, "incomplete"},
		{int4, expert + "_shape", gone, "incomplete"},
		{int4, expert + "_packed", gone, "no codes"},
		{int4, expert + "_packed", whole("U8", 0, 32, 8), "want [I32]"},
		{int4, expert + "_packed", whole("I32", 0, 32, 7), "want [32 8]"},
		{int4, expert + "_scale", whole("BF16", 0, 32, 1), "want [32 2]"},
		{int4, expert + "_scale", whole("BF16", 0xff, 32, 2), "scale [0 0] is NaN"},
		{int4, expert + "_scale", whole("U8", 0, 32, 2), "want [BF16 F16 F32]"},
		{int4, expert + "_shape", whole("I64", 0xff, 2), "says -1"},
		{int4, expert + "_shape", whole("I32", 0, 3), "want [2]"},
		{int4, expert + "_shape", whole("F32", 0, 2), "want [I32 I64]"},
		{int4, expert, whole("BF16", 0, 32, 64), "unexpected tensors"},
		{mx, experts + "_scales", gone, "incomplete"},
		{mx, experts + "_blocks", gone, "no codes"},
		{mx, experts + "_scales", whole("U8", 255, 4, 64, 1), "scale [0 0 0] is NaN"},
		{mx, experts + "_scales", whole("U8", 254, 4, 64, 1), "more than fp32 holds"},
		{mx, experts + "_scales", whole("U8", 0, 4, 64), "want [4 64 1]"},
		{mx, experts + "_scales", whole("F8_E4M3", 0, 4, 64, 1), "want [U8]"},
		{mx, experts + "_blocks", whole("U8", 0, 4, 64, 16), "want [experts, out, in/32, 16]"},
		{mx, experts + "_blocks", whole("U8", 0, 4, 32, 1, 16), "want [4 32 1]"},
	} {
		r := c.of()
		c.change(r, c.tensor)
		dir := r.write(t)
		err := loadError(t, dir)
		stem := c.tensor
		for _, ending := range []string{"_scale_inv", "_packed", "_shape", "_scale", "_blocks", "_scales", ".absmax",
			".quant_map", nfState, ".nested_absmax", ".nested_quant_map"} {
			stem = strings.TrimSuffix(stem, ending)
		}
		if err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), c.want) ||
			!strings.Contains(err.Error(), stem) || !strings.HasPrefix(err.Error(), dir) {
			t.Errorf("%s changed, want %q: %v", c.tensor, c.want, err)
		}
	}
}

func loadError(t *testing.T, dir string) (err error) {
	t.Helper()
	onRank(t, func(r *parallel.Rank) error {
		_, err = model.LoadFolder(r.Dev, dir, "", model.Options{DType: kernels.BF16})
		return nil
	})
	return err
}

// A format that is named and not there, and one that is there and not named, are errors of the folder.
func TestReleaseAndConfigDisagree(t *testing.T) {
	named := newRelease(t, "qwen3", false)
	named.config["quantization_config"] = fp8Config(128, 128)
	if err := loadError(t, named.write(t)); err == nil || !strings.Contains(err.Error(), "no tensor is kept so") {
		t.Errorf("no tensor in FP8: %v", err)
	}
	silent := fp8Release(t, "qwen3", false, 16, 16, "F32")
	delete(silent.config, "quantization_config")
	if err := loadError(t, silent.write(t)); err == nil || !strings.Contains(err.Error(), "_scale_inv") {
		t.Errorf("no quantization_config: %v", err)
	}
}

func TestQuantizationConfigRefuses(t *testing.T) {
	group := func(change string, value any) map[string]any {
		c := int4Config(32)
		c["config_groups"].(map[string]any)["group_0"].(map[string]any)["weights"].(map[string]any)[change] = value
		return c
	}
	with := func(c map[string]any, key string, value any) map[string]any {
		c[key] = value
		return c
	}
	for _, c := range []struct {
		family string
		config any
		want   string
	}{
		{"qwen3", map[string]any{"quant_method": "awq", "bits": 4}, `"awq"`},
		{"qwen3", map[string]any{"quant_method": "gptq"}, `"gptq"`},
		{"qwen3", map[string]any{"quant_method": "modelopt"}, `"modelopt"`},
		{"qwen3", map[string]any{"quant_method": "bitsandbytes", "load_in_8bit": true}, "without load_in_4bit"},
		{"qwen3", with(nf4Config(false), "bnb_4bit_quant_type", "fp4"), `bnb_4bit_quant_type "fp4"`},
		{"qwen3", with(nf4Config(true), "bnb_4bit_quant_type", nil), `bnb_4bit_quant_type "fp4"`},
		{"qwen3", with(nf4Config(true), "bnb_4bit_quant_storage", "bfloat16"), `bnb_4bit_quant_storage "bfloat16"`},
		{"qwen3", map[string]any{}, `quant_method ""`}, {"qwen3", "fp8", "cannot unmarshal"},
		{"qwen3", map[string]any{"quant_method": "mxfp4"}, "for gpt_oss alone"},
		{"qwen3", map[string]any{"quant_method": "fp8"}, "without weight_block_size"},
		{"qwen3", with(fp8Config(128, 128), "weight_block_size", nil), "without weight_block_size"},
		{"qwen3", fp8Config(0, 128), "two positive numbers"}, {"qwen3", with(fp8Config(1, 1), "weight_block_size",
			[]int{128}), "two positive numbers"},
		{"kimi_k2", with(int4Config(32), "format", "nvfp4-pack-quantized"), "nvfp4"},
		{"kimi_k2", with(int4Config(32), "format", "float-quantized"), "num_bits 4"},
		{"qwen3", with(floatConfig("channel"), "format", "pack-quantized"), "num_bits 8"},
		{"qwen3", floatConfig("group"), `strategy "group"`}, {"qwen3", floatConfig("block"), "block_structure is []"},
		{"qwen3", compressedConfig("float-quantized", map[string]any{"num_bits": 4, "type": "float",
			"strategy": "channel"}), "num_bits 4"},
		{"qwen3", compressedConfig("int-quantized", map[string]any{"num_bits": 8, "type": "int",
			"strategy": "channel"}), "int-quantized"},
		{"qwen3", compressedConfig("mxfp4-pack-quantized", map[string]any{"num_bits": 4, "type": "float",
			"strategy": "group", "group_size": 16}), "group_size 16"},
		{"qwen3", with(floatConfig("tensor"), "kv_cache_scheme", map[string]any{"num_bits": 8, "type": "float"}),
			"kv_cache_scheme"},
		{"qwen3", with(floatConfig("tensor"), "transform_config",
			map[string]any{"config_groups": map[string]any{"u": nil}}), "transform_config"},
		{"qwen3", with(floatConfig("tensor"), "config_groups", map[string]any{"a": map[string]any{"format": "dense"}}),
			`"dense"`},
		{"kimi_k2", with(int4Config(32), "config_groups", map[string]any{"a": map[string]any{}, "b": map[string]any{}}),
			"2 config_groups"},
		{"kimi_k2", with(int4Config(32), "config_groups", map[string]any{"a": map[string]any{}}), "without weights"},
		{"kimi_k2", group("num_bits", 8), "num_bits 8"}, {"kimi_k2", group("symmetric", false), "symmetric false"},
		{"kimi_k2", group("strategy", "channel"), "channel"},
		{"kimi_k2", group("type", "float"), "float"}, {"kimi_k2", group("actorder", "group"), "actorder"},
		{"kimi_k2", group("group_size", 0), "group_size is 0"},
	} {
		text, err := os.ReadFile(filepath.Join("testdata", c.family, "config.json"))
		if err != nil {
			t.Fatal(err)
		}
		_, err = model.Describe(withField(t, text, "quantization_config", c.config), kernels.BF16)
		if err == nil || strings.Contains(err.Error(), "\n") ||
			!strings.HasPrefix(err.Error(), "config.json: quantization_config: ") ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.config, err, c.want)
		}
	}
	r := int4Release(t, "kimi_k25_wrapped")
	r.config["quantization_config"] = fp8Config(128, 128)
	if err := loadError(t, r.write(t)); err == nil || !strings.Contains(err.Error(), "FP8 blocks of 128 x 128") ||
		!strings.Contains(err.Error(), "INT4 groups of 32") {
		t.Errorf("two formats: %v", err)
	}
}

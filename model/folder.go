package model

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"

	"lockstep/data"
	"lockstep/data/atomicfile"
	"lockstep/data/pyjson"
	"lockstep/data/safetensors"
	"lockstep/kernels"
	"lockstep/model/checkpoint"
	"lockstep/model/peft"
	"lockstep/quant"
)

// companions are files next to the weights that a fine-tuned model keeps from the folder it started from.
var companions = []string{
	"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json", "added_tokens.json",
	"vocab.json", "merges.txt",
	"generation_config.json",
}

// LoadFolder builds the model of a Hugging Face folder and fills its weights. Those in FP8, INT4 groups or MXFP4 stay
// in codes, if the options say so, or are filled with the numbers that the codes stand for: code * scale rounded to
// fp32, and rounded again where the storage type is bf16. Both give the same bits everywhere. adapter, where not empty,
// is a PEFT folder to put on it.
func LoadFolder(dev kernels.Device, dir, adapter string, o Options) (*Model, error) {
	m, err := fromConfig(dir, func(config []byte) (*Model, error) { return describeOn(dev, config, o) })
	if err == nil {
		err = withCheckpoint(dir, func(c *safetensors.Checkpoint) error { return m.open(dev, c, o) })
	}
	if err == nil && adapter != "" {
		err = m.AddAdapter(adapter)
	}
	if err != nil {
		return nil, err
	}
	return m, nil
}

// open gives a described model memory and the weights of a checkpoint.
func (m *Model) open(dev kernels.Device, c *safetensors.Checkpoint, o Options) error {
	w, err := checkpoint.NewWeights(c, m.kept)
	switch {
	case err != nil:
	case o.Encode.As != quant.AsTrained:
		err = m.encodeWeights(dev, o.Encode)
	case o.Weights == KeepWeights:
		m.keepCodes(dev, w)
	}
	if err == nil {
		err = m.checkRounding(dev.Definition())
	}
	if err == nil {
		err = m.allocate(dev, o)
	}
	if err == nil {
		err = m.loadWeights(w)
	}
	return err
}

// DescribeFolder is [Describe] of a Hugging Face folder, with the ends and the sampling of its generation_config.json.
func DescribeFolder(dir string) (*Model, error) {
	return fromConfig(dir, func(config []byte) (*Model, error) { return Describe(config, kernels.F32) })
}

// StorageType is how the weights of a folder are to be stored: bf16 where its config.json says bfloat16, or where they
// are in codes and it does not say float32, otherwise fp32.
func StorageType(dir string) (kernels.DType, error) {
	text, err := readFile(dir, "config.json", "is it a model folder?")
	if err != nil {
		return 0, err
	}
	type dtypes struct {
		DType string `json:"dtype"`
		Torch string `json:"torch_dtype"`
	}
	var c struct {
		dtypes
		Text dtypes `json:"text_config"` // of a model that wraps a text model
	}
	plain := pyjson.Plain(text)
	if err := json.Unmarshal(plain, &c); err != nil {
		return 0, fmt.Errorf("%s: config.json: %w", dir, pyjson.Place(plain, err))
	}
	kept, err := checkpoint.ParseFormat(plain)
	if err != nil {
		return 0, fmt.Errorf("%s: config.json: %w", dir, err)
	}
	name := cmp.Or(c.DType, c.Torch, c.Text.DType, c.Text.Torch)
	if name == "bfloat16" || kept != nil && name != "float32" {
		return kernels.BF16, nil
	}
	return kernels.F32, nil
}

// fromConfig is the model that build makes of a folder's config.json, with what its generation_config.json says.
func fromConfig(dir string, build func(config []byte) (*Model, error)) (*Model, error) {
	config, err := readFile(dir, "config.json", "is it a model folder?")
	if err != nil {
		return nil, err
	}
	m, err := build(config)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return m, m.readGeneration(dir)
}

// AddAdapter puts the adapter of a PEFT folder on the model, and changes the weights below it as PEFT does.
func (m *Model) AddAdapter(dir string) error {
	c, err := readAdapterConfig(dir)
	if err == nil {
		err = m.AddLoRA(c)
	}
	if err == nil && c.Init != "" {
		err = m.takeInitOut(c.Init)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	return withCheckpoint(dir, m.LoadAdapter)
}

func readAdapterConfig(dir string) (peft.Config, error) {
	text, err := readFile(dir, peft.File, "is it a PEFT adapter folder?")
	if err != nil {
		return peft.Config{}, err
	}
	c, err := peft.Parse(text)
	if err == nil {
		err = checkAdapterRounding(c)
	}
	return c, err
}

func (m *Model) readGeneration(dir string) (err error) {
	m.Sampling, err = data.LoadGeneration(dir, m.Vocab)
	m.EOS = data.Union(m.EOS, m.Sampling.EOS)
	return err
}

// withCheckpoint opens the tensors of a folder for a use.
func withCheckpoint(dir string, use func(*safetensors.Checkpoint) error) (err error) {
	c, err := safetensors.OpenCheckpoint(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	return use(c)
}

func readFile(dir, name, hint string) ([]byte, error) {
	text, err := atomicfile.Read(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: no %s: %s", dir, name, hint)
	}
	return text, err
}

const maxShardBytes = 5 << 30

// SaveFolder writes config.json and the weights into an existing folder, and copies the companions of the folder that
// the model came from (from; "": none), and of its weights those that the family does not use.
func (m *Model) SaveFolder(dir, from string) error {
	config, err := m.configFor(m.DType, checkpoint.Rounding{Cache: m.rounding().Cache})
	if err != nil {
		return err
	}
	return m.saveFolder(dir, from, config, m.Tensors())
}

// saveFolder writes a config.json and tensors into an existing folder, and what [Model.SaveFolder] copies.
func (m *Model) saveFolder(dir, from string, config []byte, tensors []safetensors.OutTensor) error {
	if err := writeFile(dir, "config.json", config); err != nil {
		return err
	}
	if err := copyCompanions(dir, from); err != nil {
		return err
	}
	write := func(tensors []safetensors.OutTensor) error {
		return safetensors.WriteCheckpoint(dir, tensors, maxShardBytes, map[string]string{"format": "pt"})
	}
	if m.skip == nil || from == "" {
		return write(tensors)
	}
	return withCheckpoint(from, func(c *safetensors.Checkpoint) error {
		left, err := m.leftAlone(c, from)
		if err != nil {
			return err
		}
		return write(append(tensors, left...))
	})
}

// leftAlone are the tensors of a folder's checkpoint that the family does not use: as they are, but weights in
// codes are decoded, like those that it uses.
func (m *Model) leftAlone(c *safetensors.Checkpoint, dir string) (out []safetensors.OutTensor, err error) {
	config, err := readFile(dir, "config.json", "is it a model folder?")
	if err != nil {
		return nil, err
	}
	kept, err := checkpoint.ParseFormat(pyjson.Plain(config))
	if err != nil {
		return nil, fmt.Errorf("%s: config.json: %w", dir, err)
	}
	w, err := checkpoint.NewWeights(c, kept)
	if err != nil {
		return nil, err
	}
	for _, name := range c.Names() {
		of := w.Owner(name)
		switch {
		case !m.skip(name) || w.Ignored(name):
		case of == "":
			out = append(out, copied(c, name))
		case !w.Used(name): // else decoded with another tensor of the same weight
			t, err := m.decoded(w, of)
			if err != nil {
				return nil, err
			}
			out = append(out, t)
		}
	}
	return out, nil
}

func copied(c *safetensors.Checkpoint, name string) safetensors.OutTensor {
	t, _ := c.Tensor(name)
	return safetensors.OutTensor{Name: name, DType: t.DType, Shape: t.Shape, Write: func(w io.Writer) error {
		_, err := w.Write(t.Data)
		return err
	}}
}

// decoded is a weight in the model's storage type.
func (m *Model) decoded(w *checkpoint.Weights, name string) (safetensors.OutTensor, error) {
	from, err := w.Find(name, "config.json")
	return safetensors.OutTensor{Name: name, DType: checkpoint.DTypeName(m.DType), Shape: from.Shape,
		Write: func(w io.Writer) error {
			return from.Convert(m.DType, func(_ int, raw []byte) error {
				_, err := w.Write(raw)
				return err
			})
		}}, err
}

// SaveAdapter writes a PEFT adapter folder; base is where the model underneath lies.
func (m *Model) SaveAdapter(dir, base string) error {
	c := *m.LoRA
	c.Dropout = m.dropout.probability
	if err := m.nameRounding(&c); err != nil {
		return err
	}
	config, err := c.JSON(base)
	if err != nil {
		return err
	}
	if err := writeFile(dir, peft.File, config); err != nil {
		return err
	}
	return safetensors.Write(filepath.Join(dir, "adapter_model.safetensors"), m.AdapterTensors(),
		map[string]string{"format": "pt"})
}

func writeFile(dir, name string, text []byte) error {
	return atomicfile.Write(filepath.Join(dir, name), func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	})
}

func copyCompanions(dir, from string) error {
	for _, name := range companions {
		text, err := atomicfile.Read(filepath.Join(from, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := writeFile(dir, name, text); err != nil {
			return err
		}
	}
	return nil
}

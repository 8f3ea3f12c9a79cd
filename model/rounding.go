package model

import (
	"encoding/json"
	"fmt"
	"slices"

	"lockstep/data/pyjson"
	"lockstep/kernels"
	"lockstep/model/checkpoint"
	"lockstep/model/peft"
	"lockstep/quant"
)

// RoundingOf is what a model's folder and that of an adapter on it say ("": no adapter), for a definition. The adapter
// was trained with what it names itself.
func RoundingOf(dir, adapter string) (checkpoint.Rounding, error) {
	text, err := readFile(dir, "config.json", "is it a model folder?")
	if err != nil {
		return checkpoint.Rounding{}, err
	}
	out, err := checkpoint.ParseRounding(pyjson.Plain(text))
	if err != nil {
		return out, fmt.Errorf("%s: config.json: %w", dir, err)
	}
	if adapter == "" {
		return out, nil
	}
	c, err := readAdapterConfig(adapter)
	if err == nil {
		err = out.Read(c.Own)
	}
	if err != nil {
		return out, fmt.Errorf("%s: %w", adapter, err)
	}
	return out, nil
}

// checkRounding is an error where a definition rounds what the model does not have: inputs of projections in codes, or
// keys and values.
func (m *Model) checkRounding(def kernels.Definition) error {
	if err := m.checkCache(def.Cache); err != nil {
		return err
	}
	if def.Acts == quant.FP8x128 {
		return m.checkActs()
	}
	if def.Acts == quant.AsTrained && def.Grads == quant.AsTrained ||
		slices.ContainsFunc(m.Params, func(p *Param) bool { return p.coded }) {
		return nil
	}
	name, value := "acts", def.Acts
	if value == quant.AsTrained {
		name, value = "grads", def.Grads
	}
	return fmt.Errorf("definition.%s = %q is for projections in codes, and none is: put them into a format, such as "+
		"model.weights = %q (--weights), or set it to none", name, value, quant.MXFP8)
}

// checkActs is an error where a model cannot multiply activations in codes of FP8x128.
func (m *Model) checkActs() error {
	const e = quant.FP8x128
	coded := 0
	for _, p := range m.Params {
		switch {
		case !p.coded:
			continue
		case p.Q == nil:
			return fmt.Errorf("definition.acts = %q multiplies codes, and %s is opened: keep weights in codes "+
				"(model.weights, --weights), or set it to none", e, p.Name)
		case !(kernels.Term{Q: p.Q, XQ: &kernels.QuantizedWeight{Format: e.Format(), Groups: 1}}).OfCodes():
			return fmt.Errorf("definition.acts = %q is for weights in %s, and %s is in %s: set model.weights = %q "+
				"(--weights), or it to %q or none", e, quant.FP8.Format(), p.Name, p.Q.Format, quant.FP8, quant.MXFP8)
		case m.ops.coder == nil:
			return fmt.Errorf("the device does not compute definition.acts = %q: set it to none", e)
		}
		if err := m.ops.coder.CheckCodes(*p.Q); err != nil {
			return fmt.Errorf("definition.acts = %q: %s: %w: set it to %q or none", e, p.Name, err, quant.MXFP8)
		}
		coded++
	}
	if coded == 0 {
		return fmt.Errorf("definition.acts = %q is for weights in %s, and no projection is in codes: set "+
			"model.weights = %q (--weights), or it to none", e, quant.FP8.Format(), quant.FP8)
	}
	return nil
}

// checkCache is an error where what attention reads is to be rounded by an encoding and cannot be.
func (m *Model) checkCache(e quant.Encoding) error {
	if e == quant.AsTrained {
		return nil
	}
	attends := false
	for _, bl := range m.Blocks {
		switch a := bl.mixer().(type) {
		case *Attention:
			attends = true
		case *MLA:
			attends = true
			if a.Form == kernels.LatentExpanded {
				return fmt.Errorf("definition.cache = %q rounds the latent, and expanded attention caches keys and "+
					"values of each head: set definition.latent = %q (--latent absorbed), or the cache to none", e,
					kernels.LatentAbsorbed)
			}
		}
	}
	switch {
	case !attends:
		return fmt.Errorf("definition.cache = %q rounds keys and values, and the model has no attention: set it to "+
			"none", e)
	case m.ops.coder == nil:
		return fmt.Errorf("the device does not compute definition.cache = %q yet: set it to none", e)
	}
	return nil
}

// rounding is that of the model's definition.
func (m *Model) rounding() checkpoint.Rounding {
	def := m.dev.Definition()
	return checkpoint.Rounding{Acts: def.Acts, Cache: def.Cache}
}

// checkAdapterRounding is an error for what no definition rounds to.
func checkAdapterRounding(c peft.Config) error {
	var r checkpoint.Rounding
	if err := r.Read(c.Own); err != nil {
		return fmt.Errorf(peft.File+": %w", err)
	}
	return nil
}

// nameRounding makes adapter_config.json name what the definition rounds, and what it does not although the model below
// the adapter says so.
func (m *Model) nameRounding(c *peft.Config) error {
	below, err := m.readRounding()
	if err == nil {
		c.Own = m.rounding().Over(below)
	}
	return err
}

// readRounding is what the folder says that the model came from.
func (m *Model) readRounding() (checkpoint.Rounding, error) {
	says, err := checkpoint.ParseRounding(pyjson.Plain(m.Config))
	if m.kept != nil && says.Acts == quant.AsTrained { // m.Config is without it
		says.Acts = m.kept.Acts
	}
	return says, err
}

// configFor is config.json with the storage type that the weights are written in, and what a definition rounds that
// quantization_config has no words for: keys and values, and inputs of weights in codes to FP8x128.
func (m *Model) configFor(d kernels.DType, own checkpoint.Rounding) ([]byte, error) {
	return checkpoint.EditConfig(m.Config, func(c map[string]any) {
		delete(c, "torch_dtype")
		c["dtype"] = map[kernels.DType]string{kernels.F32: "float32", kernels.BF16: "bfloat16"}[d]
		delete(c, checkpoint.OwnKey)
		if said := own.Over(checkpoint.Rounding{}); said != nil {
			c[checkpoint.OwnKey] = json.RawMessage(said)
		}
	})
}

// Package peft reads and writes PEFT's adapter_config.json, and finds by it which modules carry adapters. It imports
// data/ordered and data/pyjson.
package peft

import (
	"encoding/json"
	"math"
)

// Config says which projections carry adapters, in the terms of PEFT's adapter_config.json.
type Config struct {
	Rank             int
	Alpha            float64
	Targets          []string // modules: "q_proj", or a longer suffix of the module's name
	TargetParameters []string // weights: of experts "mlp.experts.gate_up_proj", of modules "mlp.down_proj.weight"
	Pattern          string   // instead of Targets: a regular expression for whole module names
	RankStabilised   bool     // scale alpha/sqrt(rank) (use_rslora) instead of alpha/rank

	RankPattern    []ModuleValue // ranks of modules in place of Rank
	AlphaPattern   []ModuleValue // in place of Alpha
	Exclude        []string      // modules without an adapter, whatever the targets (exclude_modules)
	ExcludePattern string        // instead of Exclude: a regular expression for whole module names
	Layers         []int         // layers that Targets are for (layers_to_transform); nil: all
	LayersPattern  []string      // names of the lists of layers that Layers counts; nil: any
	ModulesToSave  []string      // modules that are trained in full and stored with the adapters
	// Experts of a layer share the outer factor of each adapter, see model.Model.AddLoRA. PEFT has no such field: it is
	// "experts": "shared" of the field "lockstep", and each expert's copy is stored.
	SharedExperts bool
	Dropout       float64 // that the adapter was trained with, which nothing but training applies
	// Own is what else the field "lockstep" has, which is no field of PEFT's: what the adapter was trained with, see
	// checkpoint.Rounding
	Own  json.RawMessage
	Init string // PiSSA or OLoRA, which have changed the base; "": it is as it was
}

// ModuleValue is the value of modules whose names, or last parts of them, match a regular expression. Of several that
// match the first counts.
type ModuleValue struct {
	Pattern string
	Value   float64
}

// PiSSA and OLoRA are values of init_lora_weights with which an adapter begins from a part of the weight below it, and
// the weight from the rest; see model.AddAdapter.
const (
	PiSSA = "pissa"
	OLoRA = "olora"
)

// maxRank bounds ranks against typing errors and damaged files.
const maxRank = 1 << 16

func (c Config) scale(alpha, rank float64) float32 {
	if c.RankStabilised {
		return float32(alpha / math.Sqrt(rank))
	}
	return float32(alpha / rank)
}

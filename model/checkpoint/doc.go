// Package checkpoint reads and writes the weights of a model folder in the formats of published checkpoints. A
// [Format] says which tensors a weight is stored as (codes, scales, shapes) and how quantization_config of config.json
// names it; [Weights] finds a checkpoint's tensors by the names of the weights that they hold, and a [Weight] is read
// as numbers, or as [Codes] for a device that computes with them. What a weight is for, and where it lies in a model,
// is package model's.
//
// It may import data/safetensors, data/pyjson, kernels (types of tensors) and quant, and nothing of package model.
package checkpoint

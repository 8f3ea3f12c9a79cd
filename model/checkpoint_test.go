package model_test

import (
	"path/filepath"
	"strings"
	"testing"

	"lockstep/data/safetensors"
	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/model"
	"lockstep/model/peft"
)

// Optimizer state is read back only where it is exactly that of the weights that are trained.
func TestLoadOptimizer(t *testing.T) {
	dev, err := cpu.New(kernels.Default(), cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	adapted := func(targets ...string) *model.Model {
		m, err := model.LoadFolder(dev, filepath.Join("testdata", "qwen3"), "", model.Options{DType: kernels.BF16})
		if err == nil {
			err = m.AddLoRA(peft.Config{Rank: 2, Alpha: 1, Targets: targets})
		}
		if err != nil {
			t.Fatal(err)
		}
		m.TrainAll()
		return m
	}
	m := adapted("q_proj")
	all := model.Replicas{m}.OptimizerTensors()
	if len(all) != len(m.Trained())*3 { // two moments, and a master of each bf16 weight
		t.Fatalf("%d tensors of %d weights", len(all), len(m.Trained()))
	}
	load := func(m *model.Model, tensors []safetensors.OutTensor) error {
		path := filepath.Join(t.TempDir(), "optimizer.safetensors")
		if err := safetensors.Write(path, tensors, nil); err != nil {
			t.Fatal(err)
		}
		f, err := safetensors.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		return model.Replicas{m}.LoadOptimizer(f.Checkpoint())
	}
	if err := load(m, all); err != nil {
		t.Fatal(err)
	}
	other := func(change func(o *safetensors.OutTensor)) []safetensors.OutTensor {
		list := append([]safetensors.OutTensor{}, all...)
		change(&list[1])
		return list
	}
	more := other(func(*safetensors.OutTensor) {})
	for what, err := range map[string]error{
		"another dtype":     load(m, other(func(o *safetensors.OutTensor) { o.DType = "I32" })),
		"another name":      load(m, other(func(o *safetensors.OutTensor) { o.Name += "x" })),
		"one is missing":    load(m, all[1:]),
		"more than trained": load(m, append(more, model.Replicas{adapted("k_proj")}.OptimizerTensors()...)),
		"of other targets":  load(adapted("q_proj", "k_proj"), all),
	} {
		if err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %v, want one line", what, err)
		}
	}
}

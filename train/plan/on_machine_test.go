package plan

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"lockstep/configs"
	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/kernels/meta"
	"lockstep/train/setup"
	"lockstep/train/testshape"
)

// tiny reads the shape of tests.
func tiny(more ...string) Shaper {
	return func(set ...string) (*configs.Shape, error) {
		return testshape.Parse(slices.Concat(set[:1], more, set[1:]))
	}
}

// cpuMachine is a machine with so much memory.
func cpuMachine(gib float64) configs.Machine {
	return configs.Machine{Name: "cpu", Device: "cpu", Card: "a CPU", Cards: 4, Cores: 4, Measured: true, Date: "today",
		Memory: configs.MachineMemory{Usable: gib, Host: gib},
		Rates:  round.Rates, Share: round.Share, Links: round.Links}
}

// A plan for a machine has the bytes that the run's own plan has, on every mesh, to the byte.
func TestPlanForMachine(t *testing.T) {
	for i, more := range [][]string{{"run.recompute=full", "run.micro_batch=2", "run.packs=8",
		"model.config.num_key_value_heads=2", "definition.segment=64", "model.config.num_hidden_layers=5",
		"pipeline.schedule=zero-bubble", "pipeline.blocks=1.5,1,1,1.5"},
		{"run.recompute=full", "run.micro_batch=2", "run.packs=8", "offload.optimizer=true",
			"offload.activations=true", "model.config.num_hidden_layers=6"},
		append(testshape.RL(), "run.micro_batch=2", "lora.rank=4", "model.weights=int4", "rl.kl_coef=0.1")} {
		s, err := tiny(more...)("device.kind=cpu")
		if err != nil {
			t.Fatal(err)
		}
		dev, err := cpu.New(setup.Definition(s), cpu.Options{Threads: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer dev.Close()
		o, err := For(tiny(more...), cpuMachine(64), nil)
		if err != nil {
			t.Fatal(err)
		}
		if divided := i == 0; len(o.Meshes) != 6 && !divided || len(o.Meshes) != 9 && divided ||
			(len(o.Refused) > 0) == divided {
			t.Fatalf("%d meshes, refused %v", len(o.Meshes), o.Refused)
		}
		for i, m := range o.Meshes {
			set := append([]string{"device.kind=cpu"}, m.set()...)
			if m.Stages == 1 { // has no schedule
				set = append(set, "pipeline.schedule=1f1b", "pipeline.blocks=")
			}
			s, err := tiny(more...)(set...)
			if err != nil {
				t.Fatal(err)
			}
			p, err := New(dev, s)
			if err != nil {
				t.Fatal(err)
			}
			corpus, err := setup.OpenCorpus(s, p.Model, p.Tokenizer)
			if err == nil {
				err = p.OpenEngines(dev, corpus.Longest(s.Rollout.MaxTokens))
			}
			if err != nil {
				t.Fatal(err)
			}
			n, err := p.Choose(0)
			if err != nil {
				t.Fatal(err)
			}
			got, sum := 0, 0
			for _, of := range m.Purposes {
				sum += of.Bytes
				if !of.Host {
					got += of.Bytes
				}
			}
			if got != n.Device() || sum != m.Bytes || !m.Fits() {
				t.Errorf("%s: %d bytes of %d, the run's plan has %d", m.name(), got, m.Bytes, n.Device())
			}
			if i > 0 && m.Step.Rate() > o.Meshes[i-1].Step.Rate() {
				t.Errorf("%s is not the slowest so far", m.name())
			}
			if m.Longest < 64 || m.Longest > 128 {
				t.Errorf("%s: longest sequence %d of 128 positions", m.name(), m.Longest)
			}
		}
		text, err := o.JSON()
		if err != nil || !json.Valid(text) || !strings.Contains(o.String(), "two-batch overlap") {
			t.Errorf("%s %v\n%s", text, err, o)
		}
	}
}

// Of a card, inputs of blocks that go to the host leave room for longer sequences, as long as the host has some: three
// of seven blocks' stay on the card.
func TestLongestOffloaded(t *testing.T) {
	longest := func(host int, more ...string) (rows int) {
		s, err := tiny(more...)("device.kind=cuda", "run.recompute=full", "model.config.num_hidden_layers=7",
			"model.config.max_position_embeddings=65536", "data.eval_samples=0")
		if err != nil {
			t.Fatal(err)
		}
		p, err := New(meta.New(setup.Definition(s), kernels.SpareGPU), s)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Choose(0); err != nil {
			t.Fatal(err)
		}
		rows, _ = p.longestSequence(p.static[0].Device()+64<<20, host)
		return rows
	}
	without, with := longest(0), longest(1<<30, "offload.activations=true")
	if with <= without || without == 0 {
		t.Errorf("%d tokens with inputs on the host, %d without", with, without)
	}
	if got, want := longest(4*kernels.ArenaBytes(kernels.BF16, 640, 32), "offload.activations=true"), 640; got != want {
		t.Errorf("%d tokens with little memory of the host, want %d", got, want)
	}
}

// Where no mesh fits, what would is found by trying, and does fit.
func TestNoMeshFits(t *testing.T) {
	large := []string{"run.micro_batch=4", "run.packs=16", "data.pack_rows=2048", "data.eval_samples=0"}
	one, err := For(tiny(large...), cpuMachine(64), nil)
	if err != nil {
		t.Fatal(err)
	}
	least := one.Meshes[0].Bytes
	for _, m := range one.Meshes {
		least = min(least, m.Bytes)
	}
	o, err := For(tiny(large...), cpuMachine(float64(least)*0.7/gibibyte), []string{
		"ranks=4", "experts=4"})
	if err != nil {
		t.Fatal(err)
	}
	if o.Meshes[0].Fits() || !strings.Contains(o.Mend, "it fits with ") ||
		!strings.Contains(o.String(), "does not fit:") {
		t.Errorf("no mesh fits, and it says\n%s", o)
	}
	if o, err = For(tiny(large...), cpuMachine(1e-6), nil); err != nil ||
		!strings.Contains(o.Mend, "no setting is enough") {
		t.Errorf("nothing is enough, and it says %v\n%s", err, o)
	}
	if _, err = For(tiny(), cpuMachine(1), []string{"ranks=4", "experts=3"}); err == nil ||
		!strings.Contains(err.Error(), "parallel.experts: want 1, or parallel.ranks (4)") {
		t.Errorf("a mesh that cannot be: %v", err)
	}
	if o, err = For(tiny("run.micro_batch=1"), cpuMachine(64), nil); err != nil || len(o.Meshes) != 4 ||
		len(o.Refused) != 3 {
		t.Errorf("one pack does not divide into two lanes, two blocks into four stages: %v\n%s", err, o)
	}
}

var update = flag.Bool("update", false, "write what testdata has")

// The largest models on the machines that come with Lockstep, for a person to read.
func TestLargeModels(t *testing.T) {
	var b strings.Builder
	b.WriteString("By plan, not run. LoRA of rank 16 with full recompute, 2 packs of 4,096 tokens a rank and step, " +
		"experts divided, other\nweights sharded, two-batch overlap: GiB a card of what a run may take; tokens/s; " +
		"longest sequence, one a lane.\n\n")
	form := "%-26s%-8s%9s%9s%9s%9s%7s%7s%7s%10s%10s  %s\n"
	fmt.Fprintf(&b, form, "model", "machine", "experts", "weights", "inputs", "work", "sum", "of", "host", "tokens/s",
		"longest", "")
	const host, next = "offload.weights=auto", "model.catalogue=Qwen3.5-397B-A17B"
	for _, c := range []struct {
		shape, machine, weights string
		more                    []string
	}{
		{"glm5.2-lora", "8xH200", "int4", nil}, {"glm5.2-lora", "8xB200", "int4", nil},
		{"glm5.2-lora", "8xH200", "fp8", nil}, {"glm5.2-lora", "2xH200", "int4", []string{host}},
		{"kimi-k2.5-lora", "8xH200", "int4", nil}, {"kimi-k2.5-lora", "8xB200", "fp8", nil},
		{"qwen3-235b-lora", "8xH200", "auto", []string{next, "run.name=qwen3.5-397b-lora"}},
		{"qwen3-235b-lora", "8xH200", "auto", nil}, {"qwen3-235b-lora", "2xH200", "auto", nil},
		{"qwen3-235b-lora", "2xH200", "auto", []string{host}},
		{"qwen3-235b-lora", "2xH200", "int4", nil}, {"qwen3-30b-a3b", "2xH200", "auto", nil},
	} {
		m, err := configs.LoadMachine(c.machine)
		if err != nil {
			t.Fatal(err)
		}
		o, err := For(func(set ...string) (*configs.Shape, error) {
			return configs.Load("../../configs/"+c.shape+".toml", slices.Concat(set, c.more, []string{
				"model.weights=" + c.weights, fmt.Sprintf("run.packs=%d", 2*m.Cards), "run.recompute=full"}))
		}, m, []string{fmt.Sprintf("ranks=%d", m.Cards), "experts=0", "weights=sharded", "interleave=2"})
		if err != nil {
			t.Fatal(err)
		}
		mesh := o.Meshes[0]
		of := map[string]int{}
		for _, p := range mesh.Purposes {
			of[p.Name] = p.Bytes
		}
		speed, longest, note := grouped(mesh.Step.Rate()), grouped(float64(mesh.Longest)), ""
		if !mesh.Fits() {
			speed, longest, note = "-", "-", "does not fit"
		}
		if !m.Measured {
			note = "unmeasured"
		}
		name, _, _ := strings.Cut(o.Model, ":")
		if c.weights != "auto" {
			name += " " + c.weights
		}
		fmt.Fprintf(&b, form, name, c.machine, shortGiB(of["experts"]), shortGiB(of["other weights"]),
			shortGiB(of["block inputs"]), shortGiB(of["blocks at work"]), shortGiB(mesh.Bytes),
			shortGiB(mesh.Available), shortGiB(mesh.Host), speed, longest, note)
	}
	const path = "testdata/large_models.txt"
	if *update {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != b.String() {
		t.Errorf("go test ./train/plan -run TestLargeModels -update writes\n%s\nwhere there is\n%s", b.String(), want)
	}
}

package plan

import (
	"math"
	"slices"
	"strings"
	"testing"

	"lockstep/configs"
	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/model"
	"lockstep/train/testshape"
)

// limited is a device that says it has so many bytes left.
type limited struct {
	*cpu.Device
	left int
}

func (l *limited) Available() int { return l.left }

// A run that does not fit is refused in one line with what would fit, and that does fit; the line before a run says its
// parts.
func TestAdmit(t *testing.T) {
	dev, err := cpu.New(kernels.Default(), cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	shape := func(set ...string) *configs.Shape {
		s, err := testshape.Parse(append([]string{"run.recompute=none", "run.packs=8", "run.micro_batch=8",
			"run.verify_tokens=0", "data.eval_samples=0", "data.pack_rows=512"}, set...))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	takes := func(set ...string) int {
		p, err := New(dev, shape(set...))
		if err != nil {
			t.Fatal(err)
		}
		n, err := p.Choose(0)
		if err != nil {
			t.Fatal(err)
		}
		return n.Device()
	}
	if with, without := takes("data.pack_rows=64", "run.verify_tokens=100000"), takes("data.pack_rows=64"); with <=
		without {
		t.Errorf("short packs take %d bytes with a proof of long sequences at the end, %d without", with, without)
	}
	ranks := []string{"parallel.ranks=4", "run.micro_batch=1", "run.recompute=full", "data.pack_rows=64",
		"model.config.num_hidden_layers=12"}
	for _, c := range []struct {
		set  []string
		room int // beyond what the process takes already
		want string
	}{
		{nil, takes() + 64<<20, ""},
		{nil, takes("run.recompute=true"), "it fits with run.recompute = \"auto\": "},
		{nil, takes("run.micro_batch=1"), "it fits with run.micro_batch = 1: "},
		{nil, takes("run.recompute=true", "run.micro_batch=1"),
			"it fits with run.recompute = \"auto\" and run.micro_batch = 1: "},
		{ranks, takes(append(ranks, "parallel.weights=sharded")...), "it fits with parallel.weights = \"sharded\": "},
	} {
		d := &limited{Device: dev}
		s := shape(c.set...)
		p, err := New(d, s)
		if err != nil {
			t.Fatal(err)
		}
		n, err := p.Choose(0)
		if err != nil {
			t.Fatal(err)
		}
		d.left = max(c.room+n.Other-anonymousMemory()+1<<20, 1)
		_, line, err := Admit(d, p)
		if c.want == "" {
			if err != nil || !strings.HasPrefix(line, "memory: ") || !strings.Contains(line, "at the peak (weights ") ||
				!strings.HasSuffix(line, " available") {
				t.Errorf("%q, error %v", line, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") ||
			!strings.HasPrefix(err.Error(), "out of memory: the run takes ") {
			t.Errorf("with %d bytes: %q, error %v, want %q", c.room, line, err, c.want)
		}
	}
}

// inspect and shapes say peaks that grow with the micro-batch and shrink with recompute and adapters.
func TestPeaks(t *testing.T) {
	lines := func(size StepSize) []string {
		text, err := Peaks(size, "model.path=../../model/testdata/glm5")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSpace(text), "\n")
	}
	got := lines(StepSize{MicroBatch: 2, Rows: 64})
	want := []string{"peak        in bf16, micro-batches of 2 x 64 tokens; offload is on a GPU", "  full  ",
		"  full, recompute  ", "  full, recompute, offload  ", "  LoRA of rank 16  ", "  LoRA of rank 16, recompute  ",
		"  LoRA of rank 16, recompute, offload  "}
	for i, w := range want {
		if len(got) != len(want) || !strings.HasPrefix(got[i], w) {
			t.Fatalf("%q, want %q", got, want)
		}
	}
	if large := lines(StepSize{MicroBatch: 64, Rows: 4096}); large[1] == got[1] ||
		!strings.Contains(large[1], "GiB at the peak") {
		t.Errorf("64 x 4096 tokens: %s", large[1])
	}
	coded, err := Peaks(StepSize{1, 4096, "int4"}, "model.catalogue=Qwen3-30B-A3B", "model.tokenizer=bytes")
	if err != nil || !strings.HasPrefix(coded, "peak        in bf16, model.weights = \"int4\", micro-batches") ||
		!strings.Contains(coded, "(weights 18.10 GiB, training 204 MiB") {
		t.Errorf("in INT4: %s, error %v", coded, err)
	}
}

// What inspect and shapes say of the host, by hand: 8.03 billion weights have two moments and a master of 4 bytes each,
// 32 blocks of 218,103,808 weights 2 bytes each while they are frozen, and 2,048 tokens of 4,096 columns go into a
// block, of which those of the last three stay.
func TestPeaksOfHost(t *testing.T) {
	const weights, block, input = 8030261248, 218103808, 2048 * 4096
	adapters := 32 * model.AdapterRank * (4*4096 + 2*1024 + 2*4096 + 3*(4096+14336))
	set := []string{"model.catalogue=Llama-3.1-8B", "model.tokenizer=bytes", "run.packs=1", "run.micro_batch=1",
		"data.pack_rows=2048"}
	for _, way := range peakWays {
		n, err := peakOf(way.lora, slices.Concat(set, way.set))
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]int{}
		if strings.HasSuffix(way.name, "offload") {
			want = map[string]int{"optimizer state": 12 * weights, "offloaded block inputs": 2 * 29 * input}
			if way.lora {
				want["optimizer state"], want["frozen weights"] = 12*adapters, 2*32*block
			}
		}
		list, sum := n.OfHost(), 0
		for _, p := range list {
			sum += p.Bytes
			if off := float64(p.Bytes)/float64(want[p.Name]) - 1; !(off >= 0 && off < 1e-3) || !p.Host {
				t.Errorf("%s: %s of the host for %s, want %s", way.name, Size(p.Bytes), p.Name, Size(want[p.Name]))
			}
		}
		if len(list) != len(want) || sum != n.Host || (n.Host > 0) != strings.Contains(n.String(), "the host (opt") {
			t.Errorf("%s: %v, want %v; %v", way.name, list, want, n)
		}
	}
}

// More pinned memory than the machine has is refused in one line that says what it has.
func TestFitsHost(t *testing.T) {
	for mend, n := range map[string]Memory{
		"remove offload.optimizer, or set lora.rank":             {Host: 96 << 30, HostInputs: 48 << 30},
		"remove offload.activations, or lower run.micro_batch":   {Host: 96 << 30, HostInputs: 49 << 30},
		"raise offload.weights, or put weights into 4 bits by m": {Host: 96 << 30, HostWeights: 49 << 30},
	} {
		err := fitsHost(n, 61<<30)
		if err == nil || !strings.HasPrefix(err.Error(), "out of memory: the run takes 96.00 GiB of pinned memory "+
			"for offload, and the machine has 61.00 GiB available: "+mend) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v", n, err)
		}
	}
	if fitsHost(Memory{Host: 96 << 30}, 0) != nil || fitsHost(Memory{Host: 1 << 30}, 1<<30) != nil {
		t.Error("what fits, or may fit, is refused")
	}
}

// What offload.weights = "auto" leaves on a card fits, and nearly as many bytes more do not.
func TestChooseWeights(t *testing.T) {
	s, err := testshape.Parse([]string{"lora.rank=4", "offload.weights=auto", "data.eval_samples=0",
		"model.config.num_hidden_layers=40", "model.config.num_experts=512", "model.config.hidden_size=256"})
	if err != nil {
		t.Fatal(err)
	}
	dev, err := cpu.New(kernels.Default(), cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	s.Device.Kind = "cuda" // whose memory is not the host's
	total := func(weights string) (Memory, error) {
		of := *s
		of.Offload.Weights, of.Run.Recompute = weights, "full"
		p, err := New(dev, &of)
		if err != nil {
			return Memory{}, err
		}
		return p.Choose(0)
	}
	all, err := total("all")
	if err != nil {
		t.Fatal(err)
	}
	have := all.Total() * 3 / 4
	if err := ChooseAuto(dev, s, have); err != nil {
		t.Fatal(err)
	}
	n, err := total(s.Offload.Weights)
	if err != nil {
		t.Fatal(err)
	}
	if least := have * 9 / 10; n.Total() > have || n.Total() < least || n.HostWeights == 0 {
		t.Errorf("%q takes %s and %s of the host, and %s are there; all weights: %s", s.Offload.Weights,
			Size(n.Total()), Size(n.HostWeights), Size(have), Size(all.Total()))
	}
}

// By offload.host_update = "auto" the host's cores end when the link does, whatever the rates; a slow host gets less.
func TestChooseHostUpdate(t *testing.T) {
	shares := map[float64]float64{}
	for _, rate := range []float64{0.5, 5} {
		s, err := testshape.Parse([]string{"offload.optimizer=true", "offload.host_update=auto", "offload.ring=0.0001",
			"parallel.ranks=2"})
		if err != nil {
			t.Fatal(err)
		}
		dev, err := cpu.New(kernels.Default(), cpu.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer dev.Close()
		machine := configs.Machine{Device: "cuda", Cards: 2,
			Host: configs.MachineHost{ToCard: 54, FromCard: 53, Both: 35, Update: rate}}
		open := func(t *configs.Shape) (*Plan, error) { return New(dev, t) }
		if err := chooseHostUpdate(s, machine, open); err != nil {
			t.Fatal(err)
		}
		p, err := open(s)
		if err != nil {
			t.Fatal(err)
		}
		of := statesOf(p.Model)
		all, updated := int(of.passing()+of.updated), int(of.updated)
		bytes, err := s.Offload.OnHost()
		if err != nil || updated > bytes || updated == 0 {
			t.Errorf("%d bytes of %d are the host's, asked for %s GiB (%v)", updated, all, s.Offload.HostUpdate, err)
		}
		link, cores := clock{machine, 2}.afterNorm(float64(all-bytes), float64(bytes), s.Offload.Ring*gibibyte)
		if math.Abs(link-cores) > 0.01*link {
			t.Errorf("the link ends after %g s, the host after %g", link, cores)
		}
		shares[rate] = float64(bytes) / float64(all)
	}
	if shares[0.5] > 0.2 || shares[5] < 0.4 {
		t.Errorf("shares of the host by its rate: %v", shares)
	}
}

package serve

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/broken"
	"lockstep/kernels/cpu"
	"lockstep/model"
	"lockstep/parallel"
)

// mesh is ranks and how they divide a model.
type mesh struct {
	ranks           int
	experts, blocks bool
}

func (m mesh) String() string {
	return fmt.Sprintf("%d ranks, experts divided %t, weights sharded %t", m.ranks, m.experts, m.blocks)
}

// meshes are one rank and every way of dividing a model that has experts.
var meshes = []mesh{{1, false, false}, {2, false, false}, {3, false, true}, {2, true, false}, {3, true, true}}

// onMesh runs body with a golden checkpoint on ranks of the CPU whose copies are late, and which break a rule.
func onMesh(t *testing.T, c breakCase, m mesh, rule kernels.Break, body func(s *ServedModel)) {
	t.Helper()
	var list []kernels.Device
	for rank := range m.ranks {
		dev, err := cpu.New(c.def, cpu.Options{Threads: 1, DelayCopies: uint64(1 + rank)})
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, dev)
	}
	onDevices(t, list, c, m, rule, body)
}

// onDevices runs body with a golden checkpoint on devices that break a rule, and closes them.
func onDevices(t *testing.T, list []kernels.Device, c breakCase, m mesh, rule kernels.Break,
	body func(s *ServedModel)) {
	t.Helper()
	for rank, dev := range list {
		defer dev.Close()
		if rule == kernels.BreakNone {
			continue
		}
		var err error
		if list[rank], err = broken.New(dev, rule); err != nil {
			t.Fatal(err)
		}
	}
	on := parallel.Mesh{Experts: 1}
	if m.experts {
		on.Experts = m.ranks
	}
	w, err := parallel.Open(list, on)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := w.Lead(func(r *parallel.Rank) error {
		s, err := Open(w, r, goldens+c.family, c.adapter, model.Options{DType: c.dtype, Experts: m.experts,
			Blocks: m.blocks})
		if err == nil {
			body(s)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// mixtures are goldens with experts, by the definition of a CPU and by that of a GPU; the last has adapters on experts.
func mixtures() (list []breakCase) {
	tc16 := kernels.Default()
	tc16.Dot, tc16.Exp2 = kernels.DotTC16, kernels.Exp2Ex2h
	for _, family := range []string{"qwen3_moe", "glm5", "gpt_oss", "qwen3_5_moe"} {
		list = append(list, breakCase{family: family, def: kernels.Default(), dtype: kernels.F32},
			breakCase{family: family, def: tc16, dtype: kernels.BF16})
	}
	return append(list, breakCase{family: "qwen3_moe", adapter: goldens + "adapters/qwen3_moe_experts", def: tc16,
		dtype: kernels.BF16})
}

// verifyOn holds a mesh against one rank that has all weights.
func verifyOn(t *testing.T, s *ServedModel, o VerifyOptions) *VerifyReport {
	t.Helper()
	var err error
	if o.Reference, err = s.OneRankReference(); err != nil {
		t.Fatal(err)
	}
	rep, err := Verify(context.Background(), s.Ranks, o)
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

// Every rank of every mesh computes what one rank computes, and the report says what it was.
func TestVerifyOnRanks(t *testing.T) {
	said := map[mesh]string{
		{2, false, false}: "2 ranks, weights replicated, compared with the training forward of the first",
		{3, false, true}:  "3 ranks, weights sharded, compared with the training forward of one that has all weights",
		{2, true, false}:  "2 ranks, experts divided, compared with the training forward of one that has all weights",
		{3, true, true}: "3 ranks, experts divided and other weights sharded, compared with the training forward of " +
			"one that has all weights",
	}
	for _, c := range mixtures() {
		for _, m := range meshes {
			onMesh(t, c, m, kernels.BreakNone, func(s *ServedModel) {
				rep := verifyOn(t, s, VerifyOptions{Tokens: 500, Seed: 2})
				if err := rep.Err(); err != nil {
					t.Errorf("%s, %s: %v\n%s", c, m, err, rep.Table())
				}
				if len(rep.Compared) != m.ranks || rep.Mesh != said[m] {
					t.Errorf("%s: %d positions, %q, want %q", m, rep.Compared, rep.Mesh, said[m])
				}
				if m.ranks > 1 && !strings.Contains(rep.Table(), said[m]) {
					t.Error(rep.Table())
				}
			})
		}
	}
}

// Another weight on one of the ranks is noticed, and the rank is named where it computes by itself.
func TestVerifyOtherWeights(t *testing.T) {
	for _, m := range meshes[1:] {
		onMesh(t, mixtures()[0], m, kernels.BreakNone, func(s *ServedModel) {
			reference, err := s.OneRankReference()
			if err != nil {
				t.Fatal(err)
			}
			last := s.Replicas[m.ranks-1]
			for _, p := range last.Params { // of a sharded model: what it owns
				if w := p.W; strings.Contains(p.Name, "experts") || p.Name == "model.norm.weight" {
					if err := parallelWrite(s, m.ranks-1, w); err != nil {
						t.Fatal(err)
					}
				}
			}
			rep, err := Verify(context.Background(), s.Ranks, VerifyOptions{Tokens: 500, Seed: 2, Reference: reference})
			if err != nil {
				t.Fatal(err)
			}
			if err := rep.Err(); err == nil || !m.experts && !strings.Contains(err.Error(), fmt.Sprintf("rank %d, ",
				m.ranks-1)) {
				t.Errorf("%s: %v", m, err)
			}
		})
	}
}

// parallelWrite halves the first number of a tensor of a rank.
func parallelWrite(s *ServedModel, rank int, w kernels.Tensor) error {
	return s.each(func(r *parallel.Rank, _ *model.Model) error {
		if r.ID == rank {
			first := w.Group(0).RowRange(0, 1).ColRange(0, 1)
			r.Dev.Write(first, make([]byte, first.Bytes()))
		}
		return nil
	})
}

// A proof in which a rank left out a path has failed.
func TestVerifyIdleRank(t *testing.T) {
	p := &verifier{Ranks: Ranks{Rank: new(parallel.Rank), Model: new(model.Model)}, ranks: make([]*comparer, 3)}
	for rank := range p.ranks {
		p.ranks[rank] = new(comparer)
		for path := range paths {
			p.ranks[rank].comparisons[path].Tokens = 1
		}
	}
	p.Replicas = make(model.Replicas, 3)
	dev, err := cpu.New(kernels.Default(), cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	p.Rank.Dev = dev
	if err := p.report().Err(); err != nil {
		t.Error(err)
	}
	p.ranks[1].comparisons[pathDecode].Tokens = 0
	if err := p.report().Err(); err == nil || !strings.Contains(err.Error(), "not compared: decode on rank 1: ") {
		t.Errorf("error %v", err)
	}
}

// Sums of experts' outputs by rank, as before an all-reduce, are noticed wherever they can differ; so is every other
// broken rule where experts are cut over ranks.
func TestVerifyCatchesRankSums(t *testing.T) {
	caught := 0
	for _, c := range mixtures() {
		onMesh(t, c, mesh{2, true, false}, kernels.BreakRankSums, func(s *ServedModel) {
			reference, err := s.OneRankReference()
			if err != nil {
				t.Fatal(err)
			}
			tokens, err := positionsToCatch(s.Ranks, reference)
			switch applies := slices.Contains(s.Model.Breaks(), kernels.BreakRankSums); {
			case applies && err != nil:
				t.Errorf("%s: %v", c, err)
			case applies:
				caught++
				t.Logf("%s: %d tokens", c, tokens)
			case err == nil || !refusal.MatchString(err.Error()):
				t.Errorf("%s: does not apply: %v", c, err)
			}
		})
	}
	if caught < len(mixtures())/2 {
		t.Errorf("applies to %d mixtures", caught)
	}
	for _, rule := range kernels.Breaks {
		onMesh(t, mixtures()[0], mesh{3, true, true}, rule, func(s *ServedModel) {
			if !slices.Contains(s.Model.Breaks(), rule) {
				return
			}
			reference, err := s.OneRankReference()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := positionsToCatch(s.Ranks, reference); err != nil {
				t.Errorf("%s: %v", rule, err)
			}
		})
	}
}

// Any ranks write the files of one: log-probabilities, samples and what parity finds.
func TestFilesOnRanks(t *testing.T) {
	dir := t.TempDir()
	in := filepath.Join(dir, "in.jsonl")
	var lines strings.Builder
	for n := range 7 {
		ids := strings.Repeat("5, ", n) + fmt.Sprint(30+n)
		fmt.Fprintf(&lines, "{\"ids\": [%s]}\n", ids)
	}
	if err := os.WriteFile(in, []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range mixtures()[:2] {
		want := map[string][]byte{}
		for _, m := range meshes {
			onMesh(t, c, m, kernels.BreakNone, func(s *ServedModel) {
				got := map[string][]byte{}
				keep := func(name, path string, err error) {
					if err == nil {
						got[name], err = os.ReadFile(path)
					}
					if err != nil {
						t.Fatalf("%s, %s: %s: %v", c, m, name, err)
					}
				}
				out := filepath.Join(dir, "scores")
				n, err := Score(context.Background(), s.Ranks, in, out, true)
				keep("score", out, err)
				out = filepath.Join(dir, "samples")
				o := Options{Slots: 2, PageRows: 4, PrefillRows: 5}
				samples, err := Generate(context.Background(), s, in, out, o,
					Sampling{MaxTokens: 9, Temperature: 1, TopP: 1, N: 3, Seed: 4})
				keep("generate", out, err)
				rep, err := Parity(context.Background(), s, ParityOptions{Rollout: out, Bounds: bounds})
				if err != nil {
					t.Fatal(err)
				}
				if n != 7 || samples != 21 || rep.Sequences != 21 || rep.Recorded.Equal != rep.Recorded.Tokens {
					t.Errorf("%s: %d scored, %d samples: %+v", m, n, samples, rep.Recorded)
				}
				for name := range got {
					if want[name] == nil {
						want[name] = got[name]
					}
					if !bytes.Equal(got[name], want[name]) {
						t.Errorf("%s, %s: %s wrote other bytes than one rank", c, m, name)
					}
				}
			})
		}
	}
}

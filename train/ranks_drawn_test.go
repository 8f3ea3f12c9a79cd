package train

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/configs"
	"lockstep/model"
)

var drawnRuns = flag.Int("drawn", 40, "runs that TestRanksDrawn draws; below 0: without end")

// drawnFamily is a golden that TestRanksDrawn draws from.
type drawnFamily struct {
	dir     string
	shape   [2][]byte            // in fp32 and in bf16
	form    string               // of latent attention, a key
	experts int                  // of a mixture; 0: there is none
	divides func(ranks int) bool // whether a context of so many ranks divides its heads
	blocks  int                  // that stages of a pipeline may have; 0: it is refused
	halves  bool                 // a stage may end within any of them
}

// Whatever the family, the mode, the ranks, the micro-batch, what is recomputed, where weights lie and when copies are
// carried out: a run ends in the files of one rank that keeps everything.
func TestRanksDrawn(t *testing.T) {
	families, alone := drawnFamilies(t), map[string]string{}
	// runs whose experts are on several ranks, those with several segments in a micro-batch, those of two lanes, those
	// whose packs are divided over ranks, those of a pipeline, and of them those with chunks and with halves of blocks
	split, several, lanes, contexts, stages, chunks, halves := 0, 0, 0, 0, 0, 0, 0
	for i := 0; *drawnRuns < 0 || i < *drawnRuns; i++ {
		rng := rand.New(rand.NewPCG(uint64(i), 4))
		f, kind, rows := families[rng.IntN(len(families))], rng.IntN(2), []int{20, 64, 100}[rng.IntN(3)]
		packs := 2 + rng.IntN(5)
		base := []string{fmt.Sprintf("lora.rank=%d", 3*rng.IntN(2)), fmt.Sprintf("run.packs=%d", packs), "run.steps=3",
			f.form, "definition.segment=64", fmt.Sprintf("data.pack_rows=%d", rows)}
		run := func(seed uint64, set ...string) string {
			s, err := configs.Parse("ranks.toml", f.shape[kind], append(append([]string{}, base...), set...))
			if err != nil {
				t.Fatal(err)
			}
			out := filepath.Join(t.TempDir(), "run")
			if err := runDevices(context.Background(), t, s, out, delayedRanks(t, s, seed)); err != nil {
				t.Fatalf("draw %d, %s, %v: %v", i, f.dir, append(base, set...), err)
			}
			return wholeDigest(t, out)
		}
		ranks, micro := 2+rng.IntN(7), 1+rng.IntN(min(3, packs))
		mesh := []string{fmt.Sprintf("parallel.ranks=%d", ranks),
			"parallel.weights=" + []string{"replicated", "sharded"}[rng.IntN(2)],
			"run.recompute=" + []string{"none", "full", "auto"}[rng.IntN(3)]}
		staged := i%4 == 3 && f.blocks > 1
		if staged {
			by := []string{"zero-bubble", "1f1b", "stream"}[i/4%3]
			if ranks = min(ranks, f.blocks); f.blocks >= 4 && i%3 > 0 {
				by, ranks, micro = "interleaved", min(ranks, f.blocks/2, packs), 1
				chunks++
			}
			mesh = []string{fmt.Sprintf("parallel.ranks=%d", ranks), "parallel.stages=0", mesh[2],
				"pipeline.schedule=" + by}
			if by == "zero-bubble" || by == "1f1b" {
				mesh = append(mesh, fmt.Sprintf("pipeline.ahead=%d", 1+i%3))
			}
			if f.halves && by != "interleaved" && i%8 == 3 {
				ranks = 2
				first := 0.5 * float64(1+rng.IntN(2*f.blocks-1))
				mesh[0] = "parallel.ranks=2"
				mesh = append(mesh, fmt.Sprintf("pipeline.blocks=%g,%g", first, float64(f.blocks)-first))
				halves++
			}
			stages++
		} else if f.experts >= ranks && rng.IntN(3) > 0 {
			mesh = append(mesh, fmt.Sprintf("parallel.experts=%d", ranks))
			if split++; micro > 1 || rows > 64 {
				several++
			}
			if micro > 1 && rng.IntN(3) > 0 {
				mesh, micro = append(mesh, "parallel.interleave=2"), 2
				lanes++
			}
		}
		mesh = append(mesh, fmt.Sprintf("run.micro_batch=%d", micro))
		for _, n := range []int{4, 3, 2} {
			if !staged && ranks%n == 0 && f.divides(n) && (micro > 1 || rows > 64) {
				mesh = append(mesh, fmt.Sprintf("parallel.context=%d", n))
				contexts++
				break
			}
		}
		key := fmt.Sprint(f.dir, kind, base)
		if alone[key] == "" {
			alone[key] = run(0)
		}
		if got := run(rng.Uint64N(1<<32), mesh...); got != alone[key] {
			t.Errorf("draw %d, %s, %v, %v:\n%s\nwant\n%s", i, f.dir, base, mesh, got, alone[key])
		}
	}
	if n := *drawnRuns; split < n/7 || several < split/3 || lanes < split/6 || contexts < n/7 || stages < n/9 ||
		chunks < stages/8 || halves < stages/8 {
		t.Errorf("%d of %d runs had experts on several ranks, %d of them several segments, %d two lanes, %d packs "+
			"over several ranks, %d stages, %d of them chunks and %d parted blocks: the test shows little", split, n,
			several, lanes, contexts, stages, chunks, halves)
	}
}

// drawnFamilies lists the goldens.
func drawnFamilies(t *testing.T) (list []drawnFamily) {
	lines := t.TempDir()
	eachFamily(t, func(t *testing.T, dir string, vocab int) {
		m := described(t, dir)
		f := drawnFamily{dir: dir, divides: func(ranks int) bool { return m.CheckContext(ranks) == nil }}
		forms := []string{"auto"}
		if !strings.HasPrefix(filepath.Base(dir), "glm5") {
			f.blocks, f.halves = len(m.Blocks), true
		}
		for _, bl := range m.Blocks {
			f.halves = f.halves && len(bl) > 1
			for _, sub := range bl {
				switch l := sub.Layer.(type) {
				case *model.MoE:
					f.experts = l.Router.W.W.Rows
				case *model.MLA:
					forms = []string{"absorbed", "expanded"}
				}
			}
		}
		targets, parameters := everyProjection(t, dir)
		path := filepath.Join(lines, filepath.Base(dir)+".jsonl")
		writeIDs(t, path, ragged(vocab, 60, 18), 18)
		for i, c := range [][2]string{{"fp32", "fma"}, {"bf16", "tc16"}} {
			f.shape[i] = fmt.Appendf(nil, adapted, dir, c[0], c[1], path, strings.Join(targets, `", "`), parameters)
		}
		for _, form := range forms {
			of := f
			of.form = "definition.latent=" + form
			if form == "absorbed" {
				of.divides = func(int) bool { return true }
			}
			list = append(list, of)
		}
	})
	return list
}

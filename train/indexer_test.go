package train

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/data/safetensors"
	"lockstep/train/runlog"
	"lockstep/train/testshape"
)

// tinyDSA converts the tiny shape to a GLM-5 of three layers, of which the last reads the choice of the second.
func tinyDSA(more ...string) []string {
	return append([]string{
		"model.family=glm_moe_dsa", "model.config.num_key_value_heads=2", "model.config.num_hidden_layers=3",
		"model.config.first_k_dense_replace=1", "model.config.intermediate_size=32",
		"model.config.n_routed_experts=4", "model.config.routed_scaling_factor=1.0", "model.config.q_lora_rank=24",
		"model.config.kv_lora_rank=16", "model.config.qk_nope_head_dim=8",
		"model.config.qk_rope_head_dim=8", "model.config.v_head_dim=16", "model.config.index_head_dim=16",
		"model.config.index_n_heads=4", "model.config.index_topk=6",
		`model.config.indexer_types=["full", "full", "shared"]`, "model.config.initializer_range=0.3",
		"run.save_every=10",
	}, more...)
}

func indexerLosses(t *testing.T, out string) (losses []float64) {
	t.Helper()
	records, err := runlog.ReadMetrics(out)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		if r.IndexerLoss != nil {
			losses = append(losses, float64(*r.IndexerLoss))
		}
	}
	return losses
}

// Indexers that learn come nearer to attention step by step; the weights and the losses do not depend on micro-batches,
// recompute, threads or an end in between; and the proof holds on the model that comes out.
func TestIndexersLearn(t *testing.T) {
	for _, latent := range []string{"expanded", "absorbed"} {
		t.Run(latent, func(t *testing.T) { indexersLearn(t, "definition.latent="+latent) })
	}
}

func indexersLearn(t *testing.T, latent string) {
	base := tinyDSA("indexer.stage=sparse", "optim.lr=5e-4", "indexer.lr_factor=20", "run.steps=20",
		"run.verify_tokens=1500", latent)
	out := filepath.Join(t.TempDir(), "run")
	want, err := runTiny(t, out, false, base...)
	if err != nil {
		t.Fatal(err)
	}
	losses := indexerLosses(t, out)
	if n := len(losses); n != 20 || losses[n-1] > 0.6*losses[0] || losses[n-1] <= 0 {
		t.Errorf("indexer losses %v: want them to fall", losses)
	}
	other := filepath.Join(t.TempDir(), "run")
	got, err := runTiny(t, other, false, append(base, "run.verify_tokens=0", "run.micro_batch=3", "run.recompute=true",
		"device.threads=2")...)
	if err != nil || got != want {
		t.Errorf("in micro-batches that are recomputed: %s, want %s (%v)", got, want, err)
	}
	for i, loss := range indexerLosses(t, other) {
		if loss != losses[i] {
			t.Errorf("step %d: indexer loss %g in micro-batches, want %g", i+1, loss, losses[i])
			break
		}
	}
	if err := os.RemoveAll(filepath.Join(out, checkpointsDir, checkpointName(20))); err != nil {
		t.Fatal(err)
	}
	if got, err := runTiny(t, out, true, append(base, "run.verify_tokens=0")...); err != nil || got != want {
		t.Errorf("resumed from step 10: %s, want %s (%v)", got, want, err)
	}
	if got, err := runTiny(t, filepath.Join(t.TempDir(), "run"), false, append(base, "run.verify_tokens=0",
		"indexer.stage=", "indexer.lr_factor=1")...); err != nil || got == want {
		t.Errorf("frozen indexers give the same weights: the test cannot fail (%v)", err)
	}
}

// In the dense stage the indexers learn from attention to all keys, and every other weight stays as it was.
func TestIndexersWarmUp(t *testing.T) {
	out := filepath.Join(t.TempDir(), "run")
	if _, err := runTiny(t, out, false, tinyDSA("indexer.stage=dense", "run.steps=30",
		"run.verify_tokens=1500")...); err != nil {
		t.Fatal(err)
	}
	losses := indexerLosses(t, out)
	if n := len(losses); n != 30 || losses[n-1] > 0.8*losses[0] {
		t.Errorf("indexer losses %v: want them to fall", losses)
	}
	first, last := checkpointWeights(t, out, 20), checkpointWeights(t, out, 30)
	moved := 0
	for name, w := range first {
		indexer := strings.Contains(name, ".indexer.")
		if same := bytes.Equal(w, last[name]); same == indexer {
			t.Errorf("%s: unchanged is %t", name, same)
		}
		if indexer {
			moved++
		}
	}
	if moved != 2*5 {
		t.Errorf("%d weights of indexers, want those of two layers", moved)
	}
}

// checkpointWeights is the tensors of a run's checkpoint.
func checkpointWeights(t *testing.T, out string, step int) map[string][]byte {
	t.Helper()
	c, err := safetensors.OpenCheckpoint(filepath.Join(out, checkpointsDir, checkpointName(step), weightsDir))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	all := map[string][]byte{}
	for _, name := range c.Names() {
		info, _ := c.Tensor(name)
		all[name] = bytes.Clone(info.Data)
	}
	return all
}

// Rollout and trainer agree on every token while the choice of keys changes between steps, and a replay comes to the
// same weights.
func TestIndexersLearnInRL(t *testing.T) {
	out := filepath.Join(t.TempDir(), "run")
	if _, err := runTiny(t, out, false, append(tinyDSA(testshape.RL()...), "indexer.stage=sparse", "rl.minibatches=2",
		"run.save_every=2")...); err != nil {
		t.Fatal(err)
	}
	exact(t, out)
	if n := len(indexerLosses(t, out)); n != 12 {
		t.Errorf("%d steps of indexers that learn, want 12", n)
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	res, err := Replay(context.Background(), out, []string{"device.threads=2", "run.micro_batch=3"}, log)
	if err != nil || res.Err() != nil || res.Tokens < 500 || res.Checkpoints == 0 || res.Steps != 6 {
		t.Errorf("%v (%v)", res, err)
	}
}

package train

import (
	"path/filepath"
	"testing"

	"lockstep/train/testshape"
)

// Rollouts and trainer agree on every bit by either form of latent attention, whatever the plan; and the forms are not
// the same arithmetic.
func TestLearnLatent(t *testing.T) {
	results := map[string]bool{}
	for _, latent := range []string{"expanded", "absorbed"} {
		base := tinyDSA(append(testshape.RL(), "definition.latent="+latent)...)
		out := filepath.Join(t.TempDir(), "run")
		want, err := runTiny(t, out, false, base...)
		if err != nil {
			t.Fatal(err)
		}
		exact(t, out)
		results[want] = true
		set := []string{"rollout.slots=1", "rollout.page_rows=3", "run.micro_batch=3", "run.recompute=true",
			"device.threads=2"}
		if got, err := runTiny(t, filepath.Join(t.TempDir(), "run"), false, append(base, set...)...); err != nil ||
			got != want {
			t.Errorf("%q %v: %s, want %s (%v)", latent, set, got, want, err)
		}
	}
	if len(results) != 2 {
		t.Error("both forms end in the same weights: the setting does nothing")
	}
}

package setup

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"lockstep/kernels"
	"lockstep/serve"
	"lockstep/train/testshape"
)

// What only runs a shape's model takes no memory for training, and the proof holds without.
func TestOnShape(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tiny.toml")
	if err := os.WriteFile(path, []byte(testshape.Tiny), 0o600); err != nil {
		t.Fatal(err)
	}
	err := OnShape(path, nil, kernels.BreakNone, func(s serve.Ranks) error {
		if n := len(s.Model.Trained()); n > 0 {
			t.Errorf("%d parameters have gradients", n)
		}
		rep, err := serve.Verify(context.Background(), s, serve.VerifyOptions{Tokens: 200})
		if err != nil {
			return err
		}
		return rep.Err()
	})
	if err != nil {
		t.Fatal(err)
	}
}

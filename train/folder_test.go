package train

import (
	"os"
	"path/filepath"
	"testing"

	"lockstep/configs"
	"lockstep/train/runlog"
	"lockstep/train/testshape"
)

// Without --out a run takes the next free folder, in a fresh clone too, and --resume the last one.
func TestRunFolder(t *testing.T) {
	t.Chdir(t.TempDir())
	s, err := configs.Parse("mine.toml", []byte(testshape.Tiny), []string{"run.name=mine"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := runFolder(s, "", true); err == nil {
		t.Error("there is nothing to resume, and no error")
	}
	for _, want := range []string{"mine", "mine-2", "mine-3"} {
		want = filepath.Join("runs", want)
		got, err := runFolder(s, "", false)
		if err != nil || got != want {
			t.Fatalf("%q, want %q (%v)", got, want, err)
		}
		if err := os.MkdirAll(got, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := runlog.WriteFile(filepath.Join(got, runlog.ShapeFile), s.TOML()); err != nil {
			t.Fatal(err)
		}
		if got, err := runFolder(s, "", true); err != nil || got != want {
			t.Errorf("resumes %q, want %q (%v)", got, want, err)
		}
	}
	s.Run.Out = "elsewhere"
	if got, err := runFolder(s, "", false); err != nil || got != "elsewhere" {
		t.Errorf("%q (%v)", got, err)
	}
}

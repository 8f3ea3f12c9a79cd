package data

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/data/ordered"
)

// A line that is too long is refused by its place, before much of it is read.
func TestLongLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "long.jsonl")
	text := "{}\n{\"ids\": [" + strings.Repeat("1, ", 6<<20) + "1]}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	err := EachLine(path, func(int, *ordered.Dict) error { return nil })
	if err == nil || !strings.HasSuffix(err.Error(), "long.jsonl:2: the line has more than 16 MiB, shorten it") {
		t.Errorf("%v", err)
	}
	err = EachLine(os.DevNull, func(int, *ordered.Dict) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("%v", err)
	}
}

// asLong is a codec whose texts are as long as their ids.
type asLong struct{ Codec }

func (asLong) Decode(ids []int32) string { return strings.Repeat("x", len(ids)) }

// A long sample is printed in time that grows with its length, not with the square of it.
func TestMarkedLong(t *testing.T) {
	s := Sample{IDs: make([]int32, 400_000), Targets: make([]int32, 400_000)}
	for i := range s.Targets {
		s.Targets[i] = -1
	}
	made := testing.AllocsPerRun(1, func() {
		if got := s.Marked(asLong{}, Brackets, 0); len(got) != len(s.IDs)+1 {
			t.Errorf("%d characters", len(got))
		}
	})
	if made > 1000 {
		t.Errorf("%v allocations", made)
	}
}

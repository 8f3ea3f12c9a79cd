package bench

import (
	"bytes"
	"context"
	"regexp"
	"strings"
	"testing"
	"time"
)

// Every share that the host's cores update has a line, and the host alone.
func TestBenchUpdate(t *testing.T) {
	var out bytes.Buffer
	o := UpdateOptions{Device: "cpu", Ranks: 2, Parameters: 1, Host: []int{0, 50, 100},
		Each: time.Millisecond, Out: &out}
	if err := Update(context.Background(), o); err != nil {
		t.Fatal(err)
	}
	want := `(?s)^2 ranks, each cpu .*, 1 M parameters in bf16\n.* +\d\.\d\d  0% by the host.* 50% by .*` +
		` 100% by .* the host alone\n$`
	if !regexp.MustCompile(want).MatchString(out.String()) {
		t.Errorf("%s\nwant %s", &out, want)
	}
	for want, o := range map[string]UpdateOptions{"--ranks 0": {Parameters: 1},
		"--host 101": {Ranks: 1, Parameters: 1, Host: []int{101}}} {
		if err := Update(context.Background(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q: %v", want, err)
		}
	}
}

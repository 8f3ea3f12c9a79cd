package train

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func TestPlainProgress(t *testing.T) {
	var out bytes.Buffer
	clock := time.Unix(0, 0)
	p := newProgress(&out, false, 10, 2, func() time.Time { return clock })
	for step := 3; step <= 10; step++ {
		clock = clock.Add(2 * time.Second)
		p.Step(step, "loss 0.5", "7 tokens/s")
		if step == 5 {
			p.Note("step %d: accuracy %d%%", step, 40)
		}
	}
	p.Close()
	want := `step 3/10  loss 0.5  7 tokens/s  14s left
step 5: accuracy 40%
step 6/10  loss 0.5  7 tokens/s  8s left
step 9/10  loss 0.5  7 tokens/s  2s left
step 10/10  loss 0.5  7 tokens/s
`
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}

func TestTerminalProgress(t *testing.T) {
	var out bytes.Buffer
	clock := time.Unix(0, 0)
	p := newProgress(&out, true, 4, 0, func() time.Time { return clock })
	for step := 1; step <= 4; step++ {
		clock = clock.Add(time.Second)
		time.Sleep(110 * time.Millisecond) // longer than the bar's throttle, which has the real clock
		p.Step(step, "loss 0.5")
	}
	p.Note("done")
	p.Close()
	for _, want := range []string{"(1/4)", "loss 0.5  3s left", "(4/4)", "\r", "done\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in %q", want, out.String())
		}
	}
	if strings.Count(out.String(), "\n") > 3 {
		t.Errorf("the bar does not stay on its line: %q", out.String())
	}
}

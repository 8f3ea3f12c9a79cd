package train

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// plainEvery is the time between lines where there is no terminal.
const plainEvery = 5 * time.Second

// Progress shows how far a run is: one line that is updated in place on a terminal, elsewhere a line every few seconds.
// Errors of writing are ignored: they are no reason to end a run.
type Progress struct {
	w            io.Writer
	bar          *progressbar.ProgressBar // nil: plain lines
	total, start int
	now          func() time.Time
	began, shown time.Time // shown is zero before the first line
}

// NewProgress starts at step start (0, or that of the checkpoint resumed from) of total.
func NewProgress(w *os.File, total, start int) *Progress {
	return newProgress(w, term.IsTerminal(int(w.Fd())), total, start, time.Now)
}

func newProgress(w io.Writer, terminal bool, total, start int, now func() time.Time) *Progress {
	p := &Progress{w: w, total: total, start: start, now: now, began: now()}
	if terminal {
		p.bar = progressbar.NewOptions(total,
			progressbar.OptionSetWriter(w),
			progressbar.OptionUseANSICodes(true),
			progressbar.OptionSetWidth(24),
			progressbar.OptionShowCount(),
			progressbar.OptionSetPredictTime(false), // its estimate would count the steps before start as done now
			progressbar.OptionShowDescriptionAtLineEnd(),
			progressbar.OptionThrottle(100*time.Millisecond),
			progressbar.OptionSetTheme(progressbar.ThemeUnicode))
	}
	return p
}

// Step shows that a step (counted from 1) is done, followed by fields such as "loss 0.412".
func (p *Progress) Step(step int, fields ...string) {
	now := p.now()
	if step < p.total && step > p.start {
		left := now.Sub(p.began) / time.Duration(step-p.start) * time.Duration(p.total-step)
		fields = append(fields, left.Round(time.Second).String()+" left")
	}
	text := strings.Join(fields, "  ")
	if p.bar != nil {
		p.bar.Describe(text)
		_ = p.bar.Set(step)
		return
	}
	if p.shown.IsZero() || step >= p.total || now.Sub(p.shown) >= plainEvery {
		p.shown = now
		fmt.Fprintf(p.w, "step %d/%d  %s\n", step, p.total, text)
	}
}

// Note prints a line of its own, such as the result of an evaluation.
func (p *Progress) Note(format string, args ...any) {
	if p.bar != nil {
		_ = p.bar.Clear()
	}
	fmt.Fprintf(p.w, format+"\n", args...)
}

// Close leaves the cursor on a new line.
func (p *Progress) Close() {
	if p.bar != nil {
		_ = p.bar.Exit()
		fmt.Fprintln(p.w)
	}
}

package data

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// Program is an external program that is run once for each batch of work: it reads lines from stdin and writes lines to
// stdout. No shell reads its arguments.
type Program struct {
	argv    []string // argv[0] is a path
	timeout time.Duration
}

// NewProgram finds the program.
func NewProgram(argv []string, timeout time.Duration) (*Program, error) {
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return nil, fmt.Errorf("%w: give an existing executable program", err)
	}
	return &Program{append([]string{path}, argv[1:]...), timeout}, nil
}

// leftover is how long processes that an ended program has started may keep its output open.
const leftover = time.Second

// Run starts the program with in on stdin and calls read with its stdout, of at most room bytes. The program has a
// process group of its own, which is killed at the end. An error, also that of read, ends with the last line of stderr.
func (p *Program) Run(ctx context.Context, in []byte, room int, read func(out []byte) error) error {
	ctx, stop := context.WithTimeoutCause(ctx, p.timeout, fmt.Errorf("did not end within %v: make it faster or raise "+
		"the time-out", p.timeout))
	defer stop()
	out, notes := head{room: room}, tail{}
	cmd := exec.CommandContext(ctx, p.argv[0], p.argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = bytes.NewReader(in), &out, &notes, leftover
	ownGroup(cmd)
	cmd.Cancel = func() error {
		endGroup(cmd)
		return nil
	}
	err := cmd.Run()
	if cmd.Process != nil {
		endGroup(cmd) // what it has left behind, if anything
	}
	switch {
	case out.full:
		return fmt.Errorf("wrote more than %d bytes to stdout: write only the result there and everything else "+
			"to stderr",
			room)
	case errors.Is(err, exec.ErrWaitDelay):
		err = errors.New("exited while a process that it started kept its output open: wait for that process")
	case err != nil && ctx.Err() != nil:
		err = context.Cause(ctx)
	}
	if err == nil {
		err = read(out.text)
	}
	if err != nil {
		return fmt.Errorf("%w%s", err, notes.last())
	}
	return nil
}

// head keeps what is written up to a limit and fails beyond it.
type head struct {
	text []byte
	room int
	full bool
}

var errFull = errors.New("too much output")

func (h *head) Write(p []byte) (int, error) {
	if len(h.text)+len(p) > h.room {
		h.full = true
		return 0, errFull
	}
	h.text = append(h.text, p...)
	return len(p), nil
}

// tail keeps the end of what is written.
type tail struct{ text []byte }

const tailSize = 4 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.text = append(t.text, p...)
	t.text = t.text[max(0, len(t.text)-tailSize):]
	return len(p), nil
}

// last is the last line that is not blank, to end an error with.
func (t *tail) last() string {
	line, ok := FinalLine.find(string(t.text), "")
	if !ok {
		return ""
	}
	return fmt.Sprintf("; its stderr ends with %.300q", strings.ToValidUTF8(line, "\ufffd"))
}

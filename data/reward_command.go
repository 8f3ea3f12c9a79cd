package data

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// program judges a batch by running once.
type program struct {
	argv    []string // argv[0] is a path
	timeout time.Duration
}

// leftover is how long a program that has ended, or was killed, may leave its output open through what it has started.
const leftover = time.Second

// outputOf bounds what a program or a server may write for n answers, in bytes.
func outputOf(n int) int { return 1<<16 + n<<10 }

func (p program) ask(ctx context.Context, asked []Answer) ([]float64, error) {
	in, err := jsonLines(asked)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithTimeoutCause(ctx, p.timeout, fmt.Errorf("gave no rewards for %d answers within %v: make it faster or raise the time-out", len(asked), p.timeout))
	defer stop()
	out, notes := head{room: outputOf(len(asked))}, tail{}
	cmd := exec.CommandContext(ctx, p.argv[0], p.argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = bytes.NewReader(in), &out, &notes, leftover
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error {
		endGroup(cmd)
		return nil
	}
	err = cmd.Run()
	if cmd.Process != nil {
		endGroup(cmd) // what it has left behind, if anything
	}
	switch {
	case out.full:
		return nil, fmt.Errorf(`wrote more than %d bytes for %d answers: write {"reward": number} for each to stdout and all else to stderr`, outputOf(len(asked)), len(asked))
	case errors.Is(err, exec.ErrWaitDelay):
		err = errors.New("ended and left its output open to a program that it had started: wait for that one")
	case err != nil && ctx.Err() != nil:
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("%w%s", err, notes.last())
	}
	rewards, err := readRewards(out.text)
	if err == nil && len(rewards) != len(asked) {
		err = fmt.Errorf("wrote %d lines for %d answers: want one for each, in order", len(rewards), len(asked))
	}
	if err != nil {
		return nil, fmt.Errorf("%w%s", err, notes.last())
	}
	return rewards, nil
}

// endGroup kills what is left of a program's process group. There may be nothing, or what has ended and was not waited for (EPERM on macOS).
func endGroup(cmd *exec.Cmd) {
	if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH && err != syscall.EPERM {
		panic(fmt.Sprintf("data: killing process group %d: %v", cmd.Process.Pid, err))
	}
}

// jsonLines writes one answer a line.
func jsonLines(asked []Answer) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	for _, a := range asked {
		if err := enc.Encode(a); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), nil
}

// readRewards reads lines of {"reward": number}; other keys are ignored. JSON has no number that is not finite.
func readRewards(text []byte) ([]float64, error) {
	text = bytes.TrimSuffix(text, []byte("\n"))
	if len(text) == 0 {
		return nil, nil
	}
	var rewards []float64
	for line := range bytes.SplitSeq(text, []byte("\n")) {
		var v struct{ Reward *float64 }
		if err := json.Unmarshal(line, &v); err != nil || v.Reward == nil {
			return nil, fmt.Errorf(`line %d on stdout is %.80q: want {"reward": number}`, len(rewards)+1, line)
		}
		rewards = append(rewards, *v.Reward)
	}
	return rewards, nil
}

// head keeps the beginning of what is written and refuses what has no room.
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

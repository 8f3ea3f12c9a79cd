//go:build unix

package data

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// lengthJudge, set in its environment, makes the test binary a judge whose reward is the length of the text.
const lengthJudge = "LOCKSTEP_TEST_LENGTH_JUDGE"

func TestMain(m *testing.M) {
	if os.Getenv(lengthJudge) == "" {
		os.Exit(m.Run())
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var a Answer
		if err := json.Unmarshal(lines.Bytes(), &a); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Printf("{\"reward\": %d, \"why\": %q}\n", len(a.Text), a.Want)
	}
}

// programOf is a judge made of a program, and n answers whose texts have 0, 1, 2, ... letters.
func programOf(t *testing.T, timeout time.Duration, parallel, n int, command ...string) (Rewarder, []Answer) {
	t.Helper()
	q := questionsOf(t, `{"prompt": "p", "answer": "w"}`, testOptions())
	r, err := NewRewarder(RewardOptions{Kind: "command", Command: command, Timeout: timeout, Parallel: parallel}, q)
	if err != nil {
		t.Fatal(err)
	}
	var answers []Answer
	for i := range n {
		answers = append(answers, q.Answer(0, strings.Repeat("x", i)))
	}
	return r, answers
}

// shell is programOf a script. It fails if the judge fails with another error than want, or takes as long as the tests'
// longest sleeps.
func shell(t *testing.T, n int, script, want string) {
	t.Helper()
	timeout := time.Minute
	if strings.Contains(want, "within") {
		timeout = 300 * time.Millisecond
	}
	start := time.Now()
	r, answers := programOf(t, timeout, 1, n, "sh", "-c", script)
	_, err := r.Rewards(context.Background(), answers)
	if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") ||
		!strings.HasPrefix(err.Error(), `reward command "sh -c `) {
		t.Errorf("%s: %v, want one line with %q", script, err, want)
	}
	if d := time.Since(start); d > 20*time.Second {
		t.Errorf("%s: took %v", script, d)
	}
}

// Order is kept however a batch is cut, also where there are more parts than answers.
func TestCommandOrder(t *testing.T) {
	t.Setenv(lengthJudge, "1")
	for _, parallel := range []int{1, 3, 8} {
		for _, n := range []int{0, 1, 2, 7, 1000} {
			r, answers := programOf(t, time.Minute, parallel, n, os.Args[0])
			got, err := r.Rewards(context.Background(), answers)
			if err != nil || len(got) != n {
				t.Fatalf("%d rewards of %d: %v", len(got), n, err)
			}
			for i, x := range got {
				if x != float64(i) {
					t.Fatalf("%d at once: reward %d is %v", parallel, i, x)
				}
			}
		}
	}
}

func TestCommandNumbers(t *testing.T) {
	r, answers := programOf(t, time.Minute, 1, 3, "printf",
		`{"reward": -1.5e-3}\r\n {"why": "x", "reward": 0} \n{"reward": 1}`)
	if got, err := r.Rewards(context.Background(), answers); err != nil ||
		!reflect.DeepEqual(got, []float64{-1.5e-3, 0, 1}) {
		t.Errorf("%v, %v", got, err)
	}
}

func TestCommandFails(t *testing.T) {
	const one = `echo '{"reward": 1}'; `
	for script, want := range map[string]string{
		"exit 3":                         "exit status 3",
		one + one + one + "exit 3":       "exit status 3",
		"echo a >&2; echo b >&2; exit 1": `exit status 1; its stderr ends with "b"`,
		"kill -9 $$":                     "signal: killed",
		"":                               "wrote 0 lines for 2 answers",
		one:                              "wrote 1 lines for 2 answers",
		one + one + one:                  "wrote 3 lines for 2 answers",
		one + "echo":                     `line 2 on stdout is ""`,
		one + "echo hm":                  `line 2 on stdout is "hm": want {"reward": number}`,
		one + `echo '{"reward": NaN}'`:   `line 2 on stdout is "{\"reward\": NaN}"`,
		one + `echo '{"reward": 1e999}'`: `line 2 on stdout is`,
		one + `echo '{"reward": null}'`:  `line 2 on stdout is`,
		one + `echo '{"reward": "1"}'`:   `line 2 on stdout is`,
		one + `echo '{"score": 1}'`:      `line 2 on stdout is`,
		one + `echo '1'`:                 `line 2 on stdout is "1"`,
		one + `echo '{"reward": 1} x'`:   `line 2 on stdout is`,
		"yes":                            "wrote more than 67584 bytes to stdout",
		"sleep 30":                       "did not end within 300ms: make it faster",
		"echo loading >&2; sleep 30": `within 300ms: make it faster or raise the time-out; its stderr ` +
			`ends with "loading"`,
		"sleep 30 & exit 0":                     "kept its output open: wait for that process",
		"trap '' TERM INT; sleep 30; exit":      "within 300ms",
		"printf 'a\\nbad \\377\\n' >&2; exit 1": `its stderr ends with "bad �"`,
	} {
		shell(t, 2, script, want)
	}
}

// A program that reads nothing, and one that writes much before it reads, are not waited for in vain.
func TestCommandPipes(t *testing.T) {
	for _, script := range []string{
		`i=0; while [ $i -lt 300 ]; do echo '{"reward": 1}'; i=$((i+1)); done`,
		`head -c 200000 /dev/zero >&2; i=0; while [ $i -lt 300 ]; do echo '{"reward": 1}'; i=$((i+1)); done; cat ` +
			`>/dev/null`,
	} {
		r, answers := programOf(t, time.Minute, 1, 300, "sh", "-c", script)
		answers[0].Text = strings.Repeat("x", 1<<20)
		if got, err := r.Rewards(context.Background(), answers); err != nil || len(got) != 300 {
			t.Errorf("%d rewards, %v", len(got), err)
		}
	}
}

// gone says whether a process has ended, waiting for it a while.
func gone(t *testing.T, file string) bool {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err == nil && strings.Contains(string(stat), ") Z ") { // not waited for yet
			return true
		}
		if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			return true
		}
		time.Sleep(20 * time.Millisecond)
	}
	return false
}

// At the time-out, when the context ends and where it is left behind, a child of the program ends too.
func TestCommandChildren(t *testing.T) {
	dir := t.TempDir()
	for name, script := range map[string]string{
		"slow": "sleep 30 & echo $! >$0; wait", "left": "sleep 30 & echo $! >$0",
		"failed": "sleep 30 & echo $! >$0; exit 1",
		"quiet":  "sleep 30 >/dev/null 2>&1 </dev/null & echo $! >$0",
	} {
		timeout := time.Minute
		if name == "slow" {
			timeout = 2 * time.Second
		}
		file := filepath.Join(dir, name)
		r, answers := programOf(t, timeout, 1, 1, "sh", "-c", script, file)
		if _, err := r.Rewards(context.Background(), answers); err == nil {
			t.Errorf("%s: no error", name)
		}
		if !gone(t, file) {
			t.Errorf("%s: a child of the program is alive", name)
		}
	}
	file := filepath.Join(dir, "cancelled")
	r, answers := programOf(t, time.Minute, 1, 1, "sh", "-c", "sleep 30 & echo $! >$0.part; mv $0.part $0; wait", file)
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		for range 1000 {
			if _, err := os.Stat(file); err == nil {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		stop()
	}()
	if _, err := r.Rewards(ctx, answers); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if !gone(t, file) {
		t.Error("cancelled: a child of the program is alive")
	}
}

// The first part that fails ends the others, and its error is the one that is told.
func TestCommandFirstError(t *testing.T) {
	r, answers := programOf(t, time.Minute, 2, 2, "sh", "-c",
		`read line; case $line in *'"x"'*) echo no >&2; exit 4;; esac; sleep 30`)
	start := time.Now()
	_, err := r.Rewards(context.Background(), answers)
	if err == nil || !strings.Contains(err.Error(), `exit status 4; its stderr ends with "no"`) ||
		time.Since(start) > 20*time.Second {
		t.Errorf("%v after %v", err, time.Since(start))
	}
}

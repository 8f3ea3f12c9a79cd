package train

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/parallel"
	"lockstep/train/profile"
	"lockstep/train/runlog"
	"lockstep/train/setup"
	"lockstep/train/testshape"
)

// timeSteps returns what TimeSteps prints for two ranks.
func timeSteps(t *testing.T, steps int, set ...string) (string, error) {
	t.Helper()
	set = append([]string{"parallel.ranks=2", "warm_start.steps=2"}, set...)
	s, err := testshape.Parse(append(testshape.RL(), set...))
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	var out bytes.Buffer
	err = TimeSteps(context.Background(), s, TimeOptions{Steps: steps, Out: &out, Log: log})
	return out.String(), err
}

// Steps of reinforcement learning are timed in parts that add up, and end in the bits of one rank.
func TestTimeSteps(t *testing.T) {
	for _, set := range [][]string{nil, {"parallel.experts=2", "lora.rank=4", "lora.targets=q_proj", "rl.kl_coef=0.1",
		"rl.objective=dapo"}, {"parallel.weights=sharded", "rl.staleness=1"}} {
		out, err := timeSteps(t, 2, set...)
		if err != nil {
			t.Fatalf("%v: %v\n%s", set, err, out)
		}
		head := regexp.MustCompile(`2 steps of 16 answers, (\d\d+) tokens, behind 2 of warm`).FindStringSubmatch(out)
		if head == nil || number(t, head[1]) > 16*24 || // the most that answers have
			!strings.Contains(out, "one rank, s  2 ranks, s  ratio") ||
			!strings.Contains(out, "same on every bit: SHA-256 ") {
			t.Errorf("%v:\n%s", set, out)
		}
		one, many := 0.0, 0.0
		rows := regexp.MustCompile(`(?m)^ +(\d+\.\d+) +(\d+\.\d+) +(\S+)  `).FindAllStringSubmatch(out, -1)
		if len(rows) != 7 {
			t.Fatalf("%d lines of seconds in\n%s", len(rows), out)
		}
		first, second := number(t, rows[0][1]), number(t, rows[0][2])
		for i, row := range rows {
			a, b := number(t, row[1]), number(t, row[2])
			if ratio := number(t, row[3]); a > 0.01 && b > 0.01 && math.Abs(ratio-a/b) > 0.02*ratio+0.01 {
				t.Errorf("%v: ratio %v of %v to %v", set, ratio, a, b)
			}
			switch i {
			case 0:
				one, many = -a, -b
			case 3, 4: // on devices; the optimizer may take less than is printed
				if i == 3 && (a <= 0 || b <= 0) {
					t.Errorf("%v: packs take %v and %v s in\n%s", set, a, b, out)
				}
			case 6:
				if a < first || b < second {
					t.Errorf("%v: a longest step of %v and %v s, medians of %v and %v", set, a, b, first, second)
				}
			default:
				one, many = one+a, many+b
			}
		}
		if math.Abs(one) > 0.0003 || math.Abs(many) > 0.0003 {
			t.Errorf("%v: parts leave %v and %v s of a step:\n%s", set, one, many, out)
		}
	}
	a, err := timeSteps(t, 1)
	if err != nil {
		t.Fatal(err)
	}
	b, err := timeSteps(t, 1, "rollout.seed=2")
	_, digest, _ := strings.Cut(a, "SHA-256 ")
	if err != nil || digest == "" || strings.HasSuffix(b, digest) {
		t.Errorf("%v: other answers have the digest %s", err, digest)
	}
}

// The steps that are timed are those of a run: its answers, of one step more.
func TestTimedSteps(t *testing.T) {
	s, err := testshape.Parse(append(testshape.RL(), "warm_start.steps=2", "run.steps=3"))
	if err != nil {
		t.Fatal(err)
	}
	run, timedOut := filepath.Join(t.TempDir(), "run"), t.TempDir()
	if err := runDevices(context.Background(), t, s, run, delayedRanks(t, s, 0)); err != nil {
		t.Fatal(err)
	}
	err = setup.OnRanks(setup.Device(s), &s.Parallel, func(w *parallel.World, r *parallel.Rank) error {
		j := &job{ctx: context.Background(), shape: s, options: Options{Log: os.Stderr}, folder: timedOut, world: w}
		return errors.Join(new(timed).take(j, r, TimeOptions{Steps: 2}), j.close())
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := episodes(t, timedOut), episodes(t, run); got != want {
		t.Errorf("answers\n%s\nwant\n%s", got, want)
	}
}

// A step does not wait until its answers are written; the next one does, and so do a checkpoint and the end of a run.
func TestAnswersAreWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "no such folder")
	l := &learner{folder: dir}
	j := &job{learner: l, folder: dir}
	answers := []*runlog.Episode{{Prompt: []int32{1}, IDs: []int32{2}, LogProbs: []float32{-1}, Versions: []int{0}}}
	for what, wait := range map[string]func() error{
		"the next step": func() error { return l.log(answers) }, "a checkpoint": j.save, "the end of a run": j.close,
	} {
		if err := l.log(answers); err != nil {
			t.Fatalf("a step waits: %v", err)
		}
		if err := wait(); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s goes on behind answers that are not written: %v", what, err)
		}
		if err := l.logged(); err != nil {
			t.Errorf("%s said so already: %v", what, err)
		}
	}
}

func number(t *testing.T, text string) float64 {
	t.Helper()
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestTimeStepsBad(t *testing.T) {
	if out, err := timeSteps(t, 1, "parallel.ranks=1"); err == nil || out != "" ||
		!strings.HasPrefix(err.Error(), "parallel.ranks: is 1") {
		t.Errorf("one rank: %v, printed %q", err, out)
	}
	if _, err := timeSteps(t, 0); err == nil || !strings.HasPrefix(err.Error(), "--steps 0") {
		t.Errorf("no steps: %v", err)
	}
}

// timedDevice is a CPU that says each draw took it a second, and each update of weights.
type timedDevice struct {
	*cpu.Device
	draws, updates int
}

func (d *timedDevice) Sample(ids, logits kernels.Tensor, rows []kernels.Sampling) {
	d.draws++
	d.Device.Sample(ids, logits, rows)
}

func (d *timedDevice) AdamW(w, master, m, v, grad, factor kernels.Tensor, s kernels.AdamW,
	then ...kernels.Moments) {
	d.updates++
	d.Device.AdamW(w, master, m, v, grad, factor, s, then...)
}

func (d *timedDevice) StartProfile() { d.draws, d.updates = 0, 0 }

func (d *timedDevice) StopProfile() []kernels.KernelTime {
	return []kernels.KernelTime{{Kernel: "draw", Seconds: float64(d.draws)},
		{Kernel: "update", Seconds: float64(d.updates)}}
}

// Kernels of one step more are timed, those of sampling apart from those of the update. Devices that time none are
// refused before anything is computed.
func TestKernelsOfSteps(t *testing.T) {
	s, err := testshape.Parse(append(testshape.RL(), "parallel.ranks=2"))
	if err != nil {
		t.Fatal(err)
	}
	take := func(list []kernels.Device) (of timed, err error) {
		w, err := parallel.Open(list, parallel.Mesh{Experts: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		dir := t.TempDir()
		err = w.Lead(func(r *parallel.Rank) error {
			j := &job{ctx: context.Background(), shape: s, options: Options{Log: os.Stderr}, folder: dir, world: w}
			return errors.Join(of.take(j, r, TimeOptions{Steps: 1, Kernels: true}), j.close())
		})
		return of, err
	}
	var plain, list []kernels.Device
	for _, d := range delayedRanks(t, s, 0) {
		plain, list = append(plain, d), append(list, &timedDevice{Device: d})
	}
	if of, err := take(plain); err == nil || !strings.HasPrefix(err.Error(), "--kernels: ") || of.answers > 0 {
		t.Errorf("error %v behind %d answers", err, of.answers)
	}
	of, err := take(list)
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		got  profile.Step
		want string
	}{"sampling": {of.sampled, "draw"}, "the update": {of.learned, "update"}} {
		for _, k := range c.got.Times {
			if (k.Seconds > 0) != (k.Kernel == c.want) {
				t.Errorf("%s: %v", what, c.got.Times)
			}
		}
		if len(c.got.Times) != 2 || c.got.Seconds <= 0 {
			t.Errorf("%s: %v", what, c.got)
		}
	}
}

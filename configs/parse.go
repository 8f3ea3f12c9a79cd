package configs

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/BurntSushi/toml"
)

// Default is a shape with every default and nothing to train: it does not pass the checks of [Parse].
func Default() *Shape {
	s := &Shape{}
	for _, f := range schema {
		if f.zero == nil {
			continue
		}
		if err := f.assign(s, f.zero); err != nil {
			panic(fmt.Sprintf("configs: default of %s %v", f.key, err))
		}
	}
	return s
}

// Load reads the shape of a file and puts the overrides ("table.key=value") on it. The error has one line for each
// violation.
func Load(path string, set []string) (*Shape, error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file: give the path of a shape (.toml)", path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%w: give the path of a shape (.toml)", err)
	}
	return Parse(path, text, set)
}

// Parse is [Load] of a text; name is the file's in errors, and its base is the run's name where the shape gives none.
func Parse(name string, text []byte, set []string) (*Shape, error) {
	if !utf8.Valid(text) {
		return nil, fmt.Errorf("%s: not TOML: the text is not UTF-8, fix its encoding", name)
	}
	if err := checkText(name, string(text)); err != nil {
		return nil, err
	}
	var root map[string]any
	if _, err := toml.Decode(string(text), &root); err != nil {
		return nil, syntaxError(name, err)
	}
	r := &reader{shape: Default(), name: name, lines: keyLines(string(text)), flags: map[string]string{},
		bad: map[string]bool{}}
	r.table("", root)
	for _, flag := range set {
		r.override(flag)
	}
	r.publish()
	r.resolve()
	r.shorten()
	r.check()
	if len(r.problems) > 0 {
		return nil, r.err()
	}
	return r.shape, nil
}

// ParseParallel is the table [parallel] of a command that has no shape, from overrides of its keys.
func ParseParallel(set []string) (Parallel, error) {
	r := &reader{shape: Default(), flags: map[string]string{}, bad: map[string]bool{}}
	foreign := func(key string) bool { return !strings.HasPrefix(key, parallelKey+".") }
	for _, flag := range set {
		if key, _, _ := strings.Cut(flag, "="); foreign(key) {
			r.flags[key] = quoteFlag(flag)
			r.report(key, "without a shape only keys of [parallel] can be set")
			continue
		}
		r.override(flag)
	}
	for _, rule := range rules {
		if what := r.broken(rule); what != "" && !slices.ContainsFunc(rule.keys, foreign) {
			r.report(r.written(rule.keys), what)
		}
	}
	if r.shape.Parallel.Context != 1 {
		r.report("parallel.context", "divides the packs of a training step, remove it: there is none")
	}
	if r.shape.Parallel.Stages != 1 {
		r.report("parallel.stages", "divides the blocks of a training step, remove it: there is none")
	}
	if len(r.problems) > 0 {
		return Parallel{}, r.err()
	}
	return r.shape.Parallel, nil
}

// parallelKey is the table that says how ranks divide the work.
const parallelKey = "parallel"

// shorten lowers a warm-up of the file to the steps of an override that knows nothing of it.
func (r *reader) shorten() {
	s := r.shape
	updates := 1
	if s.RL.Objective != "" {
		updates = s.RL.Minibatches * s.RL.Epochs
	}
	for _, of := range []struct {
		warmup, steps string
		value         *int
		most          int
	}{
		{"optim.warmup_steps", "run.steps", &s.Optim.WarmupSteps, s.Run.Steps * updates},
		{"warm_start.warmup_steps", "warm_start.steps", &s.WarmStart.WarmupSteps, s.WarmStart.Steps},
	} {
		_, warm := r.flags[of.warmup]
		_, short := r.flags[of.steps]
		if warm || !short || r.bad[of.steps] || r.bad[of.warmup] || of.most <= 0 || *of.value <= of.most {
			continue
		}
		s.Notes = append(s.Notes, fmt.Sprintf("%s: %d is more than the steps of --set %s, lowered to %d", of.warmup,
			*of.value, of.steps, of.most))
		*of.value = of.most
	}
}

func syntaxError(name string, err error) error {
	var p toml.ParseError
	if !errors.As(err, &p) {
		return fmt.Errorf("%s: not TOML: %w", name, err)
	}
	return fmt.Errorf("%s:%d: not TOML: %s", name, p.Position.Line, strings.ReplaceAll(p.Message, "\n", " "))
}

// reader fills a shape and collects what is wrong.
type reader struct {
	shape    *Shape
	name     string
	lines    map[string]int    // of the keys in the file
	flags    map[string]string // the override that set a key last
	bad      map[string]bool   // keys without a usable value
	problems []problem
}

type problem struct {
	line int // for sorting; overrides come last
	text string
}

// report notes what is wrong with a key, where the user wrote it.
func (r *reader) report(key, what string) {
	r.bad[key] = true
	if flag, ok := r.flags[key]; ok {
		r.problems = append(r.problems, problem{math.MaxInt, fmt.Sprintf("--set %s: %s: %s", flag, quoteFlag(key),
			what)})
		return
	}
	line, place := r.lines[key], r.name
	for k := key; line == 0 && k != ""; line = r.lines[k] {
		k = k[:max(0, strings.LastIndexByte(k, '.'))] // the table that the key is missing from
	}
	if line > 0 {
		place = fmt.Sprintf("%s:%d", r.name, line)
	}
	r.problems = append(r.problems, problem{line, fmt.Sprintf("%s: %s: %s", place, key, what)})
}

// mostProblems are as many as a user may want to read at once.
const mostProblems = 20

func (r *reader) err() error {
	slices.SortStableFunc(r.problems, func(a, b problem) int { return a.line - b.line })
	var errs []error
	for i, p := range r.problems {
		if i == mostProblems {
			errs = append(errs, fmt.Errorf("and %d more", len(r.problems)-i))
			break
		}
		errs = append(errs, errors.New(p.text))
	}
	return errors.Join(errs...)
}

// table assigns the keys of one table of the file.
func (r *reader) table(prefix string, values map[string]any) {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		key := prefix + quoteKey(name)
		f := byKey[key]
		sub, isTable := values[name].(map[string]any)
		switch {
		case f == nil:
			r.report(key, unknown(key))
		case !f.table():
			if err := f.assign(r.shape, values[name]); err != nil {
				r.report(key, err.Error())
			}
		case isTable:
			r.table(key+".", sub)
		default:
			r.report(key, mistyped(values[name], fmt.Sprintf("a table [%s]", key)).Error())
		}
	}
}

// resolve names the run where the user did not.
func (r *reader) resolve() {
	r.shape.ResolveAuto()
	run := &r.shape.Run
	if run.Name == "" {
		run.Name = strings.TrimSuffix(filepath.Base(r.name), filepath.Ext(r.name))
		if !runName.MatchString(run.Name) {
			run.Name = "run"
		}
	}
}

package report

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"lockstep/configs"
)

// series is a curve of a report: a run, or several whose shapes differ in seeds alone.
type series struct {
	Class string // of the palette
	Runs  []*runData
	name  string
}

// Name is the run's, or what the runs' names begin with and their number.
func (a *series) Name() string {
	if len(a.Runs) == 1 {
		return a.name
	}
	return fmt.Sprintf("%s · %d runs", a.name, len(a.Runs))
}

// seriesClass is the colour of the i-th series, and from the ninth on the style of its line.
func seriesClass(i int) string {
	return string("abcdefgh"[i%8]) + [...]string{"", " dot", " dash"}[i/8%3]
}

// ignored tells whether runs that differ in a key may share a curve: it is a seed, or names the run and its folder.
func ignored(key string) bool {
	last := key[strings.LastIndexByte(key, '.')+1:]
	return last == "seed" || last == "init_seed" || named(key)
}

func named(key string) bool { return key == "run.name" || key == "run.out" }

// groupSeries groups runs, in the order of the first of each.
func groupSeries(runs []*runData) (groups []*series) {
	at := map[string]*series{}
	for _, p := range runs {
		var k strings.Builder
		for _, s := range p.Shape.Settings() {
			if !ignored(s.Key) {
				fmt.Fprintln(&k, s.Key, s.Value)
			}
		}
		a := at[k.String()]
		if a == nil {
			a = &series{Class: seriesClass(len(groups)), name: p.Name}
			at[k.String()], groups = a, append(groups, a)
		}
		a.Runs = append(a.Runs, p)
	}
	for _, a := range groups {
		a.shorten(runs)
	}
	return groups
}

// shorten names a series by the beginning that all of its runs share, where no other run does, else by its first and
// last run.
func (a *series) shorten(all []*runData) {
	if len(a.Runs) == 1 {
		return
	}
	shared := a.name
	for _, p := range a.Runs {
		for !strings.HasPrefix(p.Name, shared) {
			shared = shared[:len(shared)-1]
		}
	}
	shared = strings.TrimRight(strings.ToValidUTF8(shared, ""), "-_./ ")
	other := func(p *runData) bool { return strings.HasPrefix(p.Name, shared) && !slices.Contains(a.Runs, p) }
	if shared == "" || slices.ContainsFunc(all, other) {
		shared = a.Runs[0].Name + " to " + a.Runs[len(a.Runs)-1].Name
	}
	a.name = shared
}

// nameRuns names runs by as much of the end of their folders' paths as tells them apart.
func nameRuns(runs []*runData, dirs []string) {
	parts := make([][]string, len(dirs))
	for i, dir := range dirs {
		parts[i] = strings.Split(filepath.ToSlash(dir), "/")
	}
	for depth := 1; ; depth++ {
		seen := map[string]bool{}
		for i, p := range runs {
			p.Name = strings.Join(parts[i][max(0, len(parts[i])-depth):], "/")
			seen[p.Name] = true
		}
		if len(seen) == len(runs) {
			return
		}
	}
}

// difference is a key whose values differ, with those of each series.
type difference struct {
	Key, Doc string
	Values   []string
}

// differences lists the keys in which the runs differ, names and folders left out. Seeds of a series' runs stand one
// after the other.
func differences(groups []*series) (list []difference) {
	var keys []string
	values := map[string][]string{} // of all runs, by key
	var runs []*runData
	for _, a := range groups {
		runs = append(runs, a.Runs...)
	}
	for i, p := range runs {
		for _, s := range p.Shape.Settings() {
			if values[s.Key] == nil {
				// a key of model.config that others may lack
				keys, values[s.Key] = append(keys, s.Key), slices.Repeat([]string{"–"}, len(runs))
			}
			values[s.Key][i] = s.Value
		}
	}
	for _, key := range keys {
		all := values[key]
		if named(key) || len(slices.Compact(slices.Clone(all))) == 1 {
			continue
		}
		d := difference{Key: key}
		d.Doc, _ = configs.Doc(key)
		for _, a := range groups {
			d.Values = append(d.Values, strings.Join(slices.Compact(all[:len(a.Runs):len(a.Runs)]), ", "))
			all = all[len(a.Runs):]
		}
		list = append(list, d)
	}
	return list
}

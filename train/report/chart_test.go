package report

import (
	"encoding/xml"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An axis has a few marks at round numbers whatever it shows; one of zeros alone reaches to 1.
func TestScale(t *testing.T) {
	for _, c := range []struct{ low, high float64 }{
		{0, 0}, {5, 5}, {-5, -5}, {1, 1 + 1e-15}, {-123.4, -123.39999999999999}, {0, 1e-9}, {1e-300, 1e-300},
		{-1e300, 1e300}, {0, 0.37},
	} {
		s := newScale(c.low, c.high, 200, 0, 5, true)
		if len(s.ticks) < 2 || len(s.ticks) > 8 || !(s.low <= c.low && c.high <= s.high && s.low < s.high) {
			t.Errorf("%g to %g: an axis from %g to %g with marks at %v", c.low, c.high, s.low, s.high, s.ticks)
		}
	}
	if s := newScale(0, 0, 200, 0, 5, true); s.high != 1 {
		t.Errorf("zeros have an axis to %g", s.high)
	}
	f := rlRun(1, 0)
	text := rendered(t, f.write(t, "zeros")) // no token of it was clipped
	if !strings.Contains(text, ">100%<") || strings.Contains(text, "e-10") {
		t.Error("a clip fraction of zeros has no axis to 100%")
	}
}

// A smoothed curve ends within its noise's mean, not on its last point, and keeps what is constant.
func TestSmooth(t *testing.T) {
	points := make([]point, 600) // windows of 21
	for i := range points {
		points[i] = point{X: float64(i), Y: 1, Low: 1, High: 1}
	}
	for i, p := range smooth(points) {
		if p != points[i] {
			t.Fatalf("a constant became %v at %d", p, i)
		}
	}
	points[0].Y, points[599].Y, points[300].Y = 12, 12, 22
	got := smooth(points)
	for i, want := range map[int]float64{
		0: 2, 599: 2, 300: 2, 290: 2, 310: 2, 289: 1, 311: 1, 10: 1 + 11.0/21, 589: 1 + 11.0/21, 11: 1, 588: 1,
	} {
		if math.Abs(got[i].Y-want) > 1e-9 {
			t.Errorf("%g at %d, want %g", got[i].Y, i, want)
		}
	}
}

// Labels of a chart stay inside it and do not overlap, by letters of 7 pixels, and tell runs apart whose names differ
// at the end.
func TestLegend(t *testing.T) {
	var dirs []string
	for i := range 5 {
		f := rlRun(1, 0.01*float64(i))
		f.set = append(f.set, fmt.Sprintf("rl.clip_high=0.%d", i+2))
		wide := strings.Repeat("w", 20*(i%2))
		dirs = append(dirs, f.write(t, fmt.Sprintf("%s-int4-rollouts-of-a-run-with-a-very-long-name-<&>-%d", wide, i)))
	}
	r, err := Read(dirs)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "poster.svg")
	if err := r.WriteSVG(path); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	type label struct {
		X     float64 `xml:"x,attr"`
		Y     float64 `xml:"y,attr"`
		Name  string  `xml:",chardata"`
		Full  string  `xml:"title"`
		Value string  `xml:"tspan"`
	}
	var svg struct {
		Charts []struct {
			Text []label `xml:"text"`
		} `xml:"g"`
	}
	if err := xml.Unmarshal(text, &svg); err != nil {
		t.Fatal(err)
	}
	for i, c := range svg.Charts {
		seen, full := map[string]bool{}, map[string]bool{}
		var last label
		for _, l := range c.Text {
			if l.Value == "" {
				continue
			}
			end := l.X + 7*float64(len([]rune(l.Name+l.Value)))
			if end > posterW/reinforcedPosters || l.Y == last.Y &&
				l.X < last.X+7*float64(len([]rune(last.Name+last.Value))) {
				t.Errorf("chart %d: %q %q reaches from %g to %g, after %+v", i, l.Name, l.Value, l.X, end, last)
			}
			seen[l.Name], full[l.Full], last = true, true, l
		}
		if len(seen) != 5 || len(full) != 5 {
			t.Errorf("chart %d: 5 runs are named %v, in full %v", i, seen, full)
		}
	}
	if len(svg.Charts) != reinforcedPosters {
		t.Errorf("%d charts", len(svg.Charts))
	}
}

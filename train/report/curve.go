package report

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// curve is a line of a chart. Points get marks where they are few.
type curve struct {
	Name   string
	Class  string // of the palette: a colour, and a style of the line
	Noisy  bool   // many points are drawn faintly, with their smoothed line over them
	Points []point
	Value  string // what the legend says of the curve; "": its last value
}

// point is a value, and the lowest and the highest of those that it is the mean of.
type point struct{ X, Y, Low, High float64 }

const (
	columns   = 400 // curves are thinned to this many columns
	marksUpTo = 40  // points
)

// draw adds the curve: its band, where values were averaged, or a noisy curve's values as they are, then its line.
func (l curve) draw(b *strings.Builder, x, y scale, format func(float64) string) {
	many, points := len(l.Points) > marksUpTo, l.Points
	if many && l.Noisy {
		points = smooth(points)
	}
	switch {
	case l.banded():
		fmt.Fprintf(b, `<path class="%s band" d="%s"/>`, l.Class, bandPath(columnBands(points), x, y))
	case many && l.Noisy:
		fmt.Fprintf(b, `<path class="%s raw" d="%s"/>`, l.Class, path(thin(l.Points), x, y))
	}
	if len(points) > 1 {
		fmt.Fprintf(b, `<path class="%s" d="%s"/>`, l.Class, path(thin(points), x, y))
	}
	if many {
		return
	}
	for _, p := range l.Points {
		fmt.Fprintf(b, `<circle class="%s" cx="%.1f" cy="%.1f" r="2.6"><title>step %g: %s</title></circle>`, l.Class,
			x.at(p.X), y.at(p.Y), p.X, html.EscapeString(format(p.Y)))
	}
}

func (l curve) banded() bool {
	for _, p := range l.Points {
		if p.Low < p.High {
			return true
		}
	}
	return false
}

// zero tells whether some value of the curve is exactly 0.
func (l curve) zero() bool {
	for _, p := range l.Points {
		if p.Low == 0 {
			return true
		}
	}
	return false
}

func path(points []point, x, y scale) string {
	var b strings.Builder
	for i, p := range points {
		b.WriteByte("ML"[min(i, 1)])
		fmt.Fprintf(&b, "%.1f %.1f", x.at(p.X), y.at(p.Y))
	}
	return b.String()
}

// bandPath goes along the highest values and back along the lowest.
func bandPath(points []point, x, y scale) string {
	edge := make([]point, 0, 2*len(points))
	for _, p := range points {
		edge = append(edge, point{X: p.X, Y: p.High})
	}
	for i := len(points) - 1; i >= 0; i-- {
		edge = append(edge, point{X: points[i].X, Y: points[i].Low})
	}
	return path(edge, x, y) + "Z"
}

// smooth is the mean of a window about each point, a thirtieth of the curve wide; a band's edges likewise.
// At an end the window's inner half is left: one that shrank on both sides would end on the last point's noise.
func smooth(points []point) []point {
	sums := make([]point, len(points)+1)
	for i, p := range points {
		sums[i+1] = point{Y: sums[i].Y + p.Y, Low: sums[i].Low + p.Low, High: sums[i].High + p.High}
	}
	half := len(points) / 60
	out := make([]point, len(points))
	for i, p := range points {
		first, past := max(0, i-half), min(len(points), i+half+1)
		from, to, n := sums[first], sums[past], float64(past-first)
		out[i] = point{p.X, (to.Y - from.Y) / n, (to.Low - from.Low) / n, (to.High - from.High) / n}
	}
	return out
}

// thin keeps the lowest and the highest point of each column, so that a long run looks as if all were drawn.
func thin(points []point) []point {
	if len(points) <= 2*columns {
		return points
	}
	var out []point
	for c := range columns {
		part := points[c*len(points)/columns : (c+1)*len(points)/columns]
		low, high := 0, 0
		for i, p := range part {
			if p.Y < part[low].Y {
				low = i
			}
			if p.Y > part[high].Y {
				high = i
			}
		}
		out = append(out, part[min(low, high)])
		if low != high {
			out = append(out, part[max(low, high)])
		}
	}
	return out
}

// columnBands is the band of each column of a long curve.
func columnBands(points []point) []point {
	if len(points) <= 2*columns {
		return points
	}
	out := make([]point, columns)
	for c := range columns {
		part := points[c*len(points)/columns : (c+1)*len(points)/columns]
		out[c] = part[len(part)/2]
		for _, p := range part {
			out[c].Low, out[c].High = math.Min(out[c].Low, p.Low), math.Max(out[c].High, p.High)
		}
	}
	return out
}

package train

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// chart is a drawing of curves over the steps of a run. Points get marks where they are few.
type chart struct {
	Title, Unit string
	Lines       []curve
	Zero        bool    // the axis starts at 0
	Top         float64 // the axis reaches at least this far
	Format      func(float64) string
}

type curve struct {
	Name   string
	Colour string // class: "a", "b" or "c" of the palette
	Noisy  bool   // many points are drawn faintly, with their smoothed line over them
	Points []point
}

type point struct{ X, Y float64 }

// Pixels of a chart and its margins; it is scaled to the page's width.
const (
	chartW, chartH                             = 480.0, 270.0
	chartLeft, chartRight, chartTop, chartFoot = 48.0, 16.0, 60.0, 30.0
	columns                                    = 400 // raw curves are thinned to this many columns
	marksUpTo                                  = 40  // points
)

// palette is the style of charts, light and dark.
const palette = `svg{--ink:#1f2430;--soft:#667085;--grid:#e4e7ec;--paper:#fff;--a:#2563eb;--b:#e8590c;--c:#0c8f6b}
@media(prefers-color-scheme:dark){svg{--ink:#e6e9ef;--soft:#98a2b3;--grid:#2c3340;--paper:#171b22;--a:#6ea8fe;--b:#ff9f5a;--c:#4cd3a5}}
svg text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;font-size:12px;fill:var(--soft)}
svg .t{font-size:15px;font-weight:600;fill:var(--ink)}svg .v{font-weight:600;fill:var(--ink)}
svg .g{stroke:var(--grid);stroke-width:1}svg path{fill:none;stroke-width:2.2;stroke-linejoin:round;stroke-linecap:round}
svg .a{stroke:var(--a)}svg .b{stroke:var(--b)}svg .c{stroke:var(--c)}svg .raw{stroke-width:1;opacity:.4}
svg circle{fill:var(--paper);stroke-width:2}svg .paper{fill:var(--paper)}`

func (c chart) empty() bool {
	for _, l := range c.Lines {
		if len(l.Points) > 0 {
			return false
		}
	}
	return true
}

// scale maps values to pixels, with marks at round numbers.
type scale struct {
	low, high, from, to float64
	ticks               []float64
}

func (s scale) at(v float64) float64 { return s.from + (v-s.low)/(s.high-s.low)*(s.to-s.from) }

// newScale spans low to high, widened to multiples of a tick of 1, 2 or 5 times a power of ten where round is set.
func newScale(low, high, from, to float64, n int, round bool) scale {
	if high <= low {
		high = low + math.Max(math.Abs(low)*0.1, 1e-12)
	}
	step := math.Pow(10, math.Floor(math.Log10((high-low)/float64(n))))
	for _, m := range []float64{2, 2.5, 2} { // 2, 5, 10
		if (high-low)/step > float64(n) {
			step *= m
		}
	}
	if round {
		low, high = math.Floor(low/step+1e-9)*step, math.Ceil(high/step-1e-9)*step
	}
	s := scale{low: low, high: high, from: from, to: to}
	for i := math.Ceil(low/step - 1e-9); i*step <= high+step*1e-9; i++ {
		s.ticks = append(s.ticks, i*step+0) // not -0
	}
	return s
}

// scales fit the axes to the points; the x axis has whole steps from 0, as on every chart of the run.
func (c chart) scales() (x, y scale) {
	highX, lowY, highY := 1.0, math.Inf(1), math.Inf(-1)
	for _, l := range c.Lines {
		for _, p := range l.Points {
			highX = math.Max(highX, p.X)
			lowY, highY = math.Min(lowY, p.Y), math.Max(highY, p.Y)
		}
	}
	if c.Zero {
		lowY = math.Min(lowY, 0)
	}
	if c.Top > 0 {
		highY = math.Max(highY, c.Top)
	}
	n := int(math.Min(6, highX))
	x = newScale(0, highX, chartLeft, chartW-chartRight, n, false)
	return x, newScale(lowY, highY, chartH-chartFoot, chartTop, 5, true)
}

// svg is the chart as an element of a page that has the palette.
func (c chart) svg() string {
	return fmt.Sprintf(`<svg viewBox="0 0 %g %g" role="img" aria-label="%s">%s</svg>`, chartW, chartH, html.EscapeString(c.Title), c.body())
}

// poster is charts side by side as a file of its own.
func poster(charts []chart) string {
	var b strings.Builder
	w := chartW * float64(len(charts))
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%g" height="%g" viewBox="0 0 %g %g"><style>%s</style>`, w, chartH, w, chartH, palette)
	fmt.Fprintf(&b, `<rect class="paper" width="%g" height="%g" rx="10"/>`, w, chartH)
	for i, c := range charts {
		fmt.Fprintf(&b, `<g transform="translate(%g)">%s</g>`, float64(i)*chartW, c.body())
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func (c chart) body() string {
	var b strings.Builder
	x, y := c.scales()
	fmt.Fprintf(&b, `<text class="t" x="12" y="24">%s</text>`, html.EscapeString(c.Title))
	c.legend(&b)
	for _, v := range y.ticks {
		fmt.Fprintf(&b, `<line class="g" x1="%g" x2="%g" y1="%.1f" y2="%.1f"/>`, chartLeft, chartW-chartRight, y.at(v), y.at(v))
		fmt.Fprintf(&b, `<text x="%g" y="%.1f" text-anchor="end">%s</text>`, chartLeft-6, y.at(v)+4, html.EscapeString(c.Format(v)))
	}
	for _, v := range x.ticks {
		at, anchor := x.at(v), "middle"
		if at > chartW-40 {
			at, anchor = chartW-8, "end"
		}
		fmt.Fprintf(&b, `<text x="%.1f" y="%g" text-anchor="%s">%s</text>`, at, chartH-10, anchor, compact(v))
	}
	for _, l := range c.Lines {
		l.draw(&b, x, y, c.Format)
	}
	return b.String()
}

// legend names the curves with their last values, at the right of the title's line and of the next.
func (c chart) legend(b *strings.Builder) {
	fmt.Fprintf(b, `<text x="12" y="41">%s</text>`, html.EscapeString(c.Unit))
	row := 24.0
	for _, l := range c.Lines {
		if len(l.Points) == 0 {
			continue
		}
		value := c.Format(l.Points[len(l.Points)-1].Y)
		label := fmt.Sprintf(`%s <tspan class="v">%s</tspan>`, html.EscapeString(l.Name), html.EscapeString(value))
		fmt.Fprintf(b, `<path class="%s" d="M%g %gh14"/>`, l.Colour, chartW-chartRight-146, row-4)
		fmt.Fprintf(b, `<text x="%g" y="%g">%s</text>`, chartW-chartRight-126, row, label)
		row += 17
	}
}

func (l curve) draw(b *strings.Builder, x, y scale, format func(float64) string) {
	many, points := len(l.Points) > marksUpTo, l.Points
	if many && l.Noisy {
		fmt.Fprintf(b, `<path class="%s raw" d="%s"/>`, l.Colour, path(thin(points), x, y))
		points = smooth(points)
	}
	if len(points) > 1 {
		fmt.Fprintf(b, `<path class="%s" d="%s"/>`, l.Colour, path(thin(points), x, y))
	}
	if many {
		return
	}
	for _, p := range l.Points {
		fmt.Fprintf(b, `<circle class="%s" cx="%.1f" cy="%.1f" r="3"><title>step %g: %s</title></circle>`, l.Colour, x.at(p.X), y.at(p.Y), p.X, html.EscapeString(format(p.Y)))
	}
}

func path(points []point, x, y scale) string {
	var b strings.Builder
	for i, p := range points {
		b.WriteByte("ML"[min(i, 1)])
		fmt.Fprintf(&b, "%.1f %.1f", x.at(p.X), y.at(p.Y))
	}
	return b.String()
}

// smooth is the mean of a window about each point, a thirtieth of the curve wide and narrower towards the ends.
func smooth(points []point) []point {
	sums := make([]float64, len(points)+1)
	for i, p := range points {
		sums[i+1] = sums[i] + p.Y
	}
	out := make([]point, len(points))
	for i, p := range points {
		half := min(len(points)/60, i, len(points)-1-i)
		from, to := i-half, i+half+1
		out[i] = point{p.X, (sums[to] - sums[from]) / float64(to-from)}
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

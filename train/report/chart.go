package report

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// chart is a drawing of curves over steps.
type chart struct {
	Title, Unit string
	Lines       []curve
	Zero        bool    // the axis starts at 0
	Log         bool    // the axis has decades, and under them a lane for values of exactly 0
	Top         float64 // the axis reaches at least this far
	Format      func(float64) string

	frame
}

// frame is what charts next to each other have in common; see [align].
type frame struct {
	width float64
	rows  int     // of the legend
	steps float64 // the last of the x axis
}

// Pixels of a chart, which is scaled to the page's width.
const (
	chartW, plotH                          = 480.0, 196.0
	chartLeft, chartRight, chartHead, rowH = 48.0, 16.0, 56.0, 16.0
	chartFoot, laneEdge, laneGap, key      = 30.0, 7.0, 6.0, 20.0
)

// palette is the style of charts, light and dark: colours a to h, lines that are dashed or dotted.
// It has no variables, which many viewers of SVG files draw black.
const palette = `.a{color:#2563eb}.b{color:#e8590c}.c{color:#0c8f6b}.d{color:#9333ea}
.e{color:#a16207}.f{color:#db2777}.g{color:#0891b2}.h{color:#57534e}
svg text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;font-size:12px;fill:#667085}
svg .t{font-size:15px;font-weight:600;fill:#1f2430}svg .v{font-weight:600;fill:#1f2430}
svg .grid{stroke:#e4e7ec;stroke-width:1}
svg path{fill:none;stroke:currentColor;stroke-width:2.2;stroke-linejoin:round;stroke-linecap:round}
svg .dash{stroke-dasharray:6 4}svg .dot{stroke-dasharray:1 5}svg .raw{stroke-width:1;opacity:.35}
svg .band{fill:currentColor;stroke:none;opacity:.18}
svg circle{fill:#fff;stroke:currentColor;stroke-width:1.8}svg .paper{fill:#fff}svg .lane{fill:#e4e7ec;opacity:.55}
@media(prefers-color-scheme:dark){
.a{color:#6ea8fe}.b{color:#ff9f5a}.c{color:#4cd3a5}.d{color:#c792ff}
.e{color:#e0b84c}.f{color:#ff85b8}.g{color:#4dd0e6}.h{color:#b8b2ad}
svg text{fill:#98a2b3}svg .t,svg .v{fill:#e6e9ef}
svg .grid{stroke:#2c3340}svg circle,svg .paper{fill:#171b22}svg .lane{fill:#2c3340}}`

func (c chart) empty() bool {
	for _, l := range c.Lines {
		if len(l.Points) > 0 {
			return false
		}
	}
	return true
}

// align gives charts next to each other one size, one x axis and legends of one height, and leaves out those without
// points.
func align(charts []chart, width float64) []chart {
	var list []chart
	f := frame{width: width, rows: 1, steps: 1}
	for _, c := range charts {
		if c.empty() {
			continue
		}
		c.frame = f
		for _, l := range c.Lines {
			for _, p := range l.Points {
				f.steps = math.Max(f.steps, p.X)
			}
		}
		items := c.legend()
		f.rows = max(f.rows, items[len(items)-1].row+1)
		list = append(list, c)
	}
	for i := range list {
		list[i].frame = f
	}
	return list
}

func (f frame) top() float64    { return chartHead + rowH*float64(f.rows) }
func (f frame) bottom() float64 { return f.top() + plotH }
func (f frame) height() float64 { return f.bottom() + chartFoot }
func (f frame) right() float64  { return f.width - chartRight }

// svg is the chart as an element of a page that has the palette.
func (c chart) svg() string {
	return fmt.Sprintf(`<svg viewBox="0 0 %g %g" role="img" aria-label="%s">%s</svg>`, c.width, c.height(),
		html.EscapeString(c.Title), c.body())
}

// poster is aligned charts side by side as a file of its own.
func poster(charts []chart) string {
	var b strings.Builder
	w, h := charts[0].width*float64(len(charts)), charts[0].height()
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%g" height="%g" viewBox="0 0 %g `+
		`%g"><style>%s</style>`, w, h, w, h, palette)
	fmt.Fprintf(&b, `<rect class="paper" width="%g" height="%g" rx="10"/>`, w, h)
	for i, c := range charts {
		fmt.Fprintf(&b, `<g transform="translate(%g)">%s</g>`, float64(i)*c.width, c.body())
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func (c chart) body() string {
	var b strings.Builder
	fmt.Fprintf(&b, `<text class="t" x="12" y="24">%s</text><text x="12" y="41">%s</text>`, html.EscapeString(c.Title),
		html.EscapeString(c.Unit))
	for _, i := range c.legend() {
		i.draw(&b)
	}
	x, y := c.scales()
	for _, v := range y.ticks {
		c.level(&b, y.at(v), c.Format(v))
	}
	if c.Log {
		top := y.from + laneGap
		fmt.Fprintf(&b, `<rect class="lane" x="%g" y="%g" width="%g" height="%g"/>`, chartLeft, top,
			c.right()-chartLeft, c.bottom()-top)
		fmt.Fprintf(&b, `<text class="v" x="%g" y="%.1f" text-anchor="end">0</text>`, chartLeft-6, (top+c.bottom())/2+4)
	}
	for _, v := range x.ticks {
		at, anchor := x.at(v), "middle"
		if at > c.width-40 {
			at, anchor = c.width-8, "end"
		}
		fmt.Fprintf(&b, `<text x="%.1f" y="%g" text-anchor="%s">%s</text>`, at, c.height()-10, anchor, Compact(v))
	}
	for _, l := range c.Lines {
		l.draw(&b, x, y, c.Format)
		if l.zero() {
			y.zero -= laneGap // the next one's, so that none hides another
		}
	}
	return b.String()
}

// level is a line of the grid.
func (c chart) level(b *strings.Builder, y float64, label string) {
	fmt.Fprintf(b, `<line class="grid" x1="%g" x2="%g" y1="%.1f" y2="%.1f"/>`, chartLeft, c.right(), y, y)
	fmt.Fprintf(b, `<text x="%g" y="%.1f" text-anchor="end">%s</text>`, chartLeft-6, y+4, html.EscapeString(label))
}

// scales fit the axes to the points; the x axis has whole steps from 0.
func (c chart) scales() (x, y scale) {
	low, high, above, zeros := math.Inf(1), math.Inf(-1), math.Inf(1), 0
	for _, l := range c.Lines {
		for _, p := range l.Points {
			low, high = math.Min(low, p.Low), math.Max(high, p.High)
			for _, v := range []float64{p.Low, p.Y} {
				if v > 0 {
					above = math.Min(above, v)
				}
			}
		}
		if l.zero() {
			zeros++
		}
	}
	x = newScale(0, c.steps, chartLeft, c.right(), int(math.Min(6, c.steps)), false)
	if c.Log {
		lane := 2*laneEdge + laneGap*float64(max(zeros-1, 0))
		return x, newLogScale(above, high, c.bottom()-lane-laneGap, c.top(), c.bottom()-laneEdge, 5)
	}
	if c.Zero {
		low = math.Min(low, 0)
	}
	if c.Top > 0 {
		high = math.Max(high, c.Top)
	}
	return x, newScale(low, high, c.bottom(), c.top(), 5, true)
}

// label is a curve's place in the legend. Full is its name, of which there may be no room for all.
type label struct {
	class, full, name, value string
	x                        float64
	row                      int
}

// legend lays names and values of the curves out in rows, by a guess of the width of letters. Names give way to values.
func (c chart) legend() (list []label) {
	x, row := 12.0, 0
	for _, l := range c.Lines {
		if len(l.Points) == 0 {
			continue
		}
		e := label{class: l.Class, full: l.Name, value: l.Value}
		if e.value == "" {
			e.value = c.Format(l.Points[len(l.Points)-1].Y)
		}
		wide := key + textWidth(e.value)*bold + textWidth(" ")
		e.name = shortened(l.Name, c.width-8-12-wide)
		wide += textWidth(e.name)
		if x > 12 && x+wide > c.width-8 {
			x, row = 12, row+1
		}
		e.x, e.row = x, row
		list = append(list, e)
		x += wide + 12
	}
	return list
}

func (e label) draw(b *strings.Builder) {
	y := chartHead + 3 + rowH*float64(e.row)
	name := html.EscapeString(e.name)
	if name != "" {
		name += " "
	}
	if e.name != e.full {
		name = "<title>" + html.EscapeString(e.full) + "</title>" + name
	}
	fmt.Fprintf(b, `<path class="%s" d="M%g %gh14"/><text x="%.1f" y="%g">%s<tspan class="v">%s</tspan></text>`,
		e.class, e.x, y-4, e.x+key, y, name, html.EscapeString(e.value))
}

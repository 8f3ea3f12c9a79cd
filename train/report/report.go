package report

import (
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"io"
	"path/filepath"
	"slices"

	"lockstep/data/atomicfile"
)

const (
	ReportFile = "report.html"
	CurveFile  = "curves.svg"
)

// Report is what the folders of runs tell, ready to be drawn. The bytes of its page and of its picture follow from the
// folders alone.
type Report struct{ page page }

// Read reads the folders of runs for [Report.WriteHTML] and [Report.WriteSVG]. The error names every folder that
// cannot be drawn, in a line each.
func Read(dirs []string) (*Report, error) {
	var runs []*runData
	var paths []string
	var errs []error
	for _, dir := range dirs {
		path, err := filepath.Abs(dir)
		if err != nil {
			return nil, err
		}
		if slices.Contains(paths, path) {
			errs = append(errs, fmt.Errorf("%s is given twice, name each run once", dir))
			continue
		}
		p, err := readRun(dir)
		runs, paths, errs = append(runs, p), append(paths, path), append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	nameRuns(runs, paths)
	return &Report{page{groupSeries(runs)}}, nil
}

// String counts runs and configurations.
func (r *Report) String() string {
	runs, groups := len(r.page.Runs()), len(r.page.Series)
	switch {
	case runs == 1:
		return "1 run"
	case runs == groups:
		return fmt.Sprintf("%d runs", runs)
	case groups == 1:
		return fmt.Sprintf("%d runs of one configuration", runs)
	}
	return fmt.Sprintf("%d runs of %d configurations", runs, groups)
}

//go:embed report.html.tmpl
var reportText string

var reportTemplate = template.Must(template.New(ReportFile).Funcs(template.FuncMap{
	"count": count, "clean": clean, "palette": func() template.CSS { return template.CSS(palette) },
}).Parse(reportText))

// WriteHTML writes one file that needs no other and no scripts.
func (r *Report) WriteHTML(path string) error {
	return atomicfile.Write(path, func(w io.Writer) error { return reportTemplate.Execute(w, r.page) })
}

// WriteSVG writes a picture for a page such as a README: reward, KL and clip fraction; of supervised runs loss and
// accuracy.
func (r *Report) WriteSVG(path string) error {
	panels := align(charts(reinforcedMetrics[:reinforcedPosters], r.page.Series, reinforced), posterW/reinforcedPosters)
	if len(panels) == 0 {
		panels = align(charts(r.page.supervisedCharts()[:supervisedPosters], r.page.Series, supervised), chartW)
	}
	if len(panels) == 0 {
		return fmt.Errorf("%s: no metrics to plot yet, wait for the first steps of the run", path)
	}
	return atomicfile.Write(path, func(w io.Writer) error {
		_, err := io.WriteString(w, poster(panels))
		return err
	})
}

package train

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"path/filepath"
	"time"
)

// Report is what report.html shows of a run. Its bytes follow from the fields alone.
type Report struct {
	Name        string
	Date        time.Time     // end of the run, shown in UTC
	Duration    time.Duration // wall time of training; 0: not shown
	Records     []Record      // the run's metrics, ascending steps
	Shape       []byte        // the resolved configuration, TOML
	Environment []Fact        // device, threads, instruction set, Go version, ...
	Proof       *Proof        // nil: the run had no proof
	Generations []Generation  // a few samples
}

// Fact is a name and a value, both for people.
type Fact struct{ Name, Value string }

// Proof is the outcome of holding the rollout engine against the training forward.
type Proof struct {
	Tokens     int     // positions
	Logits     int     // numbers compared bit for bit
	LogProbs   int     // likewise, of next tokens
	Mismatches int     // of both kinds
	KL         float64 // mean over positions of KL(training || rollout), nats
	Digest     string  // of the numerical definition, hex
	Ways       []ProofWay
}

// Zero tells whether something was compared and every bit agreed.
func (p *Proof) Zero() bool { return p.Logits > 0 && p.Mismatches == 0 && p.KL == 0 }

// ProofWay is one way of computing that was held against the training forward, such as "decode".
type ProofWay struct {
	Name               string
	Logits, Mismatches int
	KL                 float64
}

// Generation is a sampled answer.
type Generation struct {
	Prompt, Answer string
	Right          bool
	Note           string // what was expected, or why the answer is wrong; "": nothing
}

const (
	reportFile = "report.html"
	curveFile  = "curves.svg"
)

//go:embed report.html.tmpl
var reportText string

var reportTemplate = template.Must(template.New(reportFile).Funcs(template.FuncMap{
	"count": count, "charts": charts, "headline": headline, "clean": clean, "palette": func() template.CSS { return template.CSS(palette) },
}).Parse(reportText))

// WriteReport writes report.html, one file that needs no other, to folder dir.
func WriteReport(dir string, r Report) error {
	return writeAtomic(filepath.Join(dir, reportFile), func(w io.Writer) error { return reportTemplate.Execute(w, r) })
}

// WriteCurveSVG writes a picture of the loss and, where the run evaluated it, the accuracy, for a page such as a README.
func WriteCurveSVG(path string, records []Record) error {
	var panels []chart
	for _, c := range []chart{lossChart(records), accuracyChart(records)} {
		if !c.empty() {
			panels = append(panels, c)
		}
	}
	if len(panels) == 0 {
		return fmt.Errorf("%s: the run has no metrics to draw", path)
	}
	return writeAtomic(path, func(w io.Writer) error {
		_, err := io.WriteString(w, poster(panels))
		return err
	})
}

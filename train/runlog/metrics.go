package runlog

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"lockstep/data/atomicfile"
)

// MetricsFile is the log's name in a run's folder.
const MetricsFile = "metrics.jsonl"

// Metrics is the log of a run: metrics.jsonl and TensorBoard events in one folder, both on disk after every record.
type Metrics struct {
	log    *os.File
	events *events
	now    func() time.Time
}

// OpenMetrics continues the log in folder dir behind step: what an earlier, longer run recorded after it is cut off, so
// that the log has each step once. Step 0 starts a new log.
func OpenMetrics(dir string, step int) (*Metrics, error) { return openMetrics(dir, step, time.Now) }

func openMetrics(dir string, step int, now func() time.Time) (*Metrics, error) {
	path, mode := filepath.Join(dir, MetricsFile), os.O_APPEND|os.O_CREATE|os.O_WRONLY
	if step == 0 {
		mode |= os.O_TRUNC
	} else if err := cutMetrics(path, step); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(path, mode, 0o644)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	events, err := newEvents(dir, step, now())
	if err != nil {
		return nil, errors.Join(err, log.Close())
	}
	return &Metrics{log: log, events: events, now: now}, nil
}

// Write appends one record; a zero Time becomes the present.
func (m *Metrics) Write(r Record) error {
	if r.Time.IsZero() {
		r.Time = m.now()
	}
	r.Time = r.Time.UTC().Truncate(time.Millisecond)
	line, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("metrics: step %d: %w", r.Step, err)
	}
	if _, err := m.log.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	return m.events.write(r)
}

// Close leaves the log complete on disk.
func (m *Metrics) Close() error {
	return errors.Join(m.log.Sync(), m.log.Close(), m.events.close())
}

// ReadMetrics reads the log of a run's folder. A last line that a killed run left half-written is not part of it.
func ReadMetrics(dir string) ([]Record, error) {
	path := filepath.Join(dir, MetricsFile)
	text, err := atomicfile.Read(path)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	var records []Record
	for n := 1; len(text) > 0; n++ {
		line, rest, complete := cutLine(text)
		if !complete {
			break
		}
		var r Record
		if err := json.Unmarshal(line, &r); err != nil {
			return nil, fmt.Errorf("%s:%d: not a record of metrics (%w), remove the line", path, n, err)
		}
		records = append(records, r)
		text = rest
	}
	return records, nil
}

func cutLine(text []byte) (line, rest []byte, complete bool) {
	for i, c := range text {
		if c == '\n' {
			return text[:i], text[i+1:], true
		}
	}
	return text, nil, false
}

// cutMetrics removes the records after step, and a half-written line, in one rename.
func cutMetrics(path string, step int) error {
	records, err := ReadMetrics(filepath.Dir(path))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return atomicfile.Write(path, func(w io.Writer) error {
		enc := json.NewEncoder(w)
		for _, r := range records {
			if r.Step > step {
				continue
			}
			if err := enc.Encode(r); err != nil {
				return err
			}
		}
		return nil
	})
}

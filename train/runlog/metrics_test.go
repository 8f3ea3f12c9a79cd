package runlog

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 5e6, time.UTC)

func writeSteps(t *testing.T, dir string, resume, from, to int) {
	t.Helper()
	m, err := openMetrics(dir, resume, func() time.Time { return noon.Add(time.Duration(resume)) })
	if err != nil {
		t.Fatal(err)
	}
	for step := from; step <= to; step++ {
		if err := m.Write(Record{Step: step, Loss: Num(1 / float64(step)), Tokens: step * 10}); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
}

func steps(t *testing.T, dir string) (list []int) {
	t.Helper()
	records, err := ReadMetrics(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		list = append(list, r.Step)
	}
	return list
}

func TestMetricsResume(t *testing.T) {
	dir := t.TempDir()
	writeSteps(t, dir, 0, 1, 5)
	path := filepath.Join(dir, MetricsFile)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for cut := len(text) / 2; cut <= len(text); cut++ { // killed at any byte of the last steps
		if err := os.WriteFile(path, text[:cut], 0o644); err != nil {
			t.Fatal(err)
		}
		writeSteps(t, dir, 2, 3, 4)
		if got := steps(t, dir); !reflect.DeepEqual(got, []int{1, 2, 3, 4}) {
			t.Fatalf("cut at byte %d of %d: steps %v", cut, len(text), got)
		}
		if err := removeEvents(dir); err != nil {
			t.Fatal(err)
		}
	}
	writeSteps(t, dir, 0, 1, 1)
	if got := steps(t, dir); !reflect.DeepEqual(got, []int{1}) {
		t.Errorf("a new run keeps steps %v", got)
	}
}

func removeEvents(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "events.*"))
	for _, f := range files {
		err = os.Remove(f)
	}
	return err
}

func TestMetricsLine(t *testing.T) {
	dir := t.TempDir()
	m, err := openMetrics(dir, 0, func() time.Time { return noon })
	if err != nil {
		t.Fatal(err)
	}
	want := Record{Step: 1, Time: noon, Loss: Num(0.1), LR: Num(1e-7), GradNorm: Num(math.Inf(1)),
		EvalLoss: Num(math.NaN()), EvalAccuracy: Num(0)}
	if err := m.Write(want); err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, MetricsFile))
	if err != nil {
		t.Fatal(err)
	}
	const line = `{"step":1,"time":"2026-01-02T12:00:00.005Z","loss":0.1,"lr":1e-7,"grad_norm":"+Inf",` +
		`"eval_loss":"NaN","eval_accuracy":0}` + "\n"
	if string(text) != line || !json.Valid(text) {
		t.Errorf("got  %swant %s", text, line)
	}
	got, err := ReadMetrics(dir)
	if err != nil {
		t.Fatal(err)
	}
	if !math.IsNaN(float64(*got[0].EvalLoss)) {
		t.Errorf("NaN reads back as %v", *got[0].EvalLoss)
	}
	got[0].EvalLoss, want.EvalLoss = nil, nil
	if !reflect.DeepEqual(got, []Record{want}) {
		t.Errorf("reads back as %+v", got)
	}
}

func TestReadMetricsNamesTheLine(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, MetricsFile)
	if err := os.WriteFile(path, []byte("{\"step\":1}\n{\"loss\":\"x\"}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadMetrics(dir); err == nil || !strings.Contains(err.Error(), path+":2: ") ||
		!strings.Contains(err.Error(), "remove the line") {
		t.Errorf("got %v", err)
	}
}

// TestEvents reads the file back with a reader of its own.
func TestEvents(t *testing.T) {
	dir := t.TempDir()
	writeSteps(t, dir, 7, 8, 8)
	files, err := filepath.Glob(filepath.Join(dir, "events.out.tfevents.*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("files %v, %v", files, err)
	}
	b, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	var got [][]byte
	for len(b) > 0 {
		n := binary.LittleEndian.Uint64(b)
		data := b[12 : 12+n]
		if binary.LittleEndian.Uint32(b[8:]) != maskedCRC(b[:8]) || binary.LittleEndian.Uint32(b[12+n:]) !=
			maskedCRC(data) {
			t.Fatal("a checksum is wrong")
		}
		got, b = append(got, data), b[16+n:]
	}
	wall := func(at time.Time) string {
		return "\x09" + string(binary.LittleEndian.AppendUint64(nil, math.Float64bits(float64(at.UnixNano())/1e9)))
	}
	start, loss := wall(noon.Add(7)), "\x0a\x0atrain/loss\x15\x00\x00\x00\x3e" // 1/8
	for i, want := range []string{
		start + "\x10\x00\x1a\x0dbrain.Event:2",
		start + "\x10\x08\x3a\x02\x08\x01",
		wall(noon) + "\x10\x08\x2a\x13\x0a\x11" + loss,
	} {
		if i >= len(got) || !bytes.Equal(got[i], []byte(want)) {
			t.Errorf("event %d: got %q, want %q", i, got[i:], want)
		}
	}
}

// What TensorBoard shows of a GPU: what was read, and counts that are not 0.
func TestScalars(t *testing.T) {
	r := Record{GPUBusy: Num(0.97), GPUMemory: 3 << 29, GPUWatts: Num(612.4), Launches: 7, Waits: 2}
	got := map[string]float64{}
	for _, s := range r.scalars() {
		got[s.tag] = s.value
	}
	if want := map[string]float64{"gpu/busy": 0.97, "gpu/memory_bytes": 3 << 29, "gpu/watts": 612.4,
		"gpu/launches": 7, "gpu/waits": 2}; !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestMaskedCRC has the vector of RFC 3720 (32 zero bytes), masked.
func TestMaskedCRC(t *testing.T) {
	crc := uint32(0x8a9136aa)
	if got, want := maskedCRC(make([]byte, 32)), (crc>>15|crc<<17)+0xa282ead8; got != want {
		t.Errorf("got %08x, want %08x", got, want)
	}
}

package train

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"lockstep/kernels"
	"lockstep/train/runlog"
	"lockstep/train/trainer"
)

// readings is a gauge that fails after what it holds.
type readings []kernels.Usage

func (r *readings) Usage() (kernels.Usage, error) {
	if len(*r) == 0 {
		return kernels.Usage{}, errors.New("the card is gone")
	}
	u := (*r)[0]
	*r = (*r)[1:]
	return u, nil
}

func TestUsage(t *testing.T) {
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	card := &readings{{Busy: 0.97, Memory: 3 << 29, Watts: 612.4}}
	j := &job{options: Options{Log: log}, gauges: []kernels.Gauge{card}}
	var rec runlog.Record
	if got := j.usage(&rec, 1); len(got) != 1 || got[0] != "GPU 97%, 1.5 GiB, 612 W" {
		t.Errorf("progress shows %q", got)
	}
	if want := (runlog.Record{GPUBusy: runlog.Num(0.97), GPUMemory: 3 << 29, GPUWatts: runlog.Num(612.4)}); !reflect.
		DeepEqual(rec, want) {
		t.Errorf("the record is %+v, want %+v", rec, want)
	}
	for range 2 { // said once, and the run goes on
		rec = runlog.Record{}
		if got := j.usage(&rec, 1); got != nil || !reflect.DeepEqual(rec, runlog.Record{}) {
			t.Errorf("without a reading: %q, %+v", got, rec)
		}
	}
	text, err := os.ReadFile(log.Name())
	if err != nil || strings.Count(string(text), "the card is gone") != 1 {
		t.Errorf("noted %q (%v)", text, err)
	}
}

// counter is a device that has been asked something before.
type counter struct {
	kernels.Device
	all kernels.Counts
}

func (c *counter) Counts() kernels.Counts { return c.all }

func TestCounted(t *testing.T) {
	d := &counter{all: kernels.Counts{Launches: 100, Allocations: 10, Waits: 1}}
	want := kernels.Counts{Launches: 7, Waits: 2}
	if got := trainer.Counted(d, func() { d.all.Launches += 7; d.all.Waits += 2 }); got != want {
		t.Errorf("counted %+v, want %+v", got, want)
	}
	ran := false
	if got := trainer.Counted(nil, func() { ran = true }); got != (kernels.Counts{}) || !ran {
		t.Errorf("a device that does not count: %+v, body ran %t", got, ran)
	}
}

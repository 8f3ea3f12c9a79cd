package train

import (
	"errors"
	"strings"
	"testing"

	"lockstep/configs"
	"lockstep/data"
	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/parallel"
)

// limited is a device that counts what it gives out and has no more than that.
type limited struct {
	*cpu.Device
	pieces, left int
}

func (l *limited) Alloc(bytes int) []byte {
	l.pieces++
	if l.left -= bytes; l.left < 0 {
		panic(kernels.Fault{Err: errors.New("out of memory")})
	}
	return l.Device.Alloc(bytes)
}

// ready is a trainer of the tiny shape with 1 pack of 1,024 rows at a time, on a device with so many bytes for activations.
func ready(t *testing.T, bytes int, body func(d *limited, tr *trainer), set ...string) error {
	t.Helper()
	s, err := configs.Parse("tiny.toml", []byte(tiny), append(set, "data.pack_rows=1024"))
	if err != nil {
		t.Fatal(err)
	}
	dev, err := cpu.New(kernels.Default(), cpu.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	d := &limited{Device: dev, left: 1 << 40}
	return parallel.Run([]kernels.Device{d}, func(r *parallel.Rank) error {
		m, _, err := openTrained(r.Dev, s)
		if err != nil {
			return err
		}
		tr, err := newTrainer(s, 3)
		tr.r, tr.m = r, m
		d.left = bytes
		body(d, tr)
		return err
	})
}

// After the rehearsal no step asks for memory, and every number is what it is without one.
func TestRehearsal(t *testing.T) {
	pack := []data.Sample{{IDs: make([]int32, 128), Targets: make([]int32, 128)}, {IDs: make([]int32, 77), Targets: make([]int32, 77)}}
	run := func(rehearsed bool, set []string) (last stepResult) {
		err := ready(t, 1<<40, func(d *limited, tr *trainer) {
			if rehearsed {
				tr.rehearse(4, 1024)
			}
			before := d.pieces
			for step := range 3 {
				last = tr.step(step+1, lessons([][]data.Sample{pack[:1+step%2], pack, pack[1:], {}}[:2+step%2]))
			}
			if rehearsed != (d.pieces == before) {
				t.Errorf("rehearsed %t: steps asked for memory %d times", rehearsed, d.pieces-before)
			}
		}, set...)
		if err != nil {
			t.Fatal(err)
		}
		return last
	}
	for _, set := range [][]string{nil, tinyDSA("indexer.stage=sparse"), tinyDSA("indexer.stage=dense", "run.micro_batch=2")} {
		if with, without := run(true, set), run(false, set); with != without || with.Loss == 0 {
			t.Errorf("%v: with a rehearsal %+v, without %+v", set, with, without)
		}
	}
}

func TestRehearsalNamesTheMend(t *testing.T) {
	err := ready(t, 1<<20, func(_ *limited, tr *trainer) { tr.rehearse(4, 1024) })
	if err == nil || !strings.Contains(err.Error(), "a micro-batch of 1024 rows: out of memory") || !strings.Contains(err.Error(), "run.recompute") {
		t.Errorf("error %v", err)
	}
}

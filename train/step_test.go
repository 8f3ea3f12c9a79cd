package train

import (
	"testing"

	"lockstep/configs"
	"lockstep/data"
	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/parallel"
)

// limited is a device that counts what it gives out, and says that it has so much left (0: what the machine has).
type limited struct {
	*cpu.Device
	pieces, left int
}

func (l *limited) Alloc(bytes int) []byte {
	l.pieces++
	return l.Device.Alloc(bytes)
}

func (l *limited) Available() int {
	if l.left > 0 {
		return l.left
	}
	return l.Device.Available()
}

// ready is a trainer of the tiny shape with 1 pack of 1,024 rows at a time, its memory reserved by the plan or not.
func ready(t *testing.T, planned bool, body func(d *limited, tr *trainer), set ...string) error {
	t.Helper()
	s, err := configs.Parse("tiny.toml", []byte(tiny), append(set, "data.pack_rows=1024", "run.packs=4"))
	if err != nil {
		t.Fatal(err)
	}
	dev, err := cpu.New(kernels.Default(), cpu.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	d := &limited{Device: dev}
	return parallel.Run([]kernels.Device{d}, func(r *parallel.Rank) error {
		m, _, err := openTrained(r.Dev, s)
		if err != nil {
			return err
		}
		tr, err := newTrainer(s, 3)
		if err != nil {
			return err
		}
		tr.r, tr.m = r, m
		if planned {
			p, err := newPlanner(d, s)
			if err != nil {
				return err
			}
			if _, err := p.plan(0); err != nil {
				return err
			}
			reserve(r, p.r)
		}
		body(d, tr)
		return nil
	})
}

// Once what the plan says is reserved no step asks for memory, and every number is what it is without.
func TestReservedSteps(t *testing.T) {
	pack := []data.Sample{{IDs: make([]int32, 128), Targets: make([]int32, 128)},
		{IDs: make([]int32, 77), Targets: make([]int32, 77)}}
	run := func(reserve bool, set []string) (last stepResult) {
		err := ready(t, reserve, func(d *limited, tr *trainer) {
			before := d.pieces
			for step := range 3 {
				last = tr.step(step+1, lessons([][]data.Sample{pack[:1+step%2], pack, pack[1:], {}}[:2+step%2]))
			}
			if reserve != (d.pieces == before) {
				t.Errorf("reserved %t: steps asked for memory %d times", reserve, d.pieces-before)
			}
		}, set...)
		if err != nil {
			t.Fatal(err)
		}
		return last
	}
	for _, set := range [][]string{nil, tinyDSA("indexer.stage=sparse"), tinyDSA("indexer.stage=dense",
		"run.micro_batch=2")} {
		if with, without := run(true, set), run(false, set); with != without || with.Loss == 0 {
			t.Errorf("%v: reserved %+v, else %+v", set, with, without)
		}
	}
}

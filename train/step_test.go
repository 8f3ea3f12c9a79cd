package train

import (
	"testing"

	"lockstep/configs"
	"lockstep/data"
	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/parallel"
	"lockstep/train/plan"
	"lockstep/train/setup"
	"lockstep/train/testshape"
	"lockstep/train/trainer"
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
func ready(t *testing.T, planned bool, body func(d *limited, tr *trainer.Trainer), set ...string) error {
	t.Helper()
	s, err := configs.Parse("tiny.toml", []byte(testshape.Tiny), append(set, "data.pack_rows=1024", "run.packs=4"))
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
		m, _, err := setup.OpenTrained(r.Dev, s)
		if err != nil {
			return err
		}
		o, err := setup.TrainerOptions(s, 3, nil)
		if err != nil {
			return err
		}
		tr := trainer.New(r, m, o)
		if planned {
			p, err := plan.New(d, s)
			if err != nil {
				return err
			}
			if _, err := p.Choose(0); err != nil {
				return err
			}
			plan.Reserve(r, p.Rank)
		}
		body(d, tr)
		return nil
	})
}

// Once what the plan says is reserved no step asks for memory, and every number is what it is without.
func TestReservedSteps(t *testing.T) {
	pack := []data.Sample{{IDs: make([]int32, 128), Targets: make([]int32, 128)},
		{IDs: make([]int32, 77), Targets: make([]int32, 77)}}
	run := func(reserve bool, set []string) (last trainer.StepResult) {
		err := ready(t, reserve, func(d *limited, tr *trainer.Trainer) {
			before := d.pieces
			for step := range 3 {
				last = tr.Step(step+1, trainer.Supervised([][]data.Sample{pack[:1+step%2], pack, pack[1:],
					{}}[:2+step%2]))
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

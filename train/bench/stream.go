package bench

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"lockstep/configs"
	"lockstep/parallel"
	"lockstep/serve"
	"lockstep/train/plan"
	"lockstep/train/setup"
	"lockstep/train/trainer"
)

// StreamOptions say what [Stream] measures.
type StreamOptions struct {
	Items int     // packs of the step
	Rate  float64 // at which they come, of the rate that the ranks take when all are there
	Out   io.Writer
}

// streamed is what was measured of a step whose packs come one after the other.
type streamed struct {
	device string
	item   float64 // seconds that a pack takes when all are there
	first  float64 // seconds from the first pack's arrival to its log-probabilities
	whole  float64 // to the end of the step
	digest string  // of weights and optimizer states
}

// Stream prints when the first results of a step are there whose packs come slowly, one by one: where they are computed
// as they come, and where they are accumulated until all are there. Both are the third step of a shape's model on
// random packs. It returns an error where weights or optimizer states, and so gradients, differ in a bit.
func Stream(ctx context.Context, s *configs.Shape, o StreamOptions) error {
	if o.Items < 1 || !(o.Rate > 0) {
		return fmt.Errorf("--items %d --rate %g: want at least 1 and more than 0", o.Items, o.Rate)
	}
	of := *s // the plan is that of training: no engine for held-out questions, no proof
	of.Data.EvalSamples, of.Run.VerifyTokens, of.Run.Packs, of.Run.MicroBatch = 0, 0, o.Items, 1
	late, err := o.measure(ctx, &of, 0)
	if err != nil {
		return err
	}
	soon, err := o.measure(ctx, &of, late.item/o.Rate)
	if err != nil {
		return err
	}
	p := of.Parallel
	fmt.Fprintf(o.Out, "%s, %s: %d packs of %d tokens, one in %.3g s, %g of the rate when all are there; %d ranks, %d "+
		"stages, %q; each %s\n\n", s.Run.Name, s.Model.DType, o.Items, s.Data.PackRows, late.item/o.Rate, o.Rate,
		p.Ranks, p.Stages, s.Pipeline.Schedule, soon.device)
	came := float64(o.Items-1) * late.item / o.Rate // the last
	tab := tabwriter.NewWriter(o.Out, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(tab, "accumulated, s\tas they come, s\tratio\t\n")
	line := func(what string, late, soon float64) {
		fmt.Fprintf(tab, "%.4f\t%.4f\t%.1f\t  %s\n", late, soon, late/soon, what)
	}
	line("first results", came+late.first, soon.first)
	line("the step, from the last arrival", late.whole, soon.whole-came)
	if err := tab.Flush(); err != nil {
		return err
	}
	if late.digest != soon.digest {
		return fmt.Errorf("packs that were computed as they came gave other bits: SHA-256 %.16s, accumulated %.16s",
			soon.digest, late.digest)
	}
	_, err = fmt.Fprintf(o.Out, "\ngradients are the same on every bit: SHA-256 of weights and states %.16s\n",
		late.digest)
	return err
}

// measure takes three steps of a shape: one that warms up, one that is timed with all packs there, and one whose packs
// come at intervals of so many seconds. 0: they are all there.
func (o StreamOptions) measure(ctx context.Context, s *configs.Shape, interval float64) (row streamed, err error) {
	err = setup.OnRanks(setup.Device(s), &s.Parallel, func(w *parallel.World, r *parallel.Rank) error {
		if err := plan.ChooseAuto(r.Dev, s, plan.MemoryFor(r.Dev, s)); err != nil {
			return err
		}
		p, err := plan.New(r.Dev, s)
		if err != nil {
			return err
		}
		if _, _, err := plan.Admit(r.Dev, p); err != nil {
			return err
		}
		m, err := setup.LoadModel(w.Devices(), s, p.Model.Config)
		if err != nil {
			return err
		}
		ranks, err := serve.Distribute(w, r, m)
		if err != nil {
			return err
		}
		if err := ranks.Replicas.TrainShards(w); err != nil {
			return err
		}
		if err := p.ReserveRanks(w); err != nil {
			return err
		}
		by, err := setup.TrainerOptions(s, 3, p.Keep)
		if err != nil {
			return err
		}
		t := trainer.NewReplicated(w, r, ranks.Replicas, by)
		batch := trainer.Supervised(randomPacks(s, m))
		for step := 1; step <= 2; step++ {
			began := time.Now()
			t.Step(step, batch)
			row.item = time.Since(began).Seconds() / float64(o.Items)
		}
		if err := row.feed(ctx, t, batch, interval); err != nil {
			return err
		}
		row.device = r.Dev.Name()
		return row.hash(t)
	})
	return row, err
}

// feed takes a step whose packs come at intervals of so many seconds.
func (row *streamed) feed(ctx context.Context, t *trainer.Trainer, batch trainer.GlobalBatch, interval float64) error {
	var first atomic.Int64
	began := time.Now()
	f := t.Feed(3, func(*trainer.Batch) { first.CompareAndSwap(0, int64(time.Since(began))) })
	if interval == 0 {
		if err := f.Put(batch.Packs...); err != nil {
			return err
		}
	} else if err := putSlowly(ctx, f, batch.Packs, began, interval); err != nil {
		return err
	}
	res, err := f.Close(batch.Scale)
	if err != nil {
		return err
	}
	row.first, row.whole = time.Duration(first.Load()).Seconds(), time.Since(began).Seconds()
	return res.Finite()
}

// putSlowly puts a pack at each interval, and lets the first rank compute meanwhile.
func putSlowly(ctx context.Context, f *trainer.Feed, packs [][]trainer.Sample, began time.Time,
	interval float64) error {
	for i := range packs {
		for time.Since(began).Seconds() < float64(i)*interval {
			if err := f.Put(); err != nil {
				return err
			}
			time.Sleep(20 * time.Microsecond)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := f.Put(packs[i]); err != nil {
			return err
		}
	}
	return nil
}

// hash takes the digest of what a checkpoint has.
func (row *streamed) hash(t *trainer.Trainer) error {
	t.Finish()
	sum := sha256.New()
	if err := t.Replicas.WriteTrained(sum); err != nil {
		return err
	}
	row.digest = fmt.Sprintf("%x", sum.Sum(nil))
	return nil
}

package train

import (
	"fmt"
	"math"

	"lockstep/train/runlog"
	"lockstep/train/trainer"
)

// record returns the metrics of the update.
func (u *update) record() runlog.UpdateRecord {
	return runlog.UpdateRecord{
		Loss: runlog.Number(u.Loss), GradNorm: runlog.Number(u.Norm),
		ClipFraction: runlog.Number(u.share(float64(u.Clipped))),
		ApproxKL:     runlog.Number(u.drift.K3()), Ratio: runlog.Number(u.drift.Ratio()),
	}
}

// share divides a sum over the update's targets by their number.
func (u *update) share(sum float64) float64 { return sum / float64(max(u.Targets, 1)) }

// recordUpdates fills in what the optimizer steps of a step measured, and returns fields for the progress line. The
// policy of the first update is the one that sampled. Mean, last and largest show how far the later ones are from it.
func (l *learner) recordUpdates(rec *runlog.Record, updates []update) []string {
	list := make([]runlog.UpdateRecord, len(updates))
	for i := range updates {
		list[i] = updates[i].record()
	}
	loss := over(list, func(u runlog.UpdateRecord) runlog.Number { return u.Loss })
	norm := over(list, func(u runlog.UpdateRecord) runlog.Number { return u.GradNorm })
	clipped := over(list, func(u runlog.UpdateRecord) runlog.Number { return u.ClipFraction })
	kl := over(list, func(u runlog.UpdateRecord) runlog.Number { return u.ApproxKL })
	ratio := over(list, func(u runlog.UpdateRecord) runlog.Number { return u.Ratio })
	rec.LR = runlog.Num(updates[0].LR)
	rec.Loss, rec.LossLast, rec.LossMax = loss.mean, loss.last, loss.max
	rec.GradNorm, rec.GradNormLast, rec.GradNormMax = norm.mean, norm.last, norm.max
	rec.ClipFraction, rec.ClipFractionLast, rec.ClipFractionMax = clipped.mean, clipped.last, clipped.max
	rec.ApproxKL, rec.ApproxKLLast, rec.ApproxKLMax = kl.mean, kl.last, kl.max
	rec.Ratio, rec.RatioLast = ratio.mean, ratio.last
	rec.RatioMin, rec.RatioMax = ratioRange(updates)
	if l.reference != nil {
		rec.ReferenceKL = runlog.Num(meanOf(updates, func(u *update) float64 { return u.share(u.KL) }))
	}
	if l.rl.Proximal {
		rec.Corrected = runlog.Num(meanOf(updates, func(u *update) float64 { return u.share(float64(u.Corrected)) }))
	}
	fields := []string{"clipped " + clipped.text("%.2f", 100) + "%"}
	if len(list) > 1 {
		rec.ByUpdate = list
		fields = append(fields, "approx KL "+kl.text("%.3g", 1), "norm "+norm.text("%.3g", 1)+" (mean/last/max)")
	}
	return fields
}

// overUpdates is a value over the updates of a step. last and max are nil where there is one update.
type overUpdates struct{ mean, last, max *runlog.Number }

func over(list []runlog.UpdateRecord, of func(runlog.UpdateRecord) runlog.Number) (o overUpdates) {
	sum, last, largest := 0.0, 0.0, math.Inf(-1)
	for _, u := range list {
		last = float64(of(u))
		sum, largest = sum+last, math.Max(largest, last)
	}
	o.mean = runlog.Num(sum / float64(len(list)))
	if len(list) > 1 {
		o.last, o.max = runlog.Num(last), runlog.Num(largest)
	}
	return o
}

// text is the mean, or mean/last/max, each times a factor.
func (o overUpdates) text(format string, factor float64) string {
	text := fmt.Sprintf(format, factor*float64(*o.mean))
	if o.last != nil {
		text += fmt.Sprintf("/"+format+"/"+format, factor*float64(*o.last), factor*float64(*o.max))
	}
	return text
}

// meanOf is the mean of a value over the updates of a step.
func meanOf(updates []update, of func(*update) float64) (m float64) {
	for i := range updates {
		m += of(&updates[i])
	}
	return m / float64(len(updates))
}

// meanIndexers is the mean of the indexers' losses and norms over the updates of a step.
func meanIndexers(updates []update) (res trainer.StepResult) {
	res.IndexerLoss = meanOf(updates, func(u *update) float64 { return u.IndexerLoss })
	res.IndexerNorm = meanOf(updates, func(u *update) float64 { return u.IndexerNorm })
	return res
}

// ratioRange is the smallest and the largest ratio of a token in any update.
func ratioRange(updates []update) (low, high *runlog.Number) {
	least, most := math.Inf(1), math.Inf(-1)
	for i := range updates {
		d := &updates[i].drift
		least, most = min(least, d.LowRatio), max(most, d.HighRatio)
	}
	return runlog.Num(least), runlog.Num(most)
}

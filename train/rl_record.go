package train

import (
	"fmt"
	"math"
	"slices"

	"lockstep/serve"
	"lockstep/train/runlog"
)

// record fills in what a step of reinforcement learning measured, and returns fields for the progress line.
func (l *learner) record(rec *runlog.Record, res learningResult) []string {
	l.recordAnswers(rec, res)
	fields := []string{fmt.Sprintf("reward %.3f", float64(*rec.Reward))}
	if d := &res.divergence; d.Tokens > 0 {
		rec.KL, rec.KLK1, rec.LargestGap, rec.Entropy = runlog.Num(d.K3()), runlog.Num(d.K1()), runlog.Num(d.Largest),
			runlog.Num(d.Entropy())
		rec.Compared, rec.Differ = d.Tokens, d.Differ
		fields = append(fields, fmt.Sprintf("KL %.3g", d.K3()))
	}
	if res.exact.Logits > 0 { // with stale answers none of a step may have been sampled in it
		rec.KLExact = runlog.Num(res.exact.KL)
	}
	fields = append(fields, l.recordUpdates(rec, res.updates)...)
	if res.sampled > 0 { // with stale answers a step may find all that it needs
		rec.RolloutSpeed = runlog.Num(float64(res.sampled) / math.Max(res.rolloutSeconds, 1e-9))
	}
	rec.EarlyPacks = res.earlyPacks
	rec.LearnSpeed, rec.Updates = runlog.Num(float64(res.trainRows)/math.Max(res.trainSeconds, 1e-9)), l.updates
	sampled := float64(res.sampled) / math.Max(res.rolloutSeconds, 1e-9)
	return append(fields, fmt.Sprintf("%.0f+%.0f tokens/s", sampled, float64(*rec.LearnSpeed)))
}

// recordAnswers fills in the statistics of the step's answers.
func (l *learner) recordAnswers(rec *runlog.Record, res learningResult) {
	all := float64(len(res.episodes))
	reward, cut, flat, tokens, stale := 0.0, 0.0, 0.0, 0, 0
	for i, e := range res.episodes {
		reward += e.Reward / all
		tokens += len(e.IDs)
		for _, v := range e.Versions {
			stale += l.updatesBefore - v
		}
		if e.Finish == serve.FinishLength {
			cut++
		}
		if i%l.groupSize == 0 && slices.IndexFunc(res.episodes[i:i+l.groupSize], func(o *runlog.Episode) bool {
			return o.Reward != e.Reward
		}) < 0 {
			flat += float64(l.groupSize)
		}
	}
	rec.Reward, rec.RewardSpread, rec.Length, rec.Truncated = runlog.Num(reward), runlog.Num(1-flat/all),
		runlog.Num(float64(tokens)/all),
		runlog.Num(cut/all)
	rec.Discarded = runlog.Num((flat + float64(res.discarded)) / (all + float64(res.discarded)))
	if l.staleness > 0 {
		rec.Stale = runlog.Num(float64(stale) / float64(max(tokens, 1)))
	}
}

package train

import (
	"slices"

	"lockstep/data"
	"lockstep/kernels"
	"lockstep/model/checkpoint"
	"lockstep/train/runlog"
	"lockstep/train/trainer"
)

// samplesOf makes the training samples of episodes, on all cores, as devices wait meanwhile.
func samplesOf(episodes []*runlog.Episode, version int) []trainer.Sample {
	samples := make([]trainer.Sample, len(episodes))
	checkpoint.InParallel(len(episodes), 1, func(from, to int) {
		for i := from; i < to; i++ {
			samples[i] = sampleOf(episodes[i], version)
		}
	})
	return samples
}

// sampleOf makes the training sample of an episode, for weights of a version: row t is a token whose target is the next
// one, where the model sampled that.
func sampleOf(e *runlog.Episode, version int) trainer.Sample {
	n := len(e.Prompt) + len(e.IDs) - 1
	l := trainer.Sample{Sample: data.Sample{IDs: make([]int32, 0, n), Targets: make([]int32, n)},
		Rollout:   make([]float32, n),
		Advantage: make([]float32, n)}
	l.Inverse = slices.Repeat([]float32{kernels.Inverse(e.Temperature)}, n)
	l.IDs = append(append(l.IDs, e.Prompt...), e.IDs[:len(e.IDs)-1]...)
	for t := range l.Targets {
		l.Targets[t] = -1
	}
	for i, id := range e.IDs {
		t := len(e.Prompt) - 1 + i
		l.Targets[t], l.Rollout[t], l.Advantage[t] = id, e.LogProbs[i], e.Advantage
		if e.Versions[i] != version {
			if l.Stale == nil {
				l.Stale = map[int]bool{}
			}
			l.Stale[t] = true
		}
	}
	return l
}

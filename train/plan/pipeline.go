package plan

import (
	"errors"

	"lockstep/configs"
	"lockstep/parallel/schedule"
)

// ErrPipeline is returned where the time of a step is asked for that passes pipeline stages.
var ErrPipeline = errors.New("parallel.stages: plan has no time of a pipeline yet, set 1")

// Bubble is the micro-batches of a step of a shape, and the share of the time in which the ranks of its pipeline wait
// by schedule while they pass. Ranks have been counted.
func Bubble(s *configs.Shape) (micros int, share float64) {
	micros = (s.Run.Packs + s.Run.MicroBatch - 1) / s.Run.MicroBatch
	return micros, schedule.New(s.Pipeline.Schedule, s.Parallel.Stages, micros).Bubble(schedule.Usual)
}

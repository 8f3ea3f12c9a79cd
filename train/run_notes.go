package train

import (
	"fmt"

	"lockstep/configs"
	"lockstep/train/plan"
	"lockstep/train/report"
)

// What a run says before its first step.

// note says a line, above the progress of steps where that is shown.
func (j *job) note(format string, args ...any) {
	if j.progress != nil {
		j.progress.Note(format, args...)
		return
	}
	fmt.Fprintf(j.options.Log, format+"\n", args...)
}

// noteModel says what is trained, and what of a checkpoint or adapter goes on otherwise than its files say.
func (j *job) noteModel() {
	m := j.trainer.Model
	total, active := m.Parameters()
	j.note("%s: %s, %s parameters (%s active), %s, definition %.12s", j.folder, m.Family,
		report.Compact(float64(total)), report.Compact(float64(active)), j.ranks.DeviceName(), j.state.Digest)
	j.noteIfAny(m.Opened())
	if j.engine != nil {
		j.noteIfAny(m.PagesOpened())
	}
	if m.InCodes() && m.LoRA == nil {
		if err := m.CheckCodes(); err != nil {
			j.note("the result will be saved as numbers, with the same bits: %v", err)
		}
	}
	if c := m.LoRA; c != nil && c.Dropout > 0 && c.Dropout != j.shape.LoRA.Dropout {
		j.note("lora.path: the adapter was trained with lora_dropout %g; training goes on with lora.dropout = %g",
			c.Dropout, j.shape.LoRA.Dropout)
	}
}

// noteBatches says how samples become packs, and where ranks wait for lack of them. How many packs the answers of
// reinforcement learning will be is not known yet.
func (j *job) noteBatches() {
	for _, note := range j.shape.Notes {
		j.note("%s", note)
	}
	j.showSample()
	for _, field := range j.corpus.Ignored() {
		j.note("%s", field)
	}
	j.noteIfAny(shortPacks(j.shape))
	if j.learner != nil {
		return
	}
	j.noteIfAny(bubble(j.shape))
	if j.shape.Parallel.Stages == 1 {
		j.noteIfAny(idleRanks(j.shape.Run.Packs, j.world.Size()/j.shape.Parallel.Context))
	}
}

// noteIfAny is note of a line that may be empty.
func (j *job) noteIfAny(line string) {
	if line != "" {
		j.note("%s", line)
	}
}

// shortPacks says that no micro-batch has a segment for each rank of a context; "": some may have.
func shortPacks(s *configs.Shape) string {
	n := s.Parallel.Context
	packs := max(s.Run.MicroBatch/s.Parallel.Interleave, 1)
	have := packs * ((s.Data.PackRows + s.Definition.Segment - 1) / s.Definition.Segment)
	if n <= have {
		return ""
	}
	return fmt.Sprintf("parallel.context: %d packs of data.pack_rows %d have %d segments of definition.segment %d, "+
		"not one for each of %d ranks: fewer ranks divide them", packs, s.Data.PackRows, have, s.Definition.Segment, n)
}

// bubble says how long the ranks of a pipeline wait for one another; "": there is no pipeline.
func bubble(s *configs.Shape) string {
	n := s.Parallel.Stages
	if n == 1 {
		return ""
	}
	micros, share := plan.Bubble(s)
	return fmt.Sprintf("parallel.stages: ranks wait %.0f%% of the time in which a step's %d micro-batches pass %d "+
		"stages: more of them lower that", 100*share, micros, n)
}

// idleRanks says which part of a step ranks without a pack wait; "": none.
func idleRanks(packs, ranks int) string {
	rounds := (packs + ranks - 1) / ranks
	idle := rounds*ranks - packs
	if idle == 0 {
		return ""
	}
	return fmt.Sprintf("ranks: %d packs of a step on %d ranks leave %d%% of them idle, make run.packs a multiple of %d",
		packs, ranks, 100*idle/(rounds*ranks), ranks)
}

package trainer

import (
	"slices"

	"lockstep/kernels"
	"lockstep/model"
	"lockstep/optim"
	"lockstep/parallel"
)

// Trainer updates one model, on one rank or on all ranks of a world: data parallel, with gradients and optimizer state
// cut over the ranks (ZeRO-2). [New] and [NewReplicated] make it.
type Trainer struct {
	Rank     *parallel.Rank // the first, which also evaluates
	Model    *model.Model   // its replica
	Replicas model.Replicas // by rank
	Options
	Observe func(b *Batch) // gets each micro-batch of a step, with its log-probabilities, in order; may be nil

	world *parallel.World // nil: Rank is alone
	ticks []rankTicks     // see TimeSteps; nil: none are noted
	open  *Feed           // a step that has packs and is not taken yet; nil: none
}

// Options are how a trainer updates its model. They may be changed between two steps.
type Options struct {
	Objective        optim.Objective
	Optimizer        optim.AdamW
	Schedule         optim.Schedule // of learning rates
	IndexerRate      float64        // learning rate of trained indexers, as a multiple of the model's
	MicroBatch       int            // packs that are computed together on a rank, at least 1; changes no bit
	Interleave       int            // lanes that divide them, see [parallel.Interleave]; 0: one; changes no bit
	Breadth          int            // micro-batches that pass each block before the next does; 0: one; changes no bit
	RankPacks        int            // of a step, at most; where weights come from the host, forwards have as many
	Context          int            // ranks that divide the rows of packs, see [model.Context]; 0: 1; changes no bit
	PipelineSchedule string         // how micro-batches pass pipeline stages, see package schedule
	PipelineAhead    int            // forwards of a rank for each below it, see [schedule.New]; 0: 1; changes no bit
	Keep             model.Policy   // what blocks keep for the backward pass; nil: everything; changes no bit
	// What the next forward waits for, unit by unit, is left to it: the update of weights whose optimizer's state is in
	// the host's memory, and copies of updated weights to other ranks. [Trainer.Finish] comes before anything else that
	// reads weights. It changes no bit.
	Defer bool
}

// New returns a trainer of a model that has memory for training; see [model.Model.TrainAll].
func New(r *parallel.Rank, m *model.Model, o Options) *Trainer {
	return &Trainer{Rank: r, Model: m, Replicas: model.Replicas{m}, Options: o}
}

// NewReplicated returns a trainer of a world's replicas of a model; see [model.Replicate]. r is the first rank, whose
// goroutine takes the steps.
func NewReplicated(w *parallel.World, r *parallel.Rank, replicas model.Replicas, o Options) *Trainer {
	return &Trainer{Rank: r, Model: replicas[0], Replicas: replicas, Options: o, world: w}
}

// With returns a trainer of the same replicas with other options.
func (t *Trainer) With(o Options) *Trainer {
	return &Trainer{Rank: t.Rank, Model: t.Model, Replicas: t.Replicas, Options: o, world: t.world}
}

// StepResult is what one optimizer step measured.
type StepResult struct {
	optim.Measures         // of the objective, before the update
	Norm           float64 // of the gradient without that of the indexers, before clipping
	IndexerLoss    float64 // of trained indexers: mean divergence of a row, nats
	IndexerNorm    float64 // of the indexers' gradient, before clipping
	LR             float64 // learning rate
	Tokens         int     // rows computed
}

// microBatches cuts packs of a step. Where ranks compute packs of their own they are dealt in rounds, in which each
// gets as many packs as another: sums pass from rank to rank at every block, so a round takes as long as its largest
// micro-batch. The packs that do not divide, of which the last may be short, go to the last ranks of the last round.
// Earlier rounds are larger, as the last rank ends a block behind the first.
func (t *Trainer) microBatches(packs [][]Sample) (micros [][][]Sample) {
	ranks := t.Rank.Size
	if ranks < 2 || t.Context > 1 || t.Model.Stages() > 0 {
		return slices.Collect(slices.Chunk(packs, t.lanePacks()))
	}
	most := t.lanePacks() * ranks
	rounds, each, left := (len(packs)+most-1)/most, len(packs)/ranks, len(packs)%ranks
	for round := range rounds {
		for rank := range ranks {
			size := (each + rounds - 1 - round) / rounds
			if round == rounds-1 && rank >= ranks-left {
				size++
			}
			if size > 0 {
				micros, packs = append(micros, packs[:size]), packs[size:]
			}
		}
	}
	return micros
}

// lanes is how many a rank has.
func (t *Trainer) lanes() int { return max(t.Interleave, 1) }

// lanePacks is the packs of one forward and backward.
func (t *Trainer) lanePacks() int { return max(t.MicroBatch/t.lanes(), 1) }

// eachRank runs body in all ranks at once.
func (t *Trainer) eachRank(body func(r *parallel.Rank, m *model.Model)) {
	if t.world == nil {
		body(t.Rank, t.Model)
		return
	}
	if err := t.world.Run(func(r *parallel.Rank) error {
		body(r, t.Replicas[r.ID])
		return nil
	}); err != nil {
		panic(kernels.Fault{Err: err})
	}
}

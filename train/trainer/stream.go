package trainer

import (
	"sync"

	"lockstep/kernels"
	"lockstep/model"
	"lockstep/parallel"
	"lockstep/parallel/schedule"
)

// stream is micro-batches that pass the ranks of a pipeline while others come. Each rank takes what [schedule.Stage]
// says, by what its device has: a rank that enqueued a backward whose gradients are on their way would hold up the
// forwards that come meanwhile. The first rank is the job's, and computes in Feed's calls.
type stream struct {
	of    *Feed
	by    portion
	lead  *stageRun
	mu    sync.Mutex
	came  []*streamed
	ended bool // no more come
}

// streamed is a micro-batch of a stream. The last rank writes known.
type streamed struct {
	batchPart
	row   int // of the step, that it begins with
	known []float32
}

// stageRun is a rank of a stream.
type stageRun struct {
	*pipeline
	s       *stream
	came    []*streamed
	stage   schedule.Stage
	running []kernels.Event // the ends of the last two tasks
}

// streams tells whether micro-batches pass a pipeline as they come.
func (t *Trainer) streams() bool {
	return t.world != nil && t.Model.Stages() > 0 && t.PipelineSchedule == schedule.Stream
}

// pass lets packs pass the pipeline. It returns when the first rank has done what it may without waiting.
func (f *Feed) pass(packs [][]Sample, by stepRates) {
	s := f.stream
	switch {
	case s == nil && len(packs) == 0:
		return
	case s == nil:
		s = f.begin(by)
	}
	s.mu.Lock()
	for _, b := range f.t.batches(f.t.microBatches(packs)) {
		s.came = append(s.came, &streamed{batchPart: b, row: f.rows})
		f.rows += b.rows()
	}
	s.mu.Unlock()
	s.lead.advance()
}

// begin starts the other ranks. They end with whatever is next for them, when all that came has passed.
func (f *Feed) begin(by stepRates) *stream {
	t := f.t
	s := &stream{of: f, by: portion{stepRates: by, first: !f.begun}}
	f.stream, f.begun = s, true
	if err := t.world.Start(func(r *parallel.Rank) error {
		s.run(s.open(r, t.Replicas[r.ID]))
		return nil
	}, func(*parallel.Rank) {
		f.stream, f.streamed = nil, append(f.streamed, s.came...)
		s.mu.Lock()
		s.ended = true
		s.mu.Unlock()
		s.run(s.lead)
	}); err != nil {
		panic(kernels.Fault{Err: err})
	}
	s.lead = s.open(t.Rank, t.Model)
	return s
}

func (s *stream) open(r *parallel.Rank, m *model.Model) *stageRun {
	if s.by.first {
		m.FetchStates()
	}
	p := s.of.t.openPipeline(r, m, s.by, m.Stages())
	return &stageRun{pipeline: p, s: s, stage: schedule.NewStage(r.ID, m.Stages())}
}

// run computes until all that came has passed, and no more come.
func (s *stream) run(g *stageRun) {
	g.r.Data.Until(func() bool {
		g.advance()
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.ended && g.stage.Backwards == len(s.came)
	})
	g.close()
	g.m.UseAll(g.r)
}

// advance computes what the rank may without waiting.
func (g *stageRun) advance() {
	for len(g.running) < 2 || g.running[0].Happened() {
		task, ok := g.stage.Next(g.rows(), g.gradients())
		if !ok {
			return
		}
		g.compute(task)
		if g.running = append(g.running, g.r.Transfers.Record()); len(g.running) > 2 {
			g.running = g.running[1:]
		}
		if task.Kind == schedule.Backward && g.r.ID == g.m.Stages()-1 {
			g.tell(task.Micro)
		}
	}
}

// tell hands out the log-probabilities of a micro-batch.
func (g *stageRun) tell(micro int) {
	g.came[micro].known = g.done[micro].known
	if known := g.s.of.known; known != nil {
		b := *g.done[micro].Batch
		b.Rows.LogProb = g.done[micro].known
		known(&b)
	}
}

// rows is of how many micro-batches the rank may compute the forward, as far as rows and memory go.
func (g *stageRun) rows() int {
	have, free := g.stage.Forwards, g.free[0]
	if len(free) == 0 || !taken(free[0], g.boxes[0][0]) {
		return have
	}
	g.s.mu.Lock()
	for _, b := range g.s.came[len(g.came):] {
		g.came, g.of, g.first = append(g.came, b), append(g.of, b.batchPart), append(g.first, b.row)
		g.done = append(g.done, MicroBatch{})
	}
	g.s.mu.Unlock()
	before, _ := g.neighbours(g.r)
	switch {
	case g.chunks[0].First():
		return len(g.of)
	case have < len(g.of) && g.r.Data.Arrived(before):
		return have + 1
	}
	return have
}

// gradients is of how many micro-batches the rank may compute the backward.
func (g *stageRun) gradients() int {
	_, behind := g.neighbours(g.r)
	switch have := g.stage.Backwards; {
	case g.chunks[0].Last():
		return g.stage.Forwards
	case have < g.stage.Forwards && g.r.Data.Arrived(behind):
		return have + 1
	default:
		return have
	}
}

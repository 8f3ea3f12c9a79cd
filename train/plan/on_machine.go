package plan

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"lockstep/configs"
	"lockstep/kernels"
	"lockstep/kernels/meta"
	"lockstep/train/setup"
	"lockstep/train/trainer"
)

// OnMachine is what a shape would take and do on a machine, by mesh, best first: those that fit by tokens a second,
// then the others by memory.
type OnMachine struct {
	Machine configs.Machine `json:"-"`
	Model   string          `json:"model"`
	Batch   string          `json:"batch"`
	Meshes  []OnMesh        `json:"meshes"`
	Refused []string        `json:"refused"` // meshes that the shape does not allow, with the reason
	Mend    string          `json:"mend"`    // where none fits: what would
}

// OnMesh is a plan for one mesh.
type OnMesh struct {
	Ranks      int       `json:"ranks"`
	Experts    int       `json:"experts"`
	Weights    string    `json:"weights"`
	Context    int       `json:"context"`
	Stages     int       `json:"stages"`
	Interleave int       `json:"interleave"`
	Purposes   []Purpose `json:"purposes"`  // of a card; of a CPU's machine
	Bytes      int       `json:"bytes"`     // of all
	Available  int       `json:"available"` // to a run
	Host       int       `json:"host"`      // pinned memory of the host for all ranks; of a CPU among Bytes
	HostHas    int       `json:"host_has"`
	Recompute  string    `json:"recompute"`
	Step       Step      `json:"step"`
	Longest    int       `json:"longest"` // sequence, with full recompute and one at a time in each lane; 0: none fits
	Bounded    bool      `json:"bounded"` // it is the longest that the model has positions for
}

// Purpose is memory for a purpose, of a card or of the host.
type Purpose struct {
	Name  string `json:"name"`
	Bytes int    `json:"bytes"`
	Host  bool   `json:"host"`
}

// Fits tells whether the run has the memory.
func (m OnMesh) Fits() bool { return m.Bytes <= m.Available && m.Host <= m.HostHas }

// missing is the bytes that the run lacks.
func (m OnMesh) missing() int { return max(m.Bytes-m.Available, 0) + max(m.Host-m.HostHas, 0) }

// Shaper reads the shape with overrides of its keys.
type Shaper func(set ...string) (*configs.Shape, error)

// For plans a shape for a machine: on a mesh, where keys of [parallel] are given ("experts=8"), else on every mesh of
// all cards that the shape allows.
func For(shape Shaper, machine configs.Machine, given []string) (*OnMachine, error) {
	o := &OnMachine{Machine: machine}
	meshes := machineMeshes(machine.Cards)
	if len(given) > 0 {
		meshes = [][]string{prefixed(given)}
	}
	on := []string{"device.kind=" + machine.Device}
	unstaged := on // of all meshes but the pipeline, which alone has a schedule
	if len(given) == 0 {
		unstaged = append(unstaged, "parallel.stages=1", "pipeline.schedule="+configs.Default().Pipeline.Schedule,
			fmt.Sprintf("pipeline.chunks=%d", configs.Default().Pipeline.Chunks), "pipeline.ahead=1",
			"pipeline.blocks=")
	}
	for _, set := range meshes {
		err := o.planMesh(shape, slices.Concat(unstaged, set))
		if err != nil && len(meshes) == 1 {
			return nil, err
		}
		if err != nil {
			o.refuse(set, err)
		}
	}
	if len(given) == 0 {
		o.planContexts(shape, unstaged)
		o.planPipeline(shape, on)
	}
	if len(o.Meshes) == 0 {
		return nil, errors.New(o.Refused[0])
	}
	slices.SortStableFunc(o.Meshes, func(a, b OnMesh) int {
		if a.Fits() != b.Fits() || !a.Fits() {
			return cmp.Compare(a.missing(), b.missing())
		}
		return cmp.Compare(b.Step.Rate(), a.Step.Rate())
	})
	if o.Meshes[0].Fits() {
		return o, nil
	}
	if o.Meshes[0].Context > 1 {
		meshes = append(meshes, o.Meshes[0].set())
	}
	return o, o.planMend(shape, unstaged, meshes)
}

// planMesh adds the plan of one mesh.
func (o *OnMachine) planMesh(shape Shaper, set []string) error {
	s, err := shape(set...)
	if err != nil {
		return err
	}
	if s.Parallel.Ranks > o.Machine.Cards && o.Machine.Device != "cpu" {
		return fmt.Errorf("parallel.ranks: %d ranks take a card each, and %s has %d", s.Parallel.Ranks, o.Machine.Name,
			o.Machine.Cards)
	}
	m, err := o.plan(s)
	if err == nil {
		o.Meshes = append(o.Meshes, *m)
	}
	return err
}

// planMend finds what would let the shape fit, on the mesh that divides most of those it allows: the last.
func (o *OnMachine) planMend(shape Shaper, on []string, meshes [][]string) (err error) {
	var s *configs.Shape
	for _, set := range slices.Backward(meshes) {
		if s, err = shape(slices.Concat(on, set)...); err == nil {
			o.Mend = o.mend(s)
			return nil
		}
	}
	return err
}

// planContexts adds meshes whose packs are divided over as many ranks as can, where they have a segment for each.
func (o *OnMachine) planContexts(shape Shaper, on []string) {
	for _, rest := range [][]string{{"experts=1", "weights=replicated"}, {"experts=0", "weights=sharded"}} {
		var set []string
		var refused error
		for n := o.Machine.Cards; n > 1; n-- {
			if o.Machine.Cards%n != 0 {
				continue
			}
			set = prefixed(append([]string{fmt.Sprintf("ranks=%d", o.Machine.Cards), fmt.Sprintf("context=%d", n),
				"interleave=1"}, rest...))
			s, err := shape(slices.Concat(on, set)...)
			if err == nil && s.Run.MicroBatch*((s.Data.PackRows+s.Definition.Segment-1)/s.Definition.Segment) < n {
				continue
			}
			var m *OnMesh
			if err == nil {
				m, err = o.plan(s)
			}
			if refused = err; err == nil {
				o.Meshes = append(o.Meshes, *m)
				break
			}
		}
		if refused != nil {
			o.refuse(set, refused)
		}
	}
}

// planPipeline adds the mesh of a stage for each rank.
func (o *OnMachine) planPipeline(shape Shaper, on []string) {
	if o.Machine.Cards == 1 {
		return
	}
	set := prefixed([]string{fmt.Sprintf("ranks=%d", o.Machine.Cards), "stages=0", "experts=1",
		"weights=replicated", "interleave=1"})
	if err := o.planMesh(shape, slices.Concat(on, set)); err != nil {
		o.refuse(set, err)
	}
}

// machineMeshes lists overrides of all meshes of so many ranks, those that divide most last.
func machineMeshes(n int) (list [][]string) {
	for _, experts := range []int{1, n} {
		for _, weights := range []string{"replicated", "sharded"} {
			for lanes := range 2 {
				if n == 1 && (len(list) > 0) || lanes > 0 && (experts == 1 || n == 1) {
					continue
				}
				list = append(list, prefixed([]string{fmt.Sprintf("ranks=%d", n), fmt.Sprintf("experts=%d", experts),
					"weights=" + weights, fmt.Sprintf("interleave=%d", 1+lanes)}))
			}
		}
	}
	return list
}

// set is the mesh as overrides.
func (m OnMesh) set() []string {
	return prefixed([]string{fmt.Sprintf("ranks=%d", m.Ranks), fmt.Sprintf("experts=%d", m.Experts),
		fmt.Sprintf("context=%d", m.Context), fmt.Sprintf("stages=%d", m.Stages), "weights=" + m.Weights,
		fmt.Sprintf("interleave=%d", m.Interleave)})
}

// prefixed names keys of [parallel] in full.
func prefixed(keys []string) (set []string) {
	for _, k := range keys {
		set = append(set, "parallel."+k)
	}
	return set
}

// refuse tells of a mesh that cannot be.
func (o *OnMachine) refuse(set []string, err error) {
	line := fmt.Sprintf("%s: %s", strings.ReplaceAll(strings.Join(set, ", "), "parallel.", ""),
		strings.SplitN(err.Error(), "\n", 2)[0])
	o.Refused = append(o.Refused, line)
}

// device is one of the machine's, without memory.
func (o *OnMachine) device(s *configs.Shape) *meta.Device {
	spare := kernels.SpareGPU
	if o.Machine.Device == "cpu" {
		spare = kernels.SpareCPU
	}
	return meta.New(setup.Definition(s), spare)
}

const gibibyte = 1 << 30

// available is what a run may take of a card, or of a CPU's machine.
func (o *OnMachine) available() int {
	return int((o.Machine.Memory.Usable - o.Machine.Memory.Workspace) * gibibyte)
}

// open is the graph of a shape with the engines that it has.
func (o *OnMachine) open(s *configs.Shape) (p *Plan, err error) {
	if err := setup.CountRanks(setup.Device(s), &s.Parallel); err != nil {
		return nil, err
	}
	dev := o.device(s)
	if err := chooseStages(s, o.Machine, dev); err != nil {
		return nil, err
	}
	if p, err = New(dev, s); err != nil || !setup.Generates(s) {
		return p, err
	}
	corpus, err := setup.OpenCorpus(s, p.Model, p.Tokenizer)
	if err != nil {
		return nil, err
	}
	return p, p.OpenEngines(dev, corpus.Longest(s.Rollout.MaxTokens))
}

// plan is that of one mesh.
func (o *OnMachine) plan(s *configs.Shape) (*OnMesh, error) {
	have := o.available()
	err := chooseWeights(s, have, o.open)
	if err == nil {
		err = chooseHostUpdate(s, o.Machine, o.open)
	}
	if err != nil {
		return nil, err
	}
	p, err := o.open(s)
	if err == nil {
		err = p.rolloutsFromHost()
	}
	if err != nil {
		return nil, err
	}
	n, err := p.Choose(have)
	if err != nil {
		return nil, err
	}
	o.describe(p)
	m := &OnMesh{Ranks: s.Parallel.Ranks, Experts: s.Parallel.Experts, Weights: s.Parallel.Weights,
		Context: s.Parallel.Context, Stages: s.Parallel.Stages, Interleave: s.Parallel.Interleave, Available: have,
		Bytes: n.Total(), Purposes: p.purposes(n),
		Host: n.Host, HostHas: int(o.Machine.Memory.Host * gibibyte),
		Recompute: p.Model.Summary(p.Keep, p.Extent())}
	if m.Step, err = p.Step(o.Machine); err != nil {
		return nil, err
	}
	m.Longest, m.Bounded = p.longestSequence(have, m.HostHas)
	return m, nil
}

// describe says what is planned, once.
func (o *OnMachine) describe(p *Plan) {
	s := p.s
	total, active := p.Model.Parameters()
	way := "full fine-tuning"
	if s.LoRA.On() {
		way = "LoRA"
		if s.LoRA.Rank > 0 {
			way = fmt.Sprintf("LoRA of rank %d", s.LoRA.Rank)
		}
	}
	weights := "weights in " + s.Model.DType
	if setup.EncodesWeights(s) {
		what := "projections"
		if e := setup.EncodeBy(s.Model.Weights, s.Model.Coded); !e.Projections {
			what = "experts"
		}
		weights += ", " + what + " in " + s.Model.Weights
	}
	o.Model = fmt.Sprintf("%s: %s, %s parameters, %s active; %s; %s", s.Run.Name, p.Model.Family, billions(total),
		billions(active), way, weights)
	o.Batch = fmt.Sprintf("%d packs of %d tokens, %d a rank at a time", s.Run.Packs, s.Data.PackRows, s.Run.MicroBatch)
	if s.RL.Objective != "" {
		o.Batch = fmt.Sprintf("%s: %d answers of %d tokens, packs of %d tokens, %d a rank at a time", s.RL.Objective,
			s.RL.Prompts*s.RL.Group, s.Rollout.MaxTokens, s.Data.PackRows, s.Run.MicroBatch)
	}
}

// purposes cuts memory up, of a GPU that of the rank that takes most. Block inputs are what a block that recomputes
// keeps.
func (p *Plan) purposes(n Memory) []Purpose {
	experts, inputs, fullest := 0, 0, p.fullest()
	for i, m := range p.models() {
		if p.s.Device.Kind == "cpu" || i == fullest {
			experts, inputs = experts+m.ExpertBytes(), inputs+p.blockInputs(i)
		}
	}
	experts, inputs = min(experts, n.Weights), min(inputs, n.Activations)
	var list []Purpose
	for _, of := range []Purpose{{Name: "experts", Bytes: experts}, {Name: "other weights", Bytes: n.Weights - experts},
		{Name: "gradients and optimizer", Bytes: n.Training}, {Name: "block inputs", Bytes: inputs},
		{Name: "blocks at work", Bytes: n.Activations - inputs}, {Name: "cache", Bytes: n.Cache}} {
		if of.Bytes > 0 {
			list = append(list, of)
		}
	}
	list = append(list, n.OfHost()...)
	if n.Other > 0 {
		list = append(list, Purpose{Name: "process", Bytes: n.Other, Host: true})
	}
	return list
}

// blockInputs is the bytes of the inputs of a rank's blocks that its lanes keep on the device.
func (p *Plan) blockInputs(rank int) int {
	r := p.ranks()[rank]
	blocks, packs := 0, min(p.packs(), p.s.Run.MicroBatch)
	if p.Model.Stages() > 0 {
		for i, chunk := range p.Model.PipelineStages(rank) {
			blocks += (chunk.To - chunk.From) * tasks(p.s, p.packs()).InFlight(rank, i)
		}
	} else {
		packs = trainer.New(r, p.models()[rank], trainer.Options{MicroBatch: p.s.Run.MicroBatch,
			Interleave: p.s.Parallel.Interleave, Context: p.s.Parallel.Context}).SharePacks(p.packs())
		for _, lane := range r.AllLanes() {
			if lane.Stack.Peak() > 0 {
				blocks += len(p.Model.Blocks)
			}
		}
	}
	rows := packs * p.s.Data.PackRows / p.s.Parallel.Context
	return blocks*kernels.ArenaBytes(p.Model.DType, rows, p.Model.Hidden) - pinnedPeak(r)
}

package plan

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"lockstep/configs"
	"lockstep/kernels"
	"lockstep/kernels/meta"
	"lockstep/model"
	"lockstep/serve"
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
	for _, set := range meshes {
		s, err := shape(slices.Concat(on, set)...)
		if err == nil && s.Parallel.Ranks > machine.Cards && machine.Device != "cpu" {
			err = fmt.Errorf("parallel.ranks: %d ranks take a card each, and %s has %d", s.Parallel.Ranks, machine.Name,
				machine.Cards)
		}
		var m *OnMesh
		if err == nil {
			m, err = o.plan(s)
		}
		switch {
		case err == nil:
			o.Meshes = append(o.Meshes, *m)
		case len(meshes) == 1:
			return nil, err
		default:
			o.refuse(set, err)
		}
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
	if !o.Meshes[0].Fits() {
		s, err := shape(slices.Concat(on, meshes[len(meshes)-1])...)
		for i := len(meshes) - 2; err != nil && i >= 0; i-- { // the one that divides most and is allowed
			s, err = shape(slices.Concat(on, meshes[i])...)
		}
		if err != nil {
			return nil, err
		}
		o.Mend = o.mend(s)
	}
	return o, nil
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
	p, err := o.open(s)
	if err != nil {
		return nil, err
	}
	have := o.available()
	n, err := p.Choose(have)
	if err != nil {
		return nil, err
	}
	o.describe(p)
	m := &OnMesh{Ranks: s.Parallel.Ranks, Experts: s.Parallel.Experts, Weights: s.Parallel.Weights,
		Interleave: s.Parallel.Interleave, Available: have, Bytes: n.Total(), Purposes: p.purposes(n),
		Host: n.Host, HostHas: int(o.Machine.Memory.Host * gibibyte),
		Recompute: p.Model.Summary(p.Keep, p.Extent())}
	if m.Step, err = p.Step(o.Machine); err != nil {
		return nil, err
	}
	m.Longest, m.Bounded = p.longestSequence(have)
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

// mend says what to change of the mesh that takes least.
func (o *OnMachine) mend(s *configs.Shape) string {
	type graph struct {
		parallel configs.Parallel
		offload  configs.Offload
		rank     int
		weights  string
	}
	open := map[graph]*Plan{} // graphs serve shapes that differ in the size of a step alone
	takes := func(t *configs.Shape) (n int, err error) {
		of := graph{t.Parallel, t.Offload, t.LoRA.Rank, t.Model.Weights}
		p := open[of]
		if p == nil || setup.Generates(t) {
			if p, err = o.open(t); err != nil {
				return 0, err
			}
			open = map[graph]*Plan{of: p}
		}
		p.s = t
		memory, err := p.Choose(o.available())
		if memory.Host > int(o.Machine.Memory.Host*gibibyte) {
			return 0, fmt.Errorf("the host has %.0f GiB", o.Machine.Memory.Host)
		}
		return memory.Total(), err
	}
	text := firstChanges(s, o.available(), takes)
	for _, larger := range o.Machine.Larger() {
		t := *s
		t.Parallel.Ranks, t.Parallel.Weights = larger.Cards, "sharded"
		if t.Parallel.Experts != 1 || o.divides(&t) {
			t.Parallel.Experts = larger.Cards
		}
		if n, err := takes(&t); err == nil && n <= o.available() {
			return fmt.Sprintf("%s; it fits as it is on %s: %s a card", text, larger.Name, Size(n))
		}
	}
	return text
}

// divides tells whether a shape's model has experts to divide.
func (o *OnMachine) divides(s *configs.Shape) bool {
	t := *s
	t.Parallel = configs.Parallel{Ranks: 1, Experts: 1, Weights: "replicated", Interleave: 1}
	p, err := New(o.device(&t), &t)
	return err == nil && p.Model.Mixtures() > 0
}

// purposes cuts memory up. Experts are those of the rank that takes most; block inputs are what a block that recomputes
// keeps.
func (p *Plan) purposes(n Memory) []Purpose {
	experts, inputs := 0, 0
	for i, r := range p.ranks() {
		of := p.models()[i].ExpertBytes()
		rows := 0
		for _, lane := range r.AllLanes() {
			if lane.Stack.Peak() > 0 {
				rows += min(p.packs(), max(p.s.Run.MicroBatch/p.s.Parallel.Interleave, 1)) * p.s.Data.PackRows
			}
		}
		in := len(p.Model.Blocks) * kernels.ArenaBytes(p.Model.DType, rows, p.Model.Hidden)
		if p.s.Device.Kind == "cpu" {
			experts, inputs = experts+of, inputs+in
		} else {
			experts, inputs = max(experts, of), max(inputs, in)
		}
	}
	experts, inputs = min(experts, n.Weights), min(inputs, n.Activations)
	var list []Purpose
	for _, of := range []Purpose{{Name: "experts", Bytes: experts}, {Name: "other weights", Bytes: n.Weights - experts},
		{Name: "gradients and optimizer", Bytes: n.Training}, {Name: "block inputs", Bytes: inputs},
		{Name: "blocks at work", Bytes: n.Activations - inputs}, {Name: "cache", Bytes: n.Cache},
		{Name: "optimizer state", Bytes: n.Host, Host: true},
		{Name: "process", Bytes: n.Other, Host: true}} {
		if of.Bytes > 0 {
			list = append(list, of)
		}
	}
	return list
}

// Step is the time of a step on a machine. The plan's devices are those of [meta.New].
func (p *Plan) Step(machine configs.Machine) (step Step, err error) {
	s := p.s
	o, err := setup.TrainerOptions(s, math.MaxInt32, p.Keep)
	if err != nil {
		return step, err
	}
	t := trainer.New(p.Rank, p.Model, o)
	c := clock{machine, s.Parallel.Ranks}
	packs, updates := s.Run.Packs, 1
	if rl := s.RL; rl.Objective != "" {
		answers := rl.Prompts * rl.Group
		packs = max((answers/rl.Minibatches*p.longest+s.Data.PackRows-1)/s.Data.PackRows, 1)
		updates = rl.Minibatches * rl.Epochs
		step.rollouts(c, p.rolloutWork(t, answers))
	}
	p.clearStacks()
	w := t.StepWork(packs, s.Data.PackRows)
	lanes := min(s.Parallel.Interleave, w.Micros)
	m := mesh{Parallel: s.Parallel, blocks: len(p.Model.Blocks)}
	m.Interleave = lanes
	m.segments = max(s.Run.MicroBatch/s.Parallel.Interleave, 1) *
		((s.Data.PackRows + s.Definition.Segment - 1) / s.Definition.Segment)
	for range updates {
		step.update(c, w, m)
		step.offloaded(c, float64(p.static[0].Host), s.Offload.Ring*gibibyte)
	}
	step.merge()
	if step.Tokens = packs * s.Data.PackRows; s.RL.Objective != "" {
		step.Tokens = s.RL.Prompts * s.RL.Group * s.Rollout.MaxTokens
	}
	return step, nil
}

// merge adds parts of one name.
func (s *Step) merge() {
	var list []Part
	for _, part := range s.Parts {
		i := slices.IndexFunc(list, func(p Part) bool { return p.Name == part.Name })
		if i < 0 {
			list = append(list, part)
			continue
		}
		list[i].Seconds, list[i].Hidden = list[i].Seconds+part.Seconds, list[i].Hidden+part.Hidden
	}
	s.Parts = list
}

// rolloutWork counts what sampling so many answers takes of each rank.
func (p *Plan) rolloutWork(t *trainer.Trainer, answers int) rolloutWork {
	s, e, dev := p.s, p.engines[0], p.Rank.Dev.(*meta.Device)
	prompt := max(p.longest-s.Rollout.MaxTokens, 1)
	p.clearStacks()
	dev.CountWork(true)
	defer dev.CountWork(false)
	e.PlanDecode(min(prompt+s.Rollout.MaxTokens/2, e.MaxLength()))
	w := rolloutWork{decode: dev.Work(), answers: answers, slots: s.Rollout.Slots, tokens: s.Rollout.MaxTokens,
		prefills: float64(s.RL.Prompts*prompt) / float64(s.Parallel.Ranks*s.Data.PackRows)}
	w.prefill = t.ForwardWork(1, s.Data.PackRows)
	return w
}

// longestSequence is the longest pack of one sequence that fits on every rank, one in each lane at a time, with full
// recompute, and whether it is the longest that the model has positions for.
func (p *Plan) longestSequence(have int) (rows int, bounded bool) {
	s := *p.s
	s.Run.MicroBatch, s.Run.Packs = s.Parallel.Interleave, s.Parallel.Ranks*s.Parallel.Interleave
	ranks, room := p.ranks(), have
	taken := 0
	for _, of := range p.static {
		if s.Device.Kind == "cpu" {
			taken += of.Total() + of.Host
		} else {
			taken = max(taken, of.Total())
		}
	}
	room -= taken
	last := trainer.New(ranks[len(ranks)-1], p.models()[len(ranks)-1], trainer.Options{MicroBatch: s.Run.MicroBatch,
		Interleave: s.Parallel.Interleave, Keep: p.Model.Everywhere(0)})
	takes := func(rows int) int {
		p.clearStacks()
		last.Peak(s.Run.Packs, rows)
		n := activations(last.Rank)
		if s.Device.Kind == "cpu" {
			n *= len(ranks)
		}
		return n
	}
	return longestRows(p.Model.MaxLength, room, takes)
}

// rowGrid is what longest sequences are multiples of.
const rowGrid = 64

// longestRows is the largest multiple of the grid up to most whose bytes fit into room; 0: none. Bytes grow about
// linearly with rows, so it searches along a line through what it knows.
func longestRows(most, room int, takes func(rows int) int) (rows int, bounded bool) {
	if most <= rowGrid || takes(most) <= room {
		if most <= rowGrid && takes(most) > room {
			return 0, false
		}
		return most, true
	}
	low, high := 0, (most+rowGrid-1)/rowGrid // in units of the grid: fits, does not fit
	lowBytes, highBytes := 0, takes(most)
	for tries := 0; high-low > 1; tries++ {
		at := low + (high-low)/2
		if tries%3 < 2 && highBytes > lowBytes {
			at = low + int(float64(high-low)*float64(room-lowBytes)/float64(highBytes-lowBytes))
			at = min(max(at, low+1), high-1)
		}
		if n := takes(at * rowGrid); n <= room {
			low, lowBytes = at, n
		} else {
			high, highBytes = at, n
		}
	}
	return low * rowGrid, false
}

// StepOn is the time of a step of a run on a machine, whose answers have at most so many positions with their prompts,
// and whose blocks keep what a policy says.
func StepOn(machine configs.Machine, s *configs.Shape, longest int, keep model.Policy) (Step, error) {
	o := &OnMachine{Machine: machine}
	dev := o.device(s)
	p, err := New(dev, s)
	if err == nil {
		err = p.OpenEngines(dev, longest)
	}
	if err != nil {
		return Step{}, err
	}
	p.Keep = keep
	return p.Step(machine)
}

// DecodeSize is a batch that decodes: so many sequences of so many prompt tokens and new ones.
type DecodeSize struct{ Rows, Prompt, Tokens int }

// Workloads is the tokens a second of a shape's training, forward and decoding on one card of a machine, as lockstep
// bench cuda times them.
func Workloads(s *configs.Shape, machine configs.Machine, d DecodeSize) (map[string]float64, error) {
	o := &OnMachine{Machine: machine}
	p, err := New(o.device(s), s)
	if err != nil {
		return nil, err
	}
	if _, err := p.Choose(o.available()); err != nil {
		return nil, err
	}
	by, err := setup.TrainerOptions(s, math.MaxInt32, p.Keep)
	if err != nil {
		return nil, err
	}
	step, err := p.Step(machine)
	if err != nil {
		return nil, err
	}
	c := clock{machine, 1}
	t := trainer.New(p.Rank, p.Model, by)
	rates := map[string]float64{"train": step.Rate()}
	p.clearStacks()
	rates["forward"] = float64(step.Tokens) / c.arithmetic(t.ForwardWork(s.Run.Packs, s.Data.PackRows),
		machine.Share.Forward)
	options := setup.EngineOptions(s)
	options.Slots, options.Pages = d.Rows, 0
	e, err := serve.NewEngine(p.Rank, p.Model, kernels.NewArena(p.Rank.Dev), options)
	if err != nil {
		return nil, err
	}
	dev := p.Rank.Dev.(*meta.Device)
	dev.CountWork(true)
	defer dev.CountWork(false)
	e.PlanDecode(min(d.Prompt+d.Tokens/2, e.MaxLength()))
	decode := float64(d.Tokens) * c.arithmetic(dev.Work(), machine.Share.Decode)
	prefill := c.arithmetic(t.ForwardWork(1, d.Rows*d.Prompt), machine.Share.Forward)
	rates["decode"] = float64(d.Rows*d.Tokens) / (decode + prefill)
	return rates, nil
}

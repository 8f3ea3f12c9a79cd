package plan

import (
	"fmt"
	"strings"

	"lockstep/configs"
	"lockstep/data"
	"lockstep/kernels"
	"lockstep/kernels/meta"
	"lockstep/model"
	"lockstep/parallel"
	"lockstep/quant"
	"lockstep/serve"
	"lockstep/train/setup"
	"lockstep/train/trainer"
)

// Memory is the peak of a run's memory by purpose, in bytes. Of several GPUs it is that of the one that takes most.
type Memory struct {
	Weights     int // of the model, its adapters and tables; of the reference and of a rollout with numerics of its own
	Training    int // gradients, moments and masters
	Activations int // the largest that the rank's stack becomes, and the device's workspace
	Cache       int // of the rollout engine
	Host        int // memory of the host that is pinned for all devices, for what is offloaded
	HostInputs  int // of it, for inputs of blocks
	HostWeights int // of it, for weights of blocks
	Other       int // host memory of the process, where that is the device's

	Shared bool // device and host have one memory, so Host counts in the total: the CPU
}

// Device returns the device memory of the run.
func (n Memory) Device() int { return n.Weights + n.Training + n.Activations + n.Cache }

// Total returns the peak of device memory, and of host memory where that is one with it.
func (n Memory) Total() int {
	if n.Shared {
		return n.Device() + n.Host + n.Other
	}
	return n.Device() + n.Other
}

func (n Memory) String() string {
	text := fmt.Sprintf("%s at the peak (weights %s, training %s, activations %s, cache %s, other %s", Size(n.Total()),
		Size(n.Weights), Size(n.Training), Size(n.Activations), Size(n.Cache), Size(n.Other))
	var host []string
	for _, p := range n.OfHost() {
		host = append(host, p.Name+" "+Size(p.Bytes))
	}
	switch {
	case n.Host == 0:
		return text + ")"
	case n.Shared:
		return fmt.Sprintf("%s, offloaded %s: %s)", text, Size(n.Host), strings.Join(host, ", "))
	}
	return fmt.Sprintf("%s) and %s of the host (%s)", text, Size(n.Host), strings.Join(host, ", "))
}

// OfHost is what is pinned on the host for all ranks, by purpose.
func (n Memory) OfHost() (list []Purpose) {
	for _, of := range []Purpose{{Name: "optimizer state", Bytes: n.Host - n.HostInputs - n.HostWeights},
		{Name: "frozen weights", Bytes: n.HostWeights}, {Name: "offloaded block inputs", Bytes: n.HostInputs}} {
		if of.Host = true; of.Bytes > 0 {
			list = append(list, of)
		}
	}
	return list
}

// Size formats bytes for people, to three digits or more: "12 MiB", "1.50 GiB".
func Size(n int) string {
	if n < 1<<30 {
		return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.2f GiB", float64(n)/(1<<30))
}

// Plan is a run's model and engine on a device that counts memory and computes nothing. [New] makes it,
// [Plan.OpenEngines] adds what generates, and [Plan.Choose] computes the peak.
type Plan struct {
	s         *configs.Shape
	Rank      *parallel.Rank
	Model     *model.Model
	Tokenizer *data.ChatTokenizer
	engines   []*serve.Engine // of each rank; none: the run generates nothing
	static    []Memory        // of each rank, all but activations
	longest   int             // positions of the longest answer with its prompt
	process   int             // [processMemory] when it was asked first; 0: not asked
	Keep      model.Policy    // what blocks keep for the backward pass, see plan

	others []*trainer.Trainer // of the other ranks, each with a replica of the model

	// Of a rollout with numerics of its own; nil: none.
	Rollout       *parallel.Rank
	rolloutEngine *serve.Engine
}

// New builds the graph of a shape's run for a device. It reads config.json, the tokenizer and the headers of the
// weights, and takes no memory of the device.
func New(dev kernels.Device, s *configs.Shape) (p *Plan, err error) {
	var ranks []*parallel.Rank
	var devices []kernels.Device
	for id := range s.Parallel.Ranks {
		r := metaRank(dev, id, s.Parallel.Ranks)
		r.Lanes(s.Parallel.Interleave)
		ranks, devices = append(ranks, r), append(devices, r.Dev)
	}
	p = &Plan{s: s, Rank: ranks[0]}
	if p.Model, p.Tokenizer, err = setup.OpenModel(devices, s); err != nil {
		return nil, err
	}
	for _, r := range ranks[1:] {
		m, err := p.Model.Replica(r.ID, r.Dev)
		if err != nil {
			return nil, err
		}
		p.others = append(p.others, trainer.New(r, m, trainer.Options{}))
	}
	if s.RL.Objective != "" && s.RL.KLCoef > 0 {
		if _, err = p.Model.EmptyCopy(devices[0], p.Model.DType, model.Encode{}); err != nil {
			return nil, err
		}
	}
	models := p.models()
	for i, r := range ranks {
		weights, host := handedOut(r), kernels.Pinned(r.Dev)
		models[i].TrainShards(i, len(ranks))
		p.static = append(p.static, Memory{Weights: weights, Training: handedOut(r) - weights,
			Host: kernels.Pinned(r.Dev), HostWeights: host})
	}
	return p, nil
}

// models are the replicas of the model, by rank.
func (p *Plan) models() []*model.Model {
	list := []*model.Model{p.Model}
	for _, t := range p.others {
		list = append(list, t.Model)
	}
	return list
}

// OpenEngines adds the rollout engine to the plan of a run that has one, for sequences of at most so many positions.
func (p *Plan) OpenEngines(dev kernels.Device, longest int) (err error) {
	p.longest = longest
	if !setup.Generates(p.s) {
		return nil
	}
	models := p.models()
	for i, r := range p.ranks() {
		before := handedOut(r)
		e, err := serve.NewEngine(r, models[i], kernels.NewArena(r.Dev), p.EngineOptions())
		if err != nil {
			return err
		}
		p.engines, p.static[i].Cache = append(p.engines, e), handedOut(r)-before
	}
	if p.s.RL.Objective == "" || p.s.Rollout.Numerics == (configs.Numerics{}) {
		return nil
	}
	return p.openRollout(dev)
}

// EngineOptions returns the size of the engine, for the longest sequence that the run asks for.
func (p *Plan) EngineOptions() serve.Options {
	o := setup.EngineOptions(p.s)
	o.MaxLength = p.longest
	return o
}

// Shortage is [serve.Engine.Shortage] of the engines; a plan without any has none.
func (p *Plan) Shortage() string {
	if len(p.engines) == 0 {
		return ""
	}
	return p.engines[0].Shortage()
}

// openRollout adds a rollout with rollout.numerics, which has a copy of the weights on a second device.
func (p *Plan) openRollout(dev kernels.Device) error {
	p.Rollout = metaRank(dev, 0, 1)
	d := p.Rollout.Dev
	m, err := p.Model.EmptyCopy(d, p.Model.DType,
		model.Encode{As: quant.Encoding(p.s.Rollout.Numerics.Weights), Projections: true})
	if err != nil {
		return err
	}
	weights := handedOut(p.Rollout)
	p.rolloutEngine, err = serve.NewEngine(p.Rollout, m, kernels.NewArena(d), p.EngineOptions())
	p.static[0].Weights += weights
	p.static[0].Cache += handedOut(p.Rollout) - weights
	return err
}

// metaRank is a rank on a device that takes the memory of another and computes nothing.
func metaRank(dev kernels.Device, id, size int) *parallel.Rank {
	d := metaOf(dev)
	return &parallel.Rank{Dev: d, Stack: kernels.NewArena(d), ID: id, Size: size}
}

// metaOf is a device that takes the memory of another and computes nothing.
func metaOf(dev kernels.Device) kernels.Device {
	if d, ok := dev.(kernels.Planner); ok {
		return d.Meta()
	}
	return meta.New(dev.Definition(), dev.Spare())
}

// handedOut is the bytes of all tensors on a rank's device, without its workspace.
func handedOut(r *parallel.Rank) int {
	return kernels.Allocated(r.Dev) - kernels.Workspace(r.Dev)
}

// peak runs the largest step of each phase of the run: a micro-batch of full packs with the optimizer's step, the
// forwards of evaluation, the engine's widest step, the exact KL, the final proof.
func (p *Plan) peak() (Memory, error) {
	o, err := setup.TrainerOptions(p.s, 1<<30, p.Keep)
	if err != nil {
		return Memory{}, err
	}
	t := trainer.New(p.Rank, p.Model, o)
	p.clearStacks()
	host, err := p.carryOut(t)
	n := p.total()
	if p.s.Device.Kind == "cpu" {
		if p.process == 0 {
			p.process = processMemory()
		}
		n.Other = p.process + host
	}
	return n, err
}

// total adds the activations that the ranks' stacks have seen to what else they take: of all ranks together, whose
// memory the CPU has, or of the rank that takes most of its GPU.
func (p *Plan) total() (n Memory) {
	host, inputs, weights, fullest := 0, 0, 0, p.fullest()
	for i, of := range p.static {
		inputs += pinnedPeak(p.ranks()[i])
		host, weights = host+of.Host, weights+of.HostWeights
		switch of = p.ofRank(i); {
		case p.s.Device.Kind == "cpu":
			n = Memory{Weights: n.Weights + of.Weights, Training: n.Training + of.Training,
				Activations: n.Activations + of.Activations, Cache: n.Cache + of.Cache, Shared: true}
		case i == fullest:
			n = of
		}
	}
	n.Host, n.HostInputs, n.HostWeights = host+inputs, inputs, weights
	return n
}

// ofRank is the memory of a rank, with the activations that its stacks have seen.
func (p *Plan) ofRank(i int) Memory {
	of := p.static[i]
	of.Activations = activations(p.ranks()[i])
	if i == 0 && p.Rollout != nil { // it shares the device
		of.Activations += activations(p.Rollout)
	}
	return of
}

// fullest is the first rank that takes most of its device.
func (p *Plan) fullest() (rank int) {
	for i := range p.static {
		if p.ofRank(i).Total() > p.ofRank(rank).Total() {
			rank = i
		}
	}
	return rank
}

// pinnedPeak is what activations take of the host.
func pinnedPeak(r *parallel.Rank) (bytes int) {
	for _, lane := range r.AllLanes() {
		bytes += lane.PinnedPeak()
	}
	return bytes
}

func activations(r *parallel.Rank) int {
	bytes := kernels.Workspace(r.Dev)
	for _, lane := range r.AllLanes() {
		bytes += lane.Stack.Peak()
	}
	return bytes
}

// clearStacks gives all ranks an empty stack, whose peak is that of what runs from here on.
func (p *Plan) clearStacks() {
	ranks := p.ranks()
	if p.Rollout != nil {
		ranks = append(ranks, p.Rollout)
	}
	for _, r := range ranks {
		for _, lane := range r.AllLanes() {
			lane.ClearStacks(meta.Endless)
		}
	}
}

// packs is how many the largest step of the trainer has.
func (p *Plan) packs() int {
	s := p.s
	if rl := s.RL; rl.Objective != "" { // a pack holds an answer at least
		return max(s.WarmStart.Packs, s.Run.MicroBatch, rl.Prompts*rl.Group/rl.Minibatches)
	}
	return s.Run.Packs
}

// ranks are those that train.
func (p *Plan) ranks() []*parallel.Rank {
	list := []*parallel.Rank{p.Rank}
	for _, t := range p.others {
		list = append(list, t.Rank)
	}
	return list
}

// carryOut runs the phases. host is the largest host memory that one of them takes apart from tensors, in bytes.
func (p *Plan) carryOut(t *trainer.Trainer) (host int, err error) {
	s := p.s
	p.trainingPeak(t)
	for _, t := range append([]*trainer.Trainer{t}, p.others...) {
		if s.RL.Objective == "" {
			t.PeakLogProbs(s.Data.PackRows)
		} else { // one rank alone has the reference
			trainer.LogProbs(t.Rank, t.Model, trainer.Supervised([][]data.Sample{t.FullPack(s.Data.PackRows)}).Packs)
		}
	}
	if p.rolloutEngine != nil {
		p.rolloutEngine.PlanLargestStep(false)
	}
	for _, e := range p.engines {
		e.PlanLargestStep(false)
	}
	if s.RL.Objective != "" && s.RL.ExactKL > 0 {
		answers := min(s.RL.ExactKL, s.RL.Prompts*s.RL.Group)
		host = serve.PlanDivergence(p.Rank, p.Model, min(p.longest, p.Model.MaxLength), answers*s.Rollout.MaxTokens)
	}
	if s.Run.VerifyTokens > 0 {
		proof, err := p.proof()
		return max(host, proof), err
	}
	return host, nil
}

// proof runs the proof of all ranks, and returns the host memory that it takes.
func (p *Plan) proof() (host int, err error) {
	for i, m := range p.models() {
		of, err := serve.PlanVerify(p.ranks()[i], m, p.s.Run.VerifyTokens)
		if err != nil {
			return 0, err
		}
		host += of
	}
	return host, nil
}

// trainingPeak takes the trainer's largest step on all ranks.
func (p *Plan) trainingPeak(t *trainer.Trainer) {
	t.Peak(p.packs(), p.s.Data.PackRows)
	for _, other := range p.others {
		other.Options = t.Options
		other.Peak(p.packs(), p.s.Data.PackRows)
	}
}

// ReserveRanks is [Reserve] of a run's ranks.
func (p *Plan) ReserveRanks(w *parallel.World) error {
	return w.Run(func(r *parallel.Rank) error {
		Reserve(r, p.ranks()[r.ID])
		return nil
	})
}

// Reserve takes the stacks and the workspace of a rank at once, as large as those of a plan: no step asks for memory of
// the device or of the host.
func Reserve(r, plan *parallel.Rank) {
	kernels.ReserveWorkspace(r.Dev, kernels.Workspace(plan.Dev))
	planned := plan.AllLanes()
	for i, lane := range r.Lanes(len(planned)) {
		lane.Stack.Reserve(planned[i].Stack.Peak())
		if n := planned[i].PinnedPeak(); n > 0 {
			lane.Pinned().Reserve(n)
		}
	}
}

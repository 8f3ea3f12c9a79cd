package plan

import (
	"fmt"

	"lockstep/configs"
	"lockstep/data"
	"lockstep/kernels"
	"lockstep/kernels/meta"
	"lockstep/model"
	"lockstep/parallel"
	"lockstep/serve"
	"lockstep/train/setup"
	"lockstep/train/trainer"
)

// Memory is what a run takes at its peak, in bytes.
type Memory struct {
	Weights     int // of the model, its adapters and tables; of the reference and of a rollout with numerics of its own
	Training    int // gradients, moments and masters
	Activations int // the largest that the rank's stack becomes, and the device's workspace
	Cache       int // of the rollout engine
	Other       int // host memory of the process, where that is the device's
}

// Device is what the run takes of its device.
func (n Memory) Device() int { return n.Weights + n.Training + n.Activations + n.Cache }

// Total is the peak.
func (n Memory) Total() int { return n.Device() + n.Other }

func (n Memory) String() string {
	return fmt.Sprintf("%s at the peak (weights %s, training %s, activations %s, cache %s, other %s)",
		Size(n.Total()), Size(n.Weights), Size(n.Training), Size(n.Activations),
		Size(n.Cache), Size(n.Other))
}

// Size formats bytes for people, to three digits or more: "12 MiB", "1.50 GiB".
func Size(n int) string {
	if n < 1<<30 {
		return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.2f GiB", float64(n)/(1<<30))
}

// Plan is a run's model and engine on a device that counts memory and computes nothing.
type Plan struct {
	s        *configs.Shape
	Rank     *parallel.Rank
	Model    *model.Model
	Language *data.Language
	engine   *serve.Engine // nil: the run generates nothing
	static   Memory        // all but activations
	longest  int           // positions of the longest answer with its prompt
	process  int           // [processMemory] when it was asked first; 0: not asked
	Keep     model.Policy  // what blocks keep for the backward pass, see plan

	// Of a rollout with numerics of its own; nil: none.
	Rollout       *parallel.Rank
	rolloutEngine *serve.Engine
}

// New describes the run of a shape on the device. It reads config.json, the tokenizer and the headers of the
// weights.
func New(dev kernels.Device, s *configs.Shape) (p *Plan, err error) {
	p = &Plan{s: s, Rank: metaRank(dev)}
	d := p.Rank.Dev
	if p.Model, p.Language, err = setup.OpenModel(d, s); err != nil {
		return nil, err
	}
	if s.RL.Objective != "" && s.RL.KLCoef > 0 {
		if _, err = p.Model.Twin(d, p.Model.DType); err != nil {
			return nil, err
		}
	}
	p.static.Weights = handedOut(p.Rank)
	p.Model.TrainAll()
	p.static.Training = handedOut(p.Rank) - p.static.Weights
	return p, nil
}

// OpenEngines describes what generates, for sequences of so many positions at most.
func (p *Plan) OpenEngines(dev kernels.Device, longest int) (err error) {
	p.longest = longest
	if !setup.Generates(p.s) {
		return nil
	}
	before := handedOut(p.Rank)
	if p.engine, err = serve.NewEngine(p.Rank, p.Model, kernels.NewArena(p.Rank.Dev), p.EngineOptions()); err != nil {
		return err
	}
	p.static.Cache = handedOut(p.Rank) - before
	if p.s.RL.Objective == "" || p.s.Rollout.Numerics == (configs.Numerics{}) {
		return nil
	}
	return p.openRollout(dev)
}

// EngineOptions are the shape's, for the longest sequence that the run asks for.
func (p *Plan) EngineOptions() serve.Options {
	o := setup.EngineOptions(p.s)
	o.Longest = p.longest
	return o
}

// openRollout describes a rollout with numerics of its own, which has a copy of the weights on another device of the
// kind.
func (p *Plan) openRollout(dev kernels.Device) error {
	p.Rollout = metaRank(dev)
	d := p.Rollout.Dev
	m, err := p.Model.Twin(d, p.Model.DType)
	if err != nil {
		return err
	}
	weights := handedOut(p.Rollout)
	p.rolloutEngine, err = serve.NewEngine(p.Rollout, m, kernels.NewArena(d), p.EngineOptions())
	p.static.Weights += weights
	p.static.Cache += handedOut(p.Rollout) - weights
	return err
}

// metaRank is a rank on a device that takes the memory of another and computes nothing.
func metaRank(dev kernels.Device) *parallel.Rank {
	d := metaOf(dev)
	return &parallel.Rank{Dev: d, Stack: kernels.NewArena(d), Size: 1}
}

// metaOf is a device that takes the memory of another and computes nothing.
func metaOf(dev kernels.Device) kernels.Device {
	if d, ok := dev.(kernels.Planner); ok {
		return d.Meta()
	}
	return meta.New(dev.Definition(), dev.Spare())
}

// handedOut is the bytes that tensors hold of a rank's device; the workspace is none.
func handedOut(r *parallel.Rank) int {
	return r.Dev.(kernels.Counter).Counts().Bytes - workspaceOf(r)
}

// workspaceOf is the device's workspace in bytes, of a device that counts the largest that was asked for.
func workspaceOf(r *parallel.Rank) int {
	if d, ok := r.Dev.(kernels.Workspacer); ok {
		return d.Workspace()
	}
	return 0
}

// peak carries out the largest that each phase of the run computes: a micro-batch of full packs with the optimizer's
// step, the forwards of evaluation, the engine's widest step, the exact KL, the final proof.
func (p *Plan) peak() (Memory, error) {
	o, err := setup.TrainerOptions(p.s, 1<<30, p.Keep)
	if err != nil {
		return Memory{}, err
	}
	t := trainer.New(p.Rank, p.Model, o)
	for _, r := range p.ranks() {
		clearStack(r)
	}
	host, err := p.carryOut(t)
	n := p.static
	for _, r := range p.ranks() {
		n.Activations += r.Stack.Peak() + workspaceOf(r)
	}
	if p.s.Device.Kind == "cpu" {
		if p.process == 0 {
			p.process = processMemory()
		}
		n.Other = p.process + host
	}
	return n, err
}

// clearStack makes the peak of a rank's stack that of what comes.
func clearStack(r *parallel.Rank) {
	r.Stack = kernels.NewArena(r.Dev)
	r.Stack.Reserve(meta.Endless)
}

// packs are as many as the largest step of the trainer has.
func (p *Plan) packs() int {
	s := p.s
	if rl := s.RL; rl.Objective != "" { // a pack holds an answer at least
		return max(s.WarmStart.Packs, s.Run.MicroBatch, rl.Prompts*rl.Group/rl.Minibatches)
	}
	return s.Run.Packs
}

// ranks are those of the run.
func (p *Plan) ranks() []*parallel.Rank {
	if p.Rollout == nil {
		return []*parallel.Rank{p.Rank}
	}
	return []*parallel.Rank{p.Rank, p.Rollout}
}

// carryOut is the phases of the run; host is the most memory that one takes of the host besides, in bytes.
func (p *Plan) carryOut(t *trainer.Trainer) (host int, err error) {
	s := p.s
	t.Peak(p.packs(), s.Data.PackRows)
	trainer.LogProbs(p.Rank, p.Model, trainer.Supervised([][]data.Sample{t.FullPack(s.Data.PackRows)}))
	samples := p.engine // for reinforcement learning
	if p.rolloutEngine != nil {
		samples = p.rolloutEngine
		samples.Widest(false)
	}
	if p.engine != nil {
		p.engine.Widest(false)
	}
	if s.RL.Objective != "" && s.RL.ExactKL > 0 {
		host = samples.PlanDivergence(p.Rank, p.Model, min(p.longest, p.Model.MaxLength))
	}
	if s.Run.VerifyTokens > 0 {
		proof, err := serve.PlanProof(p.Rank, p.Model, s.Run.VerifyTokens)
		return max(host, proof), err
	}
	return host, nil
}

// Reserve takes at once what a rank computes in by a plan: no step asks for memory.
func Reserve(r, plan *parallel.Rank) {
	if d, ok := r.Dev.(kernels.Workspacer); ok {
		d.ReserveWorkspace(workspaceOf(plan))
	}
	r.Stack.Reserve(plan.Stack.Peak())
}

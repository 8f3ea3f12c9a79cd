package train

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"

	"lockstep/configs"
	"lockstep/data"
	"lockstep/kernels"
	"lockstep/kernels/meta"
	"lockstep/model"
	"lockstep/parallel"
	"lockstep/serve"
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
		memorySize(n.Total()), memorySize(n.Weights), memorySize(n.Training), memorySize(n.Activations),
		memorySize(n.Cache), memorySize(n.Other))
}

// memoryTaken is what a plan said and what the run took of it, in bytes.
type memoryTaken struct {
	Planned       int   `json:"planned"`
	Peak          int64 `json:"peak"` // resident memory of the process
	PlannedDevice int   `json:"planned_device"`
	Device        int   `json:"device"` // of all devices; on the CPU a part of the process's
}

// taken holds the job's plan against what it took.
func (j *job) taken() memoryTaken {
	n := memoryTaken{Planned: j.takes.Total(), Peak: peakMemory(), PlannedDevice: j.takes.Device()}
	for _, d := range []kernels.Device{j.t.r.Dev, j.beside} {
		if c, ok := d.(kernels.Counter); ok {
			n.Device += c.Counts().Bytes
		}
	}
	return n
}

// memorySize is bytes for people, to three digits or more.
func memorySize(n int) string {
	if n < 1<<30 {
		return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.2f GiB", float64(n)/(1<<30))
}

// planner is a run's model and engine on a device that counts memory and computes nothing.
type planner struct {
	s       *configs.Shape
	r       *parallel.Rank
	m       *model.Model
	lang    *data.Language
	engine  *serve.Engine // nil: the run generates nothing
	static  Memory        // all but activations
	longest int           // positions of the longest answer with its prompt
	process int           // [processMemory] when it was asked first; 0: not asked
	keep    model.Policy  // what blocks keep for the backward pass, see plan

	// Of a rollout with numerics of its own; nil: none.
	rollout       *parallel.Rank
	rolloutEngine *serve.Engine
}

// newPlanner describes the run of a shape on the device. It reads config.json, the tokenizer and the headers of the
// weights.
func newPlanner(dev kernels.Device, s *configs.Shape) (p *planner, err error) {
	p = &planner{s: s, r: metaRank(dev)}
	d := p.r.Dev
	if p.m, p.lang, err = openModel(d, s); err != nil {
		return nil, err
	}
	if s.RL.Objective != "" && s.RL.KLCoef > 0 {
		if _, err = p.m.Twin(d, p.m.DType); err != nil {
			return nil, err
		}
	}
	p.static.Weights = handedOut(p.r)
	p.m.TrainAll()
	p.static.Training = handedOut(p.r) - p.static.Weights
	return p, nil
}

// openEngines describes what generates, for sequences of so many positions at most.
func (p *planner) openEngines(dev kernels.Device, longest int) (err error) {
	p.longest = longest
	if !generates(p.s) {
		return nil
	}
	before := handedOut(p.r)
	if p.engine, err = serve.NewEngine(p.r, p.m, kernels.NewArena(p.r.Dev), p.engineOptions()); err != nil {
		return err
	}
	p.static.Cache = handedOut(p.r) - before
	if p.s.RL.Objective == "" || p.s.Rollout.Numerics == (configs.Numerics{}) {
		return nil
	}
	return p.openRollout(dev)
}

// engineOptions are the shape's, for the longest sequence that the run asks for.
func (p *planner) engineOptions() serve.Options {
	o := engineOptions(p.s)
	o.Longest = p.longest
	return o
}

// openRollout describes a rollout with numerics of its own, which has a copy of the weights on another device of the
// kind.
func (p *planner) openRollout(dev kernels.Device) error {
	p.rollout = metaRank(dev)
	d := p.rollout.Dev
	m, err := p.m.Twin(d, p.m.DType)
	if err != nil {
		return err
	}
	weights := handedOut(p.rollout)
	p.rolloutEngine, err = serve.NewEngine(p.rollout, m, kernels.NewArena(d), p.engineOptions())
	p.static.Weights += weights
	p.static.Cache += handedOut(p.rollout) - weights
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

// generates tells whether a run has a rollout engine: for reinforcement learning, or to answer held-out questions.
func generates(s *configs.Shape) bool {
	return s.RL.Objective != "" || s.Data.Task != "" && s.Data.EvalSamples > 0
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
func (p *planner) peak() (Memory, error) {
	t, err := newTrainer(p.s, 1<<30)
	if err != nil {
		return Memory{}, err
	}
	t.r, t.m, t.keep = p.r, p.m, p.keep
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
func (p *planner) packs() int {
	s := p.s
	if rl := s.RL; rl.Objective != "" { // a pack holds an answer at least
		return max(s.WarmStart.Packs, s.Run.MicroBatch, rl.Prompts*rl.Group/rl.Minibatches)
	}
	return s.Run.Packs
}

// ranks are those of the run.
func (p *planner) ranks() []*parallel.Rank {
	if p.rollout == nil {
		return []*parallel.Rank{p.r}
	}
	return []*parallel.Rank{p.r, p.rollout}
}

// carryOut is the phases of the run; host is the most memory that one takes of the host besides, in bytes.
func (p *planner) carryOut(t *trainer) (host int, err error) {
	s := p.s
	t.largest(p.packs(), s.Data.PackRows)
	logprobs(p.r, p.m, lessons([][]data.Sample{t.full(s.Data.PackRows)}))
	samples := p.engine // for reinforcement learning
	if p.rolloutEngine != nil {
		samples = p.rolloutEngine
		samples.Widest(false)
	}
	if p.engine != nil {
		p.engine.Widest(false)
	}
	if s.RL.Objective != "" && s.RL.ExactKL > 0 {
		host = samples.PlanDivergence(p.r, p.m, min(p.longest, p.m.MaxLength))
	}
	if s.Run.VerifyTokens > 0 {
		proof, err := serve.PlanProof(p.r, p.m, s.Run.VerifyTokens)
		return max(host, proof), err
	}
	return host, nil
}

// reserve takes at once what a rank computes in by a plan: no step asks for memory.
func reserve(r, plan *parallel.Rank) {
	if d, ok := r.Dev.(kernels.Workspacer); ok {
		d.ReserveWorkspace(workspaceOf(plan))
	}
	r.Stack.Reserve(plan.Stack.Peak())
}

// processMemory is what the process takes apart from tensors: what is resident now, as much again as is alive on Go's
// heap, which garbage may fill before it is collected, and buffers.
func processMemory() int {
	debug.FreeOSMemory()
	var heap runtime.MemStats
	runtime.ReadMemStats(&heap)
	return resident() + int(max(heap.HeapAlloc, leastHeap)) + buffers
}

// buffers is what operations of the CPU, and tensors on their way to and from a device, take of the host: measured.
const buffers = 16 << 20

// leastHeap is Go's heap before it is collected first.
const leastHeap = 4 << 20

// resident is what of the process lies in memory, in bytes; 0: unknown.
func resident() int {
	pages, _ := residentPages()
	return pages * os.Getpagesize()
}

// anonymous is what of it no file holds: the rest counts as available to the process itself.
func anonymous() int {
	pages, shared := residentPages()
	return (pages - shared) * os.Getpagesize()
}

func residentPages() (pages, shared int) {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, 0
	}
	var size int
	if _, err := fmt.Fscan(bytes.NewReader(text), &size, &pages, &shared); err != nil {
		return 0, 0
	}
	return pages, shared
}

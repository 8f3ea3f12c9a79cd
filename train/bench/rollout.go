package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"lockstep/configs"
	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/kernels/devices"
	"lockstep/model"
	"lockstep/parallel"
	"lockstep/serve"
	"lockstep/train/plan"
	"lockstep/train/runlog"
	"lockstep/train/setup"
)

// RolloutOptions are the traffic of [Rollout].
type RolloutOptions struct {
	Requests      int
	Samples       int  // of each prompt
	Prompt        Span // tokens
	New           Span // tokens; nothing else ends an answer
	Seed          uint64
	NoPrefixCache bool   // sequences share no pages
	Kernels       bool   // time each kernel of some steps afterwards, on devices that can
	Peer          string // Python interpreter with torch and transformers, for the same prompts; "": no peer
	Out           io.Writer
}

// copyTime is how long the rate of a copy is measured.
const copyTime = 300 * time.Millisecond

// Rollout prints what the rollout engine does with random prompts on the model of a shape, all of them asked at
// once: tokens a second, latencies, how full batch and cache were, and how near the steps come to what memory allows.
// The bound of a step is
//
//	(dense weights + head, if a token is drawn + experts that a row of it is routed to + cached keys, values and
//	states of its sequences, shared ones once) / rate of a copy
//
// in bytes that are to be read at least once (see model.Reads and model.CacheReads), experts counted in every mixture
// by a run of the same steps before the timed one; the rate is bytes read and written a second by a copy in the
// device's memory, on the CPU on all threads, measured before. Arithmetic is no part of it, so that steps that read
// prompts stay further below it.
func Rollout(ctx context.Context, s *configs.Shape, o RolloutOptions) error {
	if err := oneRank(s); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "lockstep-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	ours, err := rolloutOurs(ctx, s, o, dir)
	if err != nil {
		return err
	}
	if err := ours.print(o.Out); err != nil || o.Peer == "" {
		return err
	}
	return rolloutPeer(ctx, s, o, dir, ours)
}

// rollout is what was measured.
type rollout struct {
	serve.Measurement
	title    string
	shortage string           // of pages
	reads    []int            // bytes of each step
	copied   float64          // bytes a second
	planned  plan.Memory      // of the device
	taken    int              // bytes of it, in the end
	profiler kernels.Profiler // of the device; nil: it has none
	profiles []stepProfile
}

// rolloutOurs runs the traffic and frees the device's memory.
func rolloutOurs(ctx context.Context, s *configs.Shape, o RolloutOptions, dir string) (b *rollout, err error) {
	dev, err := devices.Open(setup.Device(s))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	profiler, ok := dev.(kernels.Profiler)
	if o.Kernels && !ok {
		return nil, fmt.Errorf("--kernels: %s cannot time its kernels: remove the flag, or use a GPU", dev.Name())
	}
	b = &rollout{copied: copyRate(dev), profiler: profiler}
	err = parallel.Run([]kernels.Device{dev}, func(r *parallel.Rank) error {
		if b.planned, err = plan.Generation(r, s, o.engine(s)); err != nil {
			return err
		}
		m, _, err := setup.OpenModel([]kernels.Device{dev}, s)
		if err != nil {
			return err
		}
		if most := o.Prompt.High + o.New.High; most > m.MaxLength {
			return fmt.Errorf("--prompt and --new need up to %d positions, the model has %d: lower them", most,
				m.MaxLength)
		}
		reqs := o.traffic(m)
		if err := o.write(dir, m, reqs); err != nil {
			return err
		}
		return b.run(ctx, r, m, o, o.engine(s), reqs)
	})
	if err != nil {
		return nil, err
	}
	b.taken = kernels.Allocated(dev)
	b.title = fmt.Sprintf("%s on %s, %s: %d requests, %d of a prompt, prompts of %v tokens, answers of %v; %d slots, "+
		"%d pages of %d rows", s.Run.Name, dev.Name(), s.Model.DType,
		o.Requests, o.Samples, &o.Prompt, &o.New, s.Rollout.Slots, b.Pages, s.Rollout.PageRows)
	return b, nil
}

// engine is the size of the engine.
func (o RolloutOptions) engine(s *configs.Shape) serve.Options {
	options := setup.EngineOptions(s)
	options.NoPrefixCache = o.NoPrefixCache
	return options
}

// run takes the traffic twice, first for the routes and then for the time. Where kernels are to be timed it takes it
// once more, after all other measurements.
func (b *rollout) run(ctx context.Context, r *parallel.Rank, m *model.Model, o RolloutOptions, options serve.Options,
	reqs []serve.Request) error {
	mem := kernels.NewArena(r.Dev)
	engine := func(r *parallel.Rank) (*serve.Engine, error) {
		mem.Release(kernels.Mark{})
		return serve.NewEngine(r, m, mem, options)
	}
	routes := routes{experts: m.Reads().Experts}
	if len(routes.experts) > 0 {
		counting := &parallel.Rank{Dev: dispatched(r.Dev, func(p kernels.Plan) {
			routes.add(parallel.Download[int32](r, p.Groups.Offsets))
		}), Stack: r.Stack, ID: r.ID, Size: r.Size}
		e, err := engine(counting)
		if err != nil {
			return err
		}
		if _, err := e.Measure(ctx, reqs); err != nil {
			return err
		}
	}
	e, err := engine(r)
	if err != nil {
		return err
	}
	if b.Measurement, err = e.Measure(ctx, reqs); err != nil {
		return err
	}
	b.shortage = e.Shortage()
	b.reads = stepReads(m, b.StepLoads, routes.steps)
	if !o.Kernels {
		return nil
	}
	if e, err = engine(r); err != nil {
		return err
	}
	b.profiles, err = profileSteps(ctx, e, b.profiler, reqs, b.StepLoads)
	return err
}

// stepReads returns the bytes that each step has to read. experts are the bytes of experts by step; nil: there are
// none.
func stepReads(m *model.Model, loads []serve.StepLoad, experts []int) (all []int) {
	n := m.Reads()
	if len(n.Experts) > 0 && len(experts) != len(loads) {
		panic(fmt.Sprintf("train: the same traffic took %d steps, then %d", len(experts), len(loads)))
	}
	for i, l := range loads {
		bytes := n.Dense + m.CacheReads(l.Lengths, l.Shared)
		if l.Generated > 0 {
			bytes += n.Head
		}
		if len(n.Experts) > 0 {
			bytes += experts[i]
		}
		all = append(all, bytes)
	}
	return all
}

// routes adds up the experts that the rows of each step are sent to.
type routes struct {
	experts []int // bytes of one, by mixture
	at      int   // mixture of the present step
	steps   []int // bytes
}

// add takes the rows of the next mixture, by the offsets of its experts' rows.
func (r *routes) add(offsets []int32) {
	if r.at == 0 {
		r.steps = append(r.steps, 0)
	}
	for i, from := range offsets[:len(offsets)-1] {
		if offsets[i+1] > from {
			r.steps[len(r.steps)-1] += r.experts[r.at]
		}
	}
	r.at = (r.at + 1) % len(r.experts)
}

// copyRate is the bytes a second, read and written, of a copy in the device's memory.
func copyRate(dev kernels.Device) float64 {
	if c, ok := dev.(*cpu.Device); ok {
		return c.BenchCopy(copyTime)
	}
	return copyRateCUDA(dev, copyTime)
}

// dispatched is the device, with visit called after each Dispatch.
func dispatched(dev kernels.Device, visit func(p kernels.Plan)) kernels.Device {
	if c, ok := dev.(*cpu.Device); ok {
		return visitedCPU{c, visit}
	}
	return dispatchedCUDA(dev, visit)
}

type visitedCPU struct {
	*cpu.Device
	visit func(p kernels.Plan)
}

func (d visitedCPU) Dispatch(p kernels.Plan, experts kernels.Tensor, packs []int32) {
	d.Device.Dispatch(p, experts, packs)
	d.visit(p)
}

// traffic draws the requests.
func (o RolloutOptions) traffic(m *model.Model) (reqs []serve.Request) {
	rng := rand.New(rand.NewPCG(o.Seed, 3))
	var prompt []int32
	for i := range o.Requests {
		if i%o.Samples == 0 {
			prompt = make([]int32, o.Prompt.draw(rng))
			for t := range prompt {
				prompt[t] = rng.Int32N(int32(m.Vocab))
			}
		}
		reqs = append(reqs, serve.Request{ID: uint64(i), Prompt: prompt, MaxTokens: o.New.draw(rng), Temperature: 1,
			TopP: 1, Seed: o.Seed})
	}
	return reqs
}

// peerRequest is a line of the peer's input.
type peerRequest struct {
	IDs []int32 `json:"ids"`
	New int     `json:"new"`
}

// write leaves config.json and the requests for a peer.
func (o RolloutOptions) write(dir string, m *model.Model, reqs []serve.Request) error {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	for _, q := range reqs {
		if err := enc.Encode(peerRequest{q.Prompt, q.MaxTokens}); err != nil {
			return err
		}
	}
	return errors.Join(runlog.WriteFile(filepath.Join(dir, "config.json"), m.Config),
		runlog.WriteFile(filepath.Join(dir, "requests.jsonl"), text.Bytes()))
}

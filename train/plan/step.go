package plan

import (
	"math"

	"lockstep/configs"
	"lockstep/kernels"
	"lockstep/kernels/meta"
	"lockstep/train/trainer"
)

// clock converts work on one of so many ranks of a machine to seconds.
type clock struct {
	machine configs.Machine
	ranks   int
}

// sortedRow is the seconds in which a GPU sorts a row of the experts, besides its three calls: 131,072 take 64.9 us on
// an H200.
const sortedRow = (64.9e-6 - 3*3e-6) / 131072

// ofGPU are kinds that take a CPU what their bytes take.
var ofGPU = map[meta.Kind]bool{meta.Sort: true, meta.Codes: true, meta.AttentionWaiting: true, meta.ScoresWaiting: true}

// productOfCodes is what a GPU takes longer for a product whose weights are in codes than their bytes do: on an H200 6
// to 14 us where one matrix is for all rows, up to 16 by groups.
const productOfCodes = 10e-6

// seconds of operations of a kind are what their products take at the kind's rate, what their bytes take at the rate of
// memory, and a call each. They are added, since kernels hide one behind the other in part only: the additive form is
// within 11% of torch's grouped products of 4 shapes, where the larger of both is 40% off. What large products of one
// matrix hide is not counted. The ranks of a CPU share it.
func (c clock) seconds(k meta.Kind, of meta.Cost) float64 {
	r := c.machine.Rates
	tflops := map[meta.Kind]float64{meta.Dense: r.Dense, meta.Grouped: r.Grouped, meta.Attention: r.Attention,
		meta.AttentionBackward: r.AttentionBackward, meta.Latent: r.Latent, meta.LatentBackward: r.LatentBackward,
		meta.Scores: r.Scores, meta.ScoresBackward: r.ScoresBackward, meta.AttentionWaiting: r.AttentionBackward,
		meta.ScoresWaiting: r.ScoresBackward, meta.Recurrence: r.Recurrence}[k]
	t := of.Bytes / (r.Memory * 1e9)
	switch {
	case c.machine.Device == "cpu" && ofGPU[k]:
	case k == meta.Sort:
		t += of.FLOPs * sortedRow
	case k == meta.Codes:
		t += of.FLOPs * productOfCodes
	case of.FLOPs > 0:
		t += of.FLOPs / (tflops * 1e12)
	}
	if c.machine.Device == "cpu" {
		t *= float64(c.ranks)
	}
	return t + of.Calls*r.Call*1e-6
}

// arithmetic is the seconds of all kinds, at a share of the rates.
func (c clock) arithmetic(w meta.Work, share float64) (t float64) {
	for k, of := range w.Costs {
		t += c.seconds(meta.Kind(k), of)
	}
	return t / share
}

// slowest is how much longer than one card so many seconds take on the slowest of all, for which all wait.
func (c clock) slowest(seconds float64) float64 {
	if c.ranks == 1 || c.machine.Device == "cpu" {
		return 0
	}
	return seconds * (1/c.machine.Share.Slowest - 1)
}

// exchange is the seconds of an exchange that is waited for: its bytes at the rate of a link both ways, since all ranks
// send what others get, and the latency of each. On a CPU its bytes are read and written in the memory of all.
func (c clock) exchange(of meta.Cost) float64 {
	if of.Calls == 0 {
		return 0
	}
	return c.copied(of) + of.Calls*c.machine.Links.Exchange*1e-6
}

// few is the seconds of exchanges of few rows: an operation reads them behind an event of the other card, which takes
// as long as another one, and the host is ahead.
func (c clock) few(of meta.Cost) float64 {
	if of.Calls == 0 || c.machine.Device == "cpu" {
		return c.exchange(of)
	}
	return of.Bytes/(c.machine.Links.Rows*1e9) + 2*of.Calls*c.machine.Rates.Call*1e-6
}

// forward is the seconds of a forward at a share of the rates, whose exchanges are all waited for.
func (c clock) forward(w meta.Work, share float64) float64 {
	t, x := c.arithmetic(w, share), w.Exchanged
	return t + c.slowest(t) + c.exchange(x[kernels.ExchangeTokens]) + c.exchange(x[kernels.ExchangeRows]) +
		c.few(x[kernels.ExchangeFew]) + c.copied(x[kernels.ExchangeWeights])
}

// memory is what arithmetic loses to copies behind it that take so many seconds of a link: the memory of a card reads
// what others get and writes what it gets. A CPU's copies are passes of its memory.
func (c clock) memory(links float64) float64 {
	if c.machine.Device == "cpu" {
		return 0
	}
	return links * 2 * c.machine.Links.BothWays / c.machine.Rates.Memory
}

// copied is exchange without latency, of copies that the host does not wait for.
func (c clock) copied(of meta.Cost) float64 {
	switch {
	case of.Bytes == 0:
		return 0
	case c.machine.Device == "cpu":
		return c.seconds(meta.Rows, meta.Cost{Bytes: 2 * of.Bytes})
	}
	return of.Bytes / (c.machine.Links.BothWays * 1e9)
}

// host is the rates of copies from and to the host, GB/s; on a CPU of copies within one memory.
func (c clock) host() configs.MachineHost {
	if c.machine.Device != "cpu" {
		return c.machine.Host
	}
	rate := c.machine.Rates.Memory / 2 / float64(c.ranks)
	return configs.MachineHost{ToCard: rate, FromCard: rate, Both: rate, Update: c.machine.Rates.Memory / 28}
}

// Part is a part of a step.
type Part struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
	Hidden  float64 `json:"hidden"` // of them, behind arithmetic
}

// Step is the seconds of an optimizer step; of reinforcement learning of a step of the run.
type Step struct {
	Parts   []Part  `json:"parts"`
	Seconds float64 `json:"seconds"` // of all parts that are not hidden
	Tokens  int     `json:"tokens"`  // trained; of reinforcement learning sampled, by the longest answers
}

// Rate is tokens a second.
func (s Step) Rate() float64 { return float64(s.Tokens) / max(s.Seconds, 1e-12) }

// add adds a part that so much of is hidden.
func (s *Step) add(name string, seconds, hidden float64) {
	if seconds > 0 {
		s.Parts = append(s.Parts, Part{name, seconds, hidden})
		s.Seconds += seconds - hidden
	}
}

// mesh is what the time of a step depends on besides work.
type mesh struct {
	configs.Parallel
	blocks   int     // of the model
	share    int     // micro-batches that a rank takes through the model together
	segments int     // of a share
	bubble   float64 // of a pipeline: the share of its time in which the longest stage waits
}

// update adds the parts of one optimizer step, whose rank computes work.Micros micro-batches, as many at a time as it
// has lanes:
//
//	arithmetic  Micros * (FLOPs/rate + bytes/memory) / share.train, recomputation included
//	bubble      of a pipeline: arithmetic is of the stage that computes longest, which waits by the schedule and what
//	            tasks of all stages take
//	stages      see [Step.stages]
//	experts     tokens: hidden behind the other lane's arithmetic where there are two, but for one exchange of a
//	            round, else waited for; and rows, which go back while their owner computes others: hidden but for the
//	            latency of each exchange
//	heads       of packs that are divided over ranks: to all rows of some heads and back, which nothing hides
//	weights     of blocks from their owners, a block ahead: hidden but for those of one block of a round
//	gradients   around the ring, behind the backward pass of blocks below
//	ring        the last rank ends ranks-1 units after the first (model/gradients.go): with several segments in a
//	            share, units of its backward, two thirds of arithmetic over all units, and a copy of each; with one,
//	            copies and sums of a unit; none where experts or packs are divided: ranks are at one block
//	host        weights of blocks, ahead of their blocks: half behind forward, a quarter of arithmetic where all is
//	            computed again, half behind what arithmetic of backward is left
//	inputs      of blocks to the host behind forward, a quarter of arithmetic where all is computed again, and back
//	            behind the rest
//	optimizer   bytes/memory / share.train, of the rank's shards
//	updated     weights from the owners of their state, behind the optimizer's next
//	memory      copies behind arithmetic read a card's memory and write it, which has so much less for operations
//	slowest     arithmetic, bubble and optimizer take 1/share.slowest on the slowest card, for which all wait
//
// What is to be hidden is hidden as long as it is shorter than arithmetic; copies share the links, so their times are
// added.
func (s *Step) update(c clock, w trainer.StepWork, m mesh) {
	rate := c.machine.Share.Train
	rounds := float64((w.Micros + m.Interleave - 1) / m.Interleave)
	micros := float64(w.Micros)
	arithmetic := micros * c.arithmetic(w.Micro, rate)
	s.add("arithmetic", arithmetic, 0)
	bubble := arithmetic * m.bubble / (1 - m.bubble)
	s.add("bubble", bubble, 0)
	s.stages(c, w, m)
	x := w.Micro.Exchanged
	tokens, rows := micros*c.exchange(x[kernels.ExchangeTokens]), micros*c.exchange(x[kernels.ExchangeRows])
	weights := rounds * c.copied(x[kernels.ExchangeWeights])
	gradients := micros * c.copied(x[kernels.ExchangeGradient])
	experts := micros * c.copied(x[kernels.ExchangeRows]) // what may be hidden
	least := weights / float64(max(m.blocks, 1))
	if m.Interleave > 1 {
		experts += tokens
		least += rounds * c.exchange(x[kernels.ExchangeTokens]) / max(x[kernels.ExchangeTokens].Calls, 1)
	}
	behind, hidden := weights+gradients+experts, 0.0 // hidden is a share of what may be
	if behind > 0 {
		hidden = 1 - min(max(behind-arithmetic, least)/behind, 1)
	}
	s.add("experts' exchanges", tokens+rows, hidden*experts)
	s.add("sequences' exchanges", micros*c.exchange(x[kernels.ExchangeContext]), 0)
	s.add("weights from owners", weights, hidden*weights)
	s.add("gradients", gradients, hidden*gradients)
	share := float64(m.share)
	s.add("gradients' ring", c.ring(m, share*arithmetic/micros, x[kernels.ExchangeGradient].Times(share)), 0)
	if bytes := rounds * x[kernels.ExchangeHostWeights].Bytes; bytes > 0 {
		seconds := bytes / (c.host().ToCard * 1e9)
		s.add("weights from the host", seconds,
			min(seconds/2, arithmetic/4)+min(seconds/2, max(arithmetic*3/4-hidden*behind, 0)))
	}
	if bytes := micros * x[kernels.ExchangeOffload].Bytes; bytes > 0 {
		out, back := bytes/(c.host().FromCard*1e9), bytes/(c.host().ToCard*1e9)
		s.add("offloaded inputs", out+back, min(out, arithmetic/4)+min(back, arithmetic*3/4))
	}
	optimizer, updated := c.arithmetic(w.Update, rate), c.exchange(w.Update.Exchanged[kernels.ExchangeUpdated])
	s.add("optimizer", optimizer, 0)
	s.add("updated weights", updated, min(updated, optimizer))
	s.add("memory of copies", c.memory(hidden*behind+min(updated, optimizer)), 0)
	s.add("slowest card", c.slowest(arithmetic+bubble+optimizer), 0)
}

// ring is how much later than the first rank the last one ends.
func (c clock) ring(m mesh, share float64, gradients meta.Cost) float64 {
	if m.Ranks == 1 || m.Experts > 1 || m.Context > 1 || gradients.Bytes == 0 {
		return 0
	}
	behind, unit := float64(m.Ranks-1), meta.Cost{Bytes: gradients.Bytes / max(gradients.Calls, 1)}
	if m.segments > 1 {
		return behind * (share*2/3/float64(m.blocks+2) + c.copied(unit))
	}
	return behind * (c.copied(unit) + c.seconds(meta.Rows, unit.Times(3)))
}

// offloaded adds the copies of optimizer state that a rank has on the host, behind the parts of update. What the ring
// holds comes in behind arithmetic, before the norm is known; the rest comes in while what was updated goes out, and
// then the last of the ring goes out, or the host's cores end later: all behind so many seconds of forward of the next
// step's first round, but for so many bytes that it waits for, see [hostStates.awaited]:
//
//	min(passing, ring)/to_card (hidden) + afterNorm (hidden up to forward, but for awaited/both)
func (s *Step) offloaded(c clock, of hostStates, ring, awaited, forward float64) {
	passing := of.passing()
	if passing+of.updated == 0 {
		return
	}
	in := min(passing, ring) / (c.host().ToCard * 1e9)
	link, cores := c.afterNorm(passing, of.updated, ring)
	rest := max(link, cores)
	s.add("optimizer state", in+rest, min(in, s.Seconds)+min(rest-awaited/(c.host().Both*1e9), forward))
}

// rollouts adds the parts of sampling answers, each of the most tokens that it may have, to so many prompts:
//
//	prefill  a forward over the prompts, at share.forward
//	decode   as many steps as an answer has tokens for each batch of slots, at half of its length, at share.decode;
//	         bound by memory: all weights that rows choose and the keys of all sequences
//
// Experts' exchanges are waited for in both.
func (s *Step) rollouts(c clock, r rolloutWork) {
	s.add("prefill", r.prefills*c.forward(r.prefill, c.machine.Share.Forward), 0)
	batches := math.Ceil(float64(r.answers) / float64(r.slots*c.ranks))
	s.add("decode", batches*float64(r.tokens)*c.forward(r.decode, c.machine.Share.Decode), 0)
}

// rolloutWork is what the engines of a step compute.
type rolloutWork struct {
	prefill, decode meta.Work // of a forward of full packs on each rank, and of a step
	prefills        float64   // such forwards
	answers, slots  int       // of all ranks, and of one
	tokens          int       // of an answer
}

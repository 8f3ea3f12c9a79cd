package plan

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"lockstep/configs"
	"lockstep/kernels"
	"lockstep/kernels/meta"
	"lockstep/train/trainer"
)

// round is a machine of round numbers: 1 TFLOP/s of dense products, 2 of grouped, 4 and 2 T scores/s, 1 GB/s of memory,
// 1 ms of a call, 1 GB/s of a link, 0.5 of rows that are read, 100 ms of an exchange, steps at half of what that makes,
// and 0.8 of it on the slowest card.
var round = configs.Machine{Device: "cuda", Cards: 2,
	Rates: configs.MachineRates{Dense: 1, Grouped: 2, Attention: 1, AttentionBackward: 1, Scores: 4,
		ScoresBackward: 2, Latent: 1, LatentBackward: 1, Recurrence: 1, Memory: 1, Call: 1000},
	Share: configs.MachineShare{Train: 0.5, Forward: 0.25, Decode: 0.2, Slowest: 0.8},
	Links: configs.MachineLinks{EachWay: 2, BothWays: 1, Rows: 0.5, Exchange: 1e5},
	Host:  configs.MachineHost{ToCard: 0.5, FromCard: 4, Both: 1}}

// micro takes 2 + 1 + 1 s and 0.002 s of calls, times two by the share: 8.004 s.
var micro = meta.Work{Costs: [meta.Kinds]meta.Cost{meta.Dense: {Calls: 1, FLOPs: 2e12},
	meta.Grouped: {Calls: 1, FLOPs: 2e12}, meta.Rows: {Bytes: 1e9}}}

// with adds an exchange.
func with(w meta.Work, kind kernels.Exchange, calls, gb float64) meta.Work {
	w.Exchanged[kind] = meta.Cost{Calls: calls, Bytes: gb * 1e9}
	return w
}

// Times of steps by hand.
func TestStepTimes(t *testing.T) {
	update := meta.Work{Costs: [meta.Kinds]meta.Cost{meta.Optimizer: {Bytes: 5e8}}}
	alone := mesh{Parallel: configs.Parallel{Ranks: 1, Experts: 1, Interleave: 1}, blocks: 4, share: 1, segments: 1}
	two := mesh{Parallel: configs.Parallel{Ranks: 2, Experts: 1, Interleave: 1}, blocks: 4, share: 1, segments: 1}
	long := two
	long.segments = 2
	divided := mesh{Parallel: configs.Parallel{Ranks: 2, Experts: 2, Interleave: 1}, blocks: 4, share: 1, segments: 1}
	lanes := divided
	lanes.Interleave = 2
	experts := with(with(micro, kernels.ExchangeTokens, 10, 2), kernels.ExchangeRows, 10, 1) // 3 and 3 s
	much := with(experts, kernels.ExchangeTokens, 10, 11)                                    // 12 and 3 s
	for _, c := range []struct {
		name string
		m    mesh
		w    trainer.StepWork
		want string
	}{
		{"one rank", alone, trainer.StepWork{Micro: micro, Micros: 3, Update: update},
			"arithmetic 24.012, optimizer 1; 25.012"},
		// 3 GB of weights twice, of which one block of four cannot be hidden; 2 GB of others' updated weights, behind
		// 1 s of the optimizer
		{"sharded", two, trainer.StepWork{Micro: with(micro, kernels.ExchangeWeights, 4, 3), Micros: 2,
			Update: with(update, kernels.ExchangeUpdated, 1, 2)},
			"arithmetic 16.008, weights from owners 6 (4.5 hidden), optimizer 1, updated weights 2.1 (1 hidden), " +
				"memory of copies 11, slowest card 4.252; 34.86"},
		// a ring of units of 0.5 GB: a copy, and three passes of memory
		{"gradients", two, trainer.StepWork{Micro: with(micro, kernels.ExchangeGradient, 2, 1), Micros: 1,
			Update: update}, "arithmetic 8.004, gradients 1 (1 hidden), gradients' ring 2, optimizer 1, " +
			"memory of copies 2, slowest card 2.251; 15.255"},
		// a unit of backward: two thirds of 8.004 over 4 blocks, embedding and head; and a copy of 0.5 GB
		{"long packs", long, trainer.StepWork{Micro: with(micro, kernels.ExchangeGradient, 2, 1), Micros: 1,
			Update: update},
			"arithmetic 8.004, gradients 1 (1 hidden), gradients' ring 1.3893, optimizer 1, memory of copies 2, " +
				"slowest card 2.251; 14.644"},
		// 3 s of tokens; 1 GB of rows takes 1 s, which is hidden, and 10 exchanges 1; twice
		{"experts", divided, trainer.StepWork{Micro: experts, Micros: 2, Update: update},
			"arithmetic 16.008, experts' exchanges 10 (2 hidden), optimizer 1, memory of copies 4, slowest card " +
				"4.252; 33.26"},
		// one of 10 exchanges of tokens of a round is not hidden, nor the latency of rows
		{"overlap", lanes, trainer.StepWork{Micro: experts, Micros: 2, Update: update},
			"arithmetic 16.008, experts' exchanges 10 (7.7 hidden), optimizer 1, memory of copies 15.4, slowest " +
				"card 4.252; 38.96"},
		// 24 s of tokens and 2 of rows do not hide behind 16
		{"overlap of much", lanes, trainer.StepWork{Micro: much, Micros: 2, Update: update},
			"arithmetic 16.008, experts' exchanges 28 (16.008 hidden), optimizer 1, memory of copies 32.016, " +
				"slowest card 4.252; 65.268"},
		// 5 GB twice, 20 s: 10 s behind 4 s of forward, and 10 s behind 12 s of backward
		{"weights on the host", alone, trainer.StepWork{Micro: with(micro, kernels.ExchangeHostWeights, 4, 5),
			Micros: 2, Update: update},
			"arithmetic 16.008, weights from the host 20 (14.002 hidden), optimizer 1; 23.006"},
		// 1 s out, behind forward; 8 s back, of which 6.003 behind the rest
		{"inputs on the host", alone, trainer.StepWork{Micro: with(micro, kernels.ExchangeOffload, 4, 4), Micros: 1,
			Update: update}, "arithmetic 8.004, offloaded inputs 9 (7.003 hidden), optimizer 1; 11.001"},
		// 4 stages wait as long as 3 micro-batches take; a row's gradient comes with each of them, and of 6 on the way
		// all are waited for; half a GB of a tied head
		{"pipeline", mesh{Parallel: configs.Parallel{Ranks: 4, Experts: 1, Interleave: 1, Stages: 4}, blocks: 4,
			share: 1, segments: 1, bubble: 0.5}, trainer.StepWork{Micros: 3,
			Micro: with(micro, kernels.ExchangeStages, 2, 1), Update: with(update, kernels.ExchangeStages, 1, 0.5)},
			"arithmetic 24.012, bubble 24.012, stages' exchanges 3.6, tied gradients 0.6 (0.6 hidden), optimizer 1, " +
				"slowest card 12.256; 64.88"},
		{"short pipeline", mesh{Parallel: configs.Parallel{Ranks: 2, Experts: 1, Interleave: 1, Stages: 2}, blocks: 4,
			share: 1, segments: 1, bubble: 0.25}, trainer.StepWork{Micro: with(micro, kernels.ExchangeStages, 1, 1),
			Micros: 3, Update: update}, "arithmetic 24.012, bubble 8.004, stages' exchanges 3.3 (1.1 hidden), " +
			"optimizer 1, slowest card 8.254; 43.47"},
	} {
		var s Step
		s.update(clock{round, c.m.Ranks}, c.w, c.m)
		if got := spelled(s); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.want)
		}
	}
	// 1.5 forwards of (2+1+1+0.002)*4 s, and 16 answers of 10 tokens by 2 ranks of 4 slots: 2 batches of 10 steps, by
	// the slowest card
	var s Step
	s.rollouts(clock{round, 2}, rolloutWork{prefill: micro, decode: micro, prefills: 1.5, answers: 16, slots: 4,
		tokens: 10})
	if got, want := spelled(s), "prefill 30.015, decode 500.25; 530.26"; got != want {
		t.Errorf("rollouts: %s, want %s", got, want)
	}
	// 131,072 rows of experts are sorted in 64.9 us on a GPU with calls of 3 us, on a CPU by their bytes alone
	gpu, one := clock{round, 1}, clock{cpuMachine(1), 1}
	gpu.machine.Rates.Call = 3
	if got := gpu.seconds(meta.Sort, meta.Cost{Calls: 3, FLOPs: 131072}); math.Abs(got-64.9e-6) > 1e-9 {
		t.Errorf("131,072 rows are sorted in %g s", got)
	}
	if got := one.seconds(meta.Sort, meta.Cost{FLOPs: 131072, Bytes: 1e9}); got != 1 {
		t.Errorf("a CPU sorts 1 GB in %g s", got)
	}
	// 3 products of weights in codes take a GPU 30 us longer, and the longest block of attention lasts, on a CPU not
	for kind, want := range map[meta.Kind]float64{meta.Codes: 30e-6, meta.AttentionWaiting: 3e-12,
		meta.ScoresWaiting: 1.5e-12} {
		if got := gpu.seconds(kind, meta.Cost{FLOPs: 3}); math.Abs(got/want-1) > 1e-9 ||
			one.seconds(kind, meta.Cost{FLOPs: 3}) != 0 {
			t.Errorf("kind %d takes %g s, want %g, and on a CPU %g, want 0", kind, got, want,
				one.seconds(kind, meta.Cost{FLOPs: 3}))
		}
	}
	// 1 GB of few rows takes 2 s, and 3 exchanges an operation and an event of 1 ms each
	if got, want := (clock{round, 2}).forward(with(meta.Work{}, kernels.ExchangeFew, 3, 1), 1), 2.006; got != want {
		t.Errorf("an exchange of few rows takes %g s, want %g", got, want)
	}
	// 6 GB of state through a ring of 2: 1 s in, hidden; 4 s while others go out; 2 s out; of those 2.5 s hidden
	host := round
	host.Host = configs.MachineHost{ToCard: 2, FromCard: 1, Both: 1, Update: 0.5}
	// behind a forward of 2.5 s, but for 4 GB of a first unit, of which the ring holds 2, or for 4 of another one
	for first, want := range map[int]string{1: "optimizer state 7 (3.5 hidden); 12.5",
		0: "optimizer state 7 (3 hidden); 13"} {
		s = Step{Seconds: 9}
		of := hostStates{units: []float64{4e9, 2e9}}
		if first == 0 {
			of.units = []float64{0, 6e9}
		}
		awaited := of.awaited(first, 1, 2e9)
		if s.offloaded(clock{host, 1}, of, 2e9, awaited, 2.5); spelled(s) != want {
			t.Errorf("state on the host, awaited %g: %s, want %s", awaited, spelled(s), want)
		}
	}
	three := hostStates{units: []float64{1e9, 3e9, 6e9, 9e9}}
	for passes, want := range map[int]float64{1: 2e9 + 4e9 + 7e9, 3: 2e9 + 1e9, 5: 2e9} {
		if got := three.awaited(2, passes, 2e9); got != want {
			t.Errorf("of %d passes %g bytes are awaited, want %g", passes, got, want)
		}
	}
	// 2 of 6 GB are the host's: 2 + 2 + 0.5 s of the link, next to 1/3 s of all cores, or 10 s of a 30th of them
	for ranks, want := range map[int]string{1: "optimizer state 5.5 (3.5 hidden); 11",
		30: "optimizer state 11 (3.5 hidden); 16.5"} {
		s = Step{Seconds: 9}
		if s.offloaded(clock{host, ranks}, hostStates{[]float64{4e9}, 2e9}, 2e9, 0, 2.5); spelled(s) != want {
			t.Errorf("%d ranks: state that the host updates in part: %s, want %s", ranks, spelled(s), want)
		}
	}
	scored := meta.Work{Costs: [meta.Kinds]meta.Cost{meta.Attention: {FLOPs: 1e12}, meta.Scores: {FLOPs: 2e12},
		meta.ScoresBackward: {FLOPs: 3e12}}}
	if got, want := (clock{round, 1}).arithmetic(scored, 1), 1+0.5+1.5; got != want {
		t.Errorf("attention takes %g s, want %g", got, want)
	}
	cpu := round
	cpu.Device = "cpu" // whose ranks share it
	if got, want := (clock{cpu, 2}).arithmetic(micro, 1), 8.002; math.Abs(got-want) > 1e-9 {
		t.Errorf("half a CPU takes %g s, want %g", got, want)
	}
}

// Answers of 3, 5 and 4 tokens in two slots of one rank: 3 steps of two, 2 of two when the third has begun, 2 of one;
// of two ranks the first has 3 and 4, the second 5: one sequence is left.
func TestSchedule(t *testing.T) {
	answers := []Answer{{10, 3}, {20, 5}, {30, 4}}
	steps := map[int]float64{1: 1, 4: 7} // two: 3
	for _, c := range []struct {
		ranks, slots int
		want         float64
	}{{1, 2, 60*0.5 + 5*3 + 2*1}, {2, 2, 40*0.5 + 3*3 + 1*1}, {1, 1, 60*0.5 + 12*1}, {1, 4, 60*0.5 + 3*5 + 1*3 + 1}} {
		if got := answerSeconds(answers, c.ranks, c.slots, 0.5, steps); got != c.want {
			t.Errorf("%d ranks of %d slots: %g s, want %g", c.ranks, c.slots, got, c.want)
		}
	}
	if got := answerSeconds(nil, 2, 2, 1, steps); got != 0 {
		t.Errorf("nothing takes %g s", got)
	}
}

func spelled(s Step) string {
	var parts []string
	for _, p := range s.Parts {
		text := fmt.Sprintf("%s %.5g", p.Name, p.Seconds)
		if p.Hidden > 0 {
			text += fmt.Sprintf(" (%.5g hidden)", p.Hidden)
		}
		parts = append(parts, text)
	}
	return fmt.Sprintf("%s; %.5g", strings.Join(parts, ", "), s.Seconds)
}

// The search finds the last row that fits, as a search through all does.
func TestLongestRows(t *testing.T) {
	for _, most := range []int{1, 64, 100, 640, 6400} {
		for _, each := range []int{0, 1, 7} {
			for _, room := range []int{-1, 0, 64, 500, 5000, 1 << 30} {
				takes := func(rows int) int { return 40 + each*rows + rows*rows/1000 }
				want := 0
				for rows := 64; rows < most; rows += 64 {
					if takes(rows) <= room {
						want = rows
					}
				}
				bounded := takes(most) <= room
				if bounded {
					want = most
				}
				if got, at := longestRows(most, room, takes); got != want || at != bounded {
					t.Errorf("at most %d rows, %d bytes each, in %d: %d %t, want %d %t", most, each, room, got, at,
						want, bounded)
				}
			}
		}
	}
}

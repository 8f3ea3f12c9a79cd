package serve

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/model"
	"lockstep/parallel"
)

// replicas runs body with engines of a golden model on so many ranks.
func replicas(t *testing.T, ranks int, o Options, body func(w *parallel.World, m *model.Model, p *Replicas)) {
	t.Helper()
	var list []kernels.Device
	for range ranks {
		dev, err := cpu.New(kernels.Default(), cpu.Options{Threads: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer dev.Close()
		list = append(list, dev)
	}
	w, err := parallel.Open(list, parallel.Mesh{Experts: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := w.Lead(func(r *parallel.Rank) error {
		s, err := Open(w, r, goldens+"qwen3_moe", "", model.Options{DType: kernels.F32})
		if err != nil {
			return err
		}
		p, err := s.NewEngines(o)
		if err == nil {
			body(w, s.Model, p)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// Any number of replicas give the results of one engine, in the order of requests, and each has its share of them.
func TestReplicas(t *testing.T) {
	o := Options{Slots: 3, PageRows: 4, PrefillRows: 16}
	var want []Result
	for _, ranks := range []int{1, 2, 3, 5} {
		replicas(t, ranks, o, func(_ *parallel.World, m *model.Model, p *Replicas) {
			reqs := groups(rand.New(rand.NewPCG(3, 4)), m, 6, 5)
			p.Refresh(7)
			got, err := p.Run(context.Background(), reqs)
			if err != nil {
				t.Fatal(err)
			}
			tokens := 0
			for i, res := range got {
				if tokens += len(res.IDs); len(res.IDs) == 0 || res.Versions[0] != 7 {
					t.Errorf("request %d: %+v", i, res)
				}
			}
			if tokens != p.Counters().Generated {
				t.Errorf("%d ranks: %d tokens, %d counted", ranks, tokens, p.Counters().Generated)
			}
			for i, e := range p.engines {
				if share := float64(e.Generated*ranks) / float64(tokens); share < 0.5 || share > 1.7 {
					t.Errorf("replica %d of %d has %.2f of its share", i, ranks, share)
				}
			}
			if ranks == 1 {
				want = got
			} else if !reflect.DeepEqual(got, want) {
				t.Errorf("%d ranks give other results", ranks)
			}
		})
	}
}

// A request goes to the replica with fewest in flight, or to that which has just read its prompt.
func TestReplicasChoose(t *testing.T) {
	o := Options{Slots: 2, PageRows: 4, PrefillRows: 16}
	replicas(t, 3, o, func(_ *parallel.World, _ *model.Model, p *Replicas) {
		var got []int
		for i, prompt := range []string{"a", "b", "c", "a", "d", "d", "d", "d", "d", "d", "e"} {
			if err := p.Submit(i, Request{Prompt: []int32{int32(prompt[0]), 5}, MaxTokens: 2, TopP: 1}); err != nil {
				t.Fatal(err)
			}
			got = append(got, p.last)
		}
		// four d have put the second replica four ahead: the next ones go to the third, and e to the first
		if want := "[0 1 2 0 1 1 1 1 2 2 0]"; fmt.Sprint(got) != want {
			t.Errorf("replicas %v, want %s", got, want)
		}
	})
}

// A request that waits moves to a replica with a free slot, where replicas are alike.
func TestReplicasBalance(t *testing.T) {
	const long = 9
	o := Options{Slots: 2, PageRows: 4, PrefillRows: 16}
	replicas(t, 2, o, func(_ *parallel.World, _ *model.Model, p *Replicas) {
		p.Steps = 1
		var reqs []Request
		for i := range 6 { // the first replica has the long ones
			reqs = append(reqs, Request{Prompt: []int32{int32(i + 1), 2}, MaxTokens: 1 + (i+1)%2*(long-1), TopP: 1})
		}
		if _, err := p.Run(context.Background(), reqs); err != nil {
			t.Fatal(err)
		}
		if a, b := p.engines[0].Generated, p.engines[1].Generated; a != 2*long || b != long+3 {
			t.Errorf("replicas made %d and %d tokens, want %d and %d", a, b, 2*long, long+3)
		}
		p.alike = false // as the engines of a proof are, whose sizes are drawn and which have requests of their own
		if _, err := p.Run(context.Background(), reqs); err != nil {
			t.Fatal(err)
		}
		if b := p.engines[1].Generated; b != long+6 {
			t.Errorf("the second replica made %d tokens, want %d: a request has moved", b, long+6)
		}
	})
}

// ending is a context that ends by a function.
type ending struct {
	context.Context
	err func() error
}

func (c ending) Err() error { return c.err() }

// What was submitted before waits for Run to end, also where it is interrupted or a request is refused; the ranks can
// go on.
func TestReplicasInterrupted(t *testing.T) {
	o := Options{Slots: 2, PageRows: 4, PrefillRows: 16}
	replicas(t, 2, o, func(w *parallel.World, m *model.Model, p *Replicas) {
		if err := p.Submit(70, Request{Prompt: []int32{1, 2}, MaxTokens: 3, TopP: 1}); err != nil {
			t.Fatal(err)
		}
		stopped := ending{context.Background(), func() error {
			if p.Counters().Generated > 0 {
				return context.Canceled
			}
			return nil
		}}
		reqs := groups(rand.New(rand.NewPCG(3, 4)), m, 4, 4)
		if _, err := p.Run(stopped, reqs); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
		reqs[3].MaxTokens = 0
		if _, err := p.Run(context.Background(), reqs); err == nil || !strings.HasPrefix(err.Error(), "request 3: ") {
			t.Errorf("error %v", err)
		}
		done, err := p.Step(context.Background())
		if err != nil || len(done) != 1 || done[0].Index != 70 || len(done[0].Result.IDs) != 3 {
			t.Errorf("%v, error %v", done, err)
		}
		if err := w.Run(func(*parallel.Rank) error { return nil }); err != nil {
			t.Error(err)
		}
	})
}

// Free counts what all replicas have room for, and Check refuses what Submit would.
func TestFree(t *testing.T) {
	o := Options{Slots: 3, PageRows: 4, PrefillRows: 16}
	replicas(t, 2, o, func(_ *parallel.World, m *model.Model, p *Replicas) {
		q := Request{Prompt: []int32{1, 2}, MaxTokens: 1, TopP: 1}
		for i, want := range []int{6, 5, 4, 3, 2, 1, 0, 0} {
			if n := p.Free(); n != want {
				t.Errorf("room for %d requests where %d are in flight, want %d", n, i, want)
			}
			if err := errors.Join(p.Check(q), p.Submit(i, q)); err != nil {
				t.Fatal(err)
			}
		}
		for i := range p.InFlight() {
			p.Cancel(i)
		}
		for _, topP := range []float64{math.NaN(), 0, 1.5} {
			wrong := q
			if wrong.TopP = float32(topP); p.Check(wrong) == nil {
				t.Errorf("top-p %v is accepted", wrong.TopP)
			}
		}
		q.Prompt = make([]int32, m.MaxLength)
		if p.Check(q) == nil || p.Submit(9, q) == nil || p.InFlight() != 0 {
			t.Error("a prompt without room for a token is accepted")
		}
	})
}

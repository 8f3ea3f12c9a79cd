package model

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"lockstep/data/safetensors"
	"lockstep/kernels"
	"lockstep/model/checkpoint"
	"lockstep/model/lowrank"
	"lockstep/model/peft"
)

// AddLoRA puts adapters on the model, B zero and A uniform in +-1/sqrt(K) once initialised. A target that matches
// nothing is an error. With SharedExperts the experts of a layer share the factor at the residual stream: A of their
// first projection, B of down_proj.
func (m *Model) AddLoRA(c peft.Config) error {
	if c.Rank <= 0 || len(c.Targets)+len(c.TargetParameters) == 0 && c.Pattern == "" {
		return fmt.Errorf("lora: want a positive rank and at least one target")
	}
	if m.Indexing != IndexersFrozen {
		return fmt.Errorf("lora: adapter folders cannot store trained indexers: leave them frozen, or " +
			"fine-tune in full")
	}
	targets, err := m.adapterTargets(c)
	if err != nil {
		return err
	}
	saved, err := m.savedParams(c.ModulesToSave)
	if err != nil {
		return err
	}
	linears, bytes := m.linears(), 0
	for i, l := range linears {
		if !l.W.split {
			bytes += l.adapterBytes(targets[i], m.DType)
		}
	}
	if m.dev != nil {
		m.mem.Reserve(bytes)
	}
	for i, l := range linears {
		l.addLoRA(m, targets[i])
	}
	if c.SharedExperts {
		if err := m.shareFactors(); err != nil {
			return err
		}
	}
	m.LoRA, m.saved = &c, saved
	m.numberAdapters()
	return nil
}

// target is a projection that gets an adapter.
type target struct {
	*Sub
	peft.Placement
}

// adapterTargets are the projections of each Linear that get adapters.
func (m *Model) adapterTargets(c peft.Config) ([][]target, error) {
	match, err := peft.NewMatcher(c)
	if err != nil {
		return nil, err
	}
	linears := m.linears()
	targets := make([][]target, len(linears))
	for i, l := range linears {
		for _, sub := range l.Subs {
			if at, ok := match.Place(m.memoryName(sub.Module), l.Fused); ok {
				targets[i] = append(targets[i], target{sub, at})
			}
		}
	}
	if t := match.Unmatched(); t != "" {
		if m.isRouter(t) {
			return nil, fmt.Errorf("lora: target %q is the router of a mixture, on which adapters are not supported: "+
				"train it by modules_to_save, or leave it out (PEFT's all-linear adds it)", t)
		}
		modules, parameters := m.Targets()
		return nil, fmt.Errorf("lora: target %q matches nothing in this model: want names such as %s", t,
			strings.Join(slices.Concat(modules, parameters), ", "))
	}
	return targets, nil
}

// isRouter tells whether a target is a mixture's router, its module or its weight.
func (m *Model) isRouter(target string) bool {
	return slices.ContainsFunc(m.mixtures(), func(l *MoE) bool {
		name := m.memoryName(l.Router.W.Name)
		return peft.IsSuffix(name, target) || peft.IsSuffix(strings.TrimSuffix(name, ".weight"), target)
	})
}

// SameAdapters is an error that names the first projection on which a config puts another adapter than the model has.
func (m *Model) SameAdapters(c peft.Config) error {
	targets, err := m.adapterTargets(c)
	if err != nil {
		return err
	}
	saved, err := m.savedParams(c.ModulesToSave)
	if err != nil {
		return err
	}
	if c.SharedExperts != m.LoRA.SharedExperts {
		has, want := "factors each", "shared factors"
		if m.LoRA.SharedExperts {
			has, want = want, has
		}
		return fmt.Errorf("its experts have %s, and the shape asks for %s", has, want)
	}
	if !maps.Equal(saved, m.saved) {
		return fmt.Errorf("it has modules_to_save %q, and the shape asks for %q", m.LoRA.ModulesToSave, c.ModulesToSave)
	}
	for i, l := range m.linears() {
		for _, s := range l.Subs {
			var want, have peft.Placement
			if at := slices.IndexFunc(targets[i], func(t target) bool { return t.Sub == s }); at >= 0 {
				want = targets[i][at].Placement
			}
			if s.LoRA != nil {
				have = peft.Placement{Rank: s.LoRA.A.W.Rows, Scale: s.LoRA.Scale}
			}
			if have != want {
				return fmt.Errorf("%s has %s, and the shape asks for %s", s.Module, have, want)
			}
		}
	}
	return nil
}

// memoryName is what transformers, and so PEFT, calls a module or a tensor.
func (m *Model) memoryName(name string) string {
	if m.inMemory != nil {
		return m.inMemory(name)
	}
	return name
}

// adapterBytes is the memory that addLoRA takes: A of all targets, and B of each.
func (l *Linear) adapterBytes(targets []target, dtype kernels.DType) (n int) {
	w, ranks := l.W.W, 0
	for _, t := range targets {
		n += kernels.ArenaBytes(dtype, w.Groups*(t.To-t.From), t.Rank)
		ranks += t.Rank
	}
	if len(targets) > 0 {
		n += kernels.ArenaBytes(dtype, w.Groups*ranks, w.Cols)
	}
	return n
}

// tensor is memory on the model's device; of a described model the shape alone.
func (m *Model) tensor(groups, rows, cols int) kernels.Tensor {
	if m.dev == nil {
		return described(m.DType, groups, rows, cols)
	}
	return m.mem.NewGrouped(m.DType, groups, rows, cols)
}

// addLoRA puts adapters on projections of a Linear. One of experts has one projection: rows of several would lie apart
// in each group.
func (l *Linear) addLoRA(m *Model, targets []target) {
	if len(targets) == 0 {
		return
	}
	groups, in, ranks := l.W.matrices(), l.W.W.Cols, 0
	for _, t := range targets {
		ranks += t.Rank
	}
	if !l.W.split {
		l.A = m.tensor(groups, ranks, in)
	}
	at := 0
	for _, t := range targets {
		s, rows := t.Sub, t.To-t.From
		a := Part{Name: s.Module + ".lora_A.weight", Rows: groups * t.Rank, Shape: []int{groups * t.Rank, in}}
		b := Part{Name: s.Module + ".lora_B.weight", Rows: groups * rows, Shape: []int{rows, groups * t.Rank}}
		switch {
		case l.Fused:
			b.Disk = expertsLast(groups, rows, t.Rank, s.Disk)
		case s.Disk != nil:
			b.Disk = rowsOnDisk(s.Disk, t.Rank)
		}
		if l.W.split {
			l.addSplitLoRA(m, t, a, b)
			continue
		}
		own := l.A
		if len(targets) > 1 && m.dev != nil {
			own = l.A.RowRange(at, at+t.Rank)
		} else if len(targets) > 1 {
			own = described(m.DType, 1, t.Rank, in)
		}
		at += t.Rank
		s.LoRA = &LoRA{Scale: t.Scale,
			A: &Param{Name: a.Name, W: own, Parts: []Part{a}, unit: l.W.unit,
				Init: Init{Kind: Uniform, Std: 1 / math.Sqrt(float64(in))}},
			B: &Param{Name: b.Name, W: m.tensor(groups, rows, t.Rank), Parts: []Part{b}, unit: l.W.unit,
				Init: Init{Kind: Zeros}},
		}
		m.Params = append(m.Params, s.LoRA.A, s.LoRA.B)
	}
}

// addSplitLoRA puts an adapter on experts that are cut over ranks, whose parts lie where the experts lie.
func (l *Linear) addSplitLoRA(m *Model, t target, a, b Part) {
	s, in, rank, rows := t.Sub, l.W.W.Cols, t.Rank, t.To-t.From
	s.LoRA = &LoRA{Scale: t.Scale,
		A: m.splitLike(l.W, rank, in, a, Init{Kind: Uniform, Std: 1 / math.Sqrt(float64(in))}),
		B: m.splitLike(l.W, rows, rank, b, Init{Kind: Zeros}),
	}
	l.A = s.LoRA.A.W
}

// linears is every Linear of the model, in order.
func (m *Model) linears() []*Linear {
	var out []*Linear
	for _, b := range m.Blocks {
		for _, sub := range b {
			out = append(out, sub.Layer.Linears()...)
		}
	}
	return out
}

func (m *Model) adapterParams() map[*Param]bool {
	out := map[*Param]bool{}
	for _, l := range m.linears() {
		for _, s := range l.Subs {
			if s.LoRA != nil {
				out[s.LoRA.A], out[s.LoRA.B] = true, true
			}
		}
	}
	return out
}

// adapters is what an adapter's folder holds, in the model's order: the parameters of adapters, and those of
// modules_to_save.
func (m *Model) adapters() []*Param {
	adapter := m.adapterParams()
	return slices.DeleteFunc(slices.Clone(m.Params), func(p *Param) bool { return !adapter[p] && !m.saved[p] })
}

// peftName is the adapter tensor's name in adapter_model.safetensors. PEFT wraps the experts module once for each of
// its fused parameters that is a target: of two, the one that is not down_proj is the inner layer.
func (m *Model) peftName(name string) string {
	const experts = ".experts."
	if i := strings.Index(name, experts); i >= 0 {
		module, rest := name[:i+len(experts)-1], name[i+len(experts):]
		param, kind, _ := strings.Cut(rest, ".")
		if param != "down_proj" && m.adapted(module+".down_proj") {
			kind = "base_layer." + kind
		}
		name = module + "." + kind
	}
	return "base_model.model." + m.memoryName(name)
}

// adapted tells whether a projection has an adapter.
func (m *Model) adapted(module string) bool {
	return slices.ContainsFunc(m.linears(), func(l *Linear) bool {
		return slices.ContainsFunc(l.Subs, func(s *Sub) bool { return s.Module == module && s.LoRA != nil })
	})
}

// AdapterTensors lists the adapter's tensors by their names in PEFT.
func (m *Model) AdapterTensors() []safetensors.OutTensor {
	return m.adapterTensors(func(p *Param) elements { return p.weight(m.dev) })
}

func (m *Model) adapterTensors(of func(*Param) elements) []safetensors.OutTensor {
	m.mustBeUpdated()
	var out []safetensors.OutTensor
	for _, p := range m.adapters() {
		for _, part := range p.Parts {
			out = append(out, p.out(of(p), part, m.peftName(part.Name)))
		}
	}
	return out
}

// LoadAdapter fills the adapters that AddLoRA made; missing, misshapen and unused tensors are errors.
func (m *Model) LoadAdapter(c *safetensors.Checkpoint) error {
	w, err := checkpoint.NewWeights(c, nil)
	if err != nil {
		return err
	}
	for _, p := range m.adapters() {
		for _, part := range p.Parts {
			if err := p.load(m.dev, part, m.peftName(part.Name), w, peft.File); err != nil {
				return err
			}
		}
	}
	if err := w.CheckUnused(func(string) bool { return false }, peft.File); err != nil {
		return err
	}
	return m.checkShared()
}

// savedParams are the parameters of modules that an adapter's folder holds as they are, trained in full.
func (m *Model) savedParams(modules []string) (map[*Param]bool, error) {
	saved := map[*Param]bool{}
	for _, module := range modules {
		found := false
		for _, p := range m.Params {
			within := 0
			for _, part := range p.Parts {
				if peft.InModule(m.memoryName(part.Name), module) {
					within++
				}
			}
			switch {
			case within == 0 || p.Buffer:
				continue
			case within < len(p.Parts):
				return nil, fmt.Errorf("lora: modules_to_save: %q is one weight with %s in memory: name those too",
					module, otherParts(m, p, module))
			case p.Q != nil:
				return nil, fmt.Errorf("lora: modules_to_save: %q is kept in codes, which are not trained", module)
			case slices.ContainsFunc(p.home, func(h weightHome) bool { return h.host }):
				return nil, fmt.Errorf("lora: modules_to_save: %q is on the host by offload.weights, where nothing is "+
					"trained: set it to \"all\"", module)
			case p == m.Embed.Param && m.Head.W == p:
				return nil, fmt.Errorf("lora: modules_to_save: %q is tied to the other end of the model: not supported",
					module)
			}
			saved[p], found = true, true
		}
		if !found {
			return nil, fmt.Errorf(`lora: modules_to_save: %q is not a module of this model: want names such as `+
				`"lm_head" or "embed_tokens"`, module)
		}
	}
	return saved, nil
}

func otherParts(m *Model, p *Param, module string) string {
	var names []string
	for _, part := range p.Parts {
		if name := m.memoryName(part.Name); !peft.InModule(name, module) {
			names = append(names, strings.TrimSuffix(name, ".weight"))
		}
	}
	return strings.Join(names, ", ")
}

// takeInitOut takes out of the weights below adapters what they began from, as PEFT does when it loads such an adapter:
// W - scale*B0*A0, rounded to fp32 and to the storage type. Of PiSSA (Meng et al., arXiv 2404.02948) B0*A0 *
// scale is the part of W in its largest r singular values. Of OLoRA (Büyükakyüz, arXiv 2406.01775) B0*A0 are the first
// r columns of Q and rows of R of W = QR. Both are Q*Q^T*W, with an orthonormal basis Q [N, r] of what W has in them,
// times the scale in OLoRA. The arithmetic is fp64 without fused products, so that every machine has the same bits.
func (m *Model) takeInitOut(init string) error {
	if m.kept != nil {
		return fmt.Errorf("%s: init_lora_weights %q changes the weights below the adapter, which are stored in %s: "+
			"not supported, give the base in bf16 or fp32", peft.File, init, m.kept.Name)
	}
	for _, l := range m.linears() {
		for _, s := range l.Subs {
			if s.LoRA == nil {
				continue
			}
			rank := s.LoRA.A.W.Rows
			if l.W.Q != nil {
				return fmt.Errorf("%s: init_lora_weights %q changes the weights below the adapter, and %s is kept in "+
					"codes: not supported, keep it in bf16 or fp32", peft.File, init, s.Module)
			}
			if most := min(s.To-s.From, l.W.W.Cols); rank > most || l.Fused {
				return fmt.Errorf("%s: init_lora_weights %q of rank %d on %s: want a projection outside experts, and "+
					"at most %d", peft.File, init, rank, s.Module, most)
			}
			if m.dev != nil && !kernels.IsMeta(m.dev) {
				m.takeOut(l.W, s, rank, init)
			}
		}
	}
	return nil
}

// takeOut is takeInitOut of one projection.
func (m *Model) takeOut(p *Param, s *Sub, rank int, init string) {
	w := lowrank.Matrix{Rows: s.To - s.From, Cols: p.W.Cols, V: make([]float32, (s.To-s.From)*p.W.Cols)}
	at := p.weight(m.dev).between(s.From*w.Cols, s.To*w.Cols)
	raw := make([]byte, len(w.V)*p.W.DType.Size())
	at.read(raw, 0)
	checkpoint.GetAll(w.V, raw, p.W.DType)
	takeInit(w, init, rank, s.LoRA.Scale)
	checkpoint.PutAll(raw, p.W.DType, w.V)
	at.write(0, raw)
}

func takeInit(w lowrank.Matrix, init string, rank int, scale float32) {
	switch init {
	case peft.PiSSA:
		w.TakeLargest(rank)
	case peft.OLoRA:
		w.TakeColumns(rank, float64(scale))
	default:
		panic("model: init " + init)
	}
}

package optim

import (
	"fmt"
	"slices"
)

// Settings choose among the variants of a loss in the literature and in other trainers. A zero value means the
// objective's default; the key in a shape is the name in the comment. "All" stands for the policy losses:
// policy_gradient, ppo, grpo, dr_grpo, dapo, gspo, cispo, dro. A key that an objective does not use must not be set.
//
//	                 clip_low  clip_high  aggregate  advantage   else
//	sft                                   token
//	dpo                                   pair                   dpo_beta 0.1, dpo_loss sigmoid
//	policy_gradient                       token      group_mean
//	ppo              0.2       0.2        token      group_norm
//	grpo             0.2       0.2        sequence   group_norm
//	dr_grpo          0.2       0.2        constant   group_mean
//	dapo             0.2       0.28       token      group_norm
//	gspo             3e-4      4e-4       sequence   group_norm  gspo_gradient token
//	cispo            1         3          token      group_norm
//	dro                                   token      group_mean  dro_beta 0.05, dro_quadratic all
//	custom                                token      group_norm
//
// Off unless set: dual_clip, importance_cap, band_low and band_high, kl_coef, label_smoothing. clip_bounds is epsilon,
// importance_level token, kl_estimator k3.
type Settings struct {
	Aggregate string // aggregate: "token", "sequence", "constant", "sum", for dpo "pair" or "sum"; see [Aggregate]
	Advantage string // advantage, all: see [GroupAdvantages]

	// importance_cap, all: where Rows.Old is known, weigh rows by e^(old - rollout), at most so much
	ImportanceCap   float64
	BandLow         float64 // band_low and
	BandHigh        float64 // band_high, all: leave out rows whose e^(old - rollout) is not in between
	ImportanceLevel string  // importance_level, all: "token", or "sequence": the geometric mean over the sequence
	KLCoef          float64 // kl_coef, all: share of the divergence from Rows.Reference in the loss
	KLEstimator     string  // kl_estimator, all: "k1", "k2", "k3"

	// clip_bounds, those that clip: "epsilon": ratios in [1 - clip_low, 1 + clip_high]; "absolute": in [clip_low,
	// clip_high]
	ClipBounds string
	ClipLow    float64 // clip_low
	ClipHigh   float64 // clip_high
	DualClip   float64 // dual_clip, ppo to gspo: with a negative advantage the loss is at most dual_clip * -advantage

	GSPOGradient   string  // gspo_gradient: "token", or "mean": see [GSPO]
	DROBeta        float64 // dro_beta: see [DRO]
	DROQuadratic   string  // dro_quadratic: "all": on every row; "advantage": where the advantage is not 0
	DPOBeta        float64 // dpo_beta: see [DPO]
	DPOLoss        string  // dpo_loss: "sigmoid", "ipo", "ipo_sum"
	LabelSmoothing float64 // label_smoothing: assumed share of pairs with swapped labels
}

// kind is an objective by name.
type kind struct {
	name     string
	defaults Settings
	keys     []string // that it reads
	make     func(s Settings) Objective
}

var (
	policyKeys = []string{"aggregate", "advantage", "importance_cap", "band_low", "band_high", "importance_level",
		"kl_coef", "kl_estimator"}
	boundedKeys   = append([]string{"clip_bounds", "clip_low", "clip_high"}, policyKeys...)
	surrogateKeys = append([]string{"dual_clip"}, boundedKeys...)
)

var objectives = []kind{
	{"sft", Settings{Aggregate: "token"}, []string{"aggregate"}, func(Settings) Objective { return SFT{} }},
	{"policy_gradient", policyGradientDefaults, policyKeys, newPolicyGradient},
	{"ppo", ppoDefaults, surrogateKeys, newPPO},
	{"grpo", grpoDefaults, surrogateKeys, newGRPO},
	{"dr_grpo", drGRPODefaults, surrogateKeys, newDrGRPO},
	{"dapo", dapoDefaults, surrogateKeys, newDAPO},
	{"gspo", gspoDefaults, append([]string{"gspo_gradient"}, surrogateKeys...), newGSPO},
	{"cispo", cispoDefaults, boundedKeys, newCISPO},
	{"dro", droDefaults, append([]string{"dro_beta", "dro_quadratic"}, policyKeys...), newDRO},
	{"dpo", dpoDefaults, []string{"aggregate", "dpo_beta", "dpo_loss", "label_smoothing"}, newDPO},
	{"custom", Settings{Aggregate: "token", Advantage: "group_norm"}, []string{"aggregate", "advantage"},
		func(Settings) Objective {
			return Custom{}
		}},
}

// New makes an objective. The error, of one line, names the key.
func New(name string, s Settings) (Objective, error) {
	s, err := Resolve(name, s)
	if err != nil {
		return nil, err
	}
	return kindOf(name).make(s), nil
}

// Resolve checks the settings of an objective and fills in its defaults; resolving again changes nothing. The error, of
// one line, names the key.
func Resolve(name string, s Settings) (Settings, error) {
	k := kindOf(name)
	if k == nil {
		return s, fmt.Errorf("objective is %q, want %s", name, orList(Names()))
	}
	for _, given := range s.keys() {
		if !given.set() {
			continue
		}
		if !slices.Contains(k.keys, given.name) {
			return s, fmt.Errorf("%s does nothing for objective %q: remove it", given.name, name)
		}
		if err := given.check(); err != nil {
			return s, err
		}
	}
	if err := s.agree(name); err != nil {
		return s, err
	}
	defaults := k.defaultsFor(s)
	for i, d := range defaults.keys() {
		if given := s.keys()[i]; !given.set() {
			given.copy(d)
		}
	}
	return s, nil
}

// Names lists the objectives that New makes.
func Names() (names []string) {
	for _, o := range objectives {
		names = append(names, o.name)
	}
	return names
}

func kindOf(name string) *kind {
	if i := slices.IndexFunc(objectives, func(k kind) bool { return k.name == name }); i >= 0 {
		return &objectives[i]
	}
	return nil
}

// defaultsFor are the defaults of an objective, given what is set.
func (k *kind) defaultsFor(s Settings) Settings {
	d := k.defaults
	if slices.Contains(k.keys, "clip_bounds") {
		d.ClipBounds = "epsilon"
	}
	if s.ClipBounds == "absolute" {
		d.ClipLow, d.ClipHigh = 1-d.ClipLow, 1+d.ClipHigh
	}
	if s.corrects() {
		d.ImportanceLevel = "token"
	}
	if s.KLCoef != 0 {
		d.KLEstimator = "k3"
	}
	return d
}

// corrects reports whether rows are weighed by e^(old - rollout).
func (s *Settings) corrects() bool { return s.ImportanceCap != 0 || s.BandLow != 0 || s.BandHigh != 0 }

// agree checks keys against each other.
func (s *Settings) agree(name string) error {
	aggregates := []string{"token", "sequence", "constant", "sum"}
	if name == "dpo" {
		aggregates = []string{"pair", "sum"}
	}
	switch {
	case s.Aggregate != "" && !slices.Contains(aggregates, s.Aggregate):
		return fmt.Errorf("aggregate is %q, want %s for objective %q", s.Aggregate, orList(aggregates), name)
	case s.ClipBounds == "absolute" && s.ClipHigh != 0 && s.ClipHigh < 1:
		return fmt.Errorf(`clip_high is %v, want at least 1 with clip_bounds = "absolute"`, s.ClipHigh)
	case s.BandLow == 0 && s.BandHigh != 0:
		return fmt.Errorf("band_low is missing: band_high needs both")
	case s.BandHigh == 0 && s.BandLow != 0:
		return fmt.Errorf("band_high is missing: band_low needs both")
	case s.ImportanceLevel != "" && !s.corrects():
		return fmt.Errorf("importance_level does nothing without importance_cap or band_high: remove it")
	case s.KLEstimator != "" && s.KLCoef == 0:
		return fmt.Errorf("kl_estimator does nothing without kl_coef: remove it")
	case s.DPOLoss != "sigmoid" && s.DPOLoss != "" && s.LabelSmoothing != 0:
		return fmt.Errorf(`label_smoothing does nothing with dpo_loss = %q: remove it`, s.DPOLoss)
	}
	return nil
}

package optim

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// key is a field of Settings: a text that is one of some, or a number more than above and at most most.
type key struct {
	name        string
	text        *string
	of          []string
	number      *float64
	above, most float64
}

func (s *Settings) keys() []key {
	text := func(name string, v *string, of ...string) key { return key{name: name, text: v, of: of} }
	number := func(name string, v *float64, above, most float64) key {
		return key{name: name, number: v, above: above, most: most}
	}
	inf := math.Inf(1)
	return []key{
		text("aggregate", &s.Aggregate, "token", "sequence", "constant", "sum", "pair"),
		text("advantage", &s.Advantage, "group_norm", "group_mean", "leave_one_out", "batch_norm", "none"),
		number("importance_cap", &s.ImportanceCap, 0, inf), number("band_low", &s.BandLow, 0, 1),
		number("band_high", &s.BandHigh, 1, inf),
		text("importance_level", &s.ImportanceLevel, "token", "sequence"),
		number("kl_coef", &s.KLCoef, 0, inf), text("kl_estimator", &s.KLEstimator, "k1", "k2", "k3"),
		text("clip_bounds", &s.ClipBounds, "epsilon", "absolute"), number("clip_low", &s.ClipLow, 0, 1),
		number("clip_high", &s.ClipHigh, 0, inf),
		number("dual_clip", &s.DualClip, 1, inf),
		text("gspo_gradient", &s.GSPOGradient, "token", "mean"),
		number("dro_beta", &s.DROBeta, 0, inf), text("dro_quadratic", &s.DROQuadratic, "all", "advantage"),
		number("dpo_beta", &s.DPOBeta, 0, inf), text("dpo_loss", &s.DPOLoss, "sigmoid", "ipo", "ipo_sum"),
		number("label_smoothing", &s.LabelSmoothing, 0, 0.5),
	}
}

func (k key) set() bool {
	if k.text != nil {
		return *k.text != ""
	}
	return *k.number != 0
}

func (k key) copy(from key) {
	if k.text != nil {
		*k.text = *from.text
		return
	}
	*k.number = *from.number
}

func (k key) check() error {
	switch {
	case k.text != nil && !slices.Contains(k.of, *k.text):
		return fmt.Errorf("%s is %q, want %s", k.name, *k.text, orList(k.of))
	case k.number != nil && !(*k.number > k.above && *k.number <= k.most):
		want := fmt.Sprintf("more than %v", k.above)
		if !math.IsInf(k.most, 1) {
			want += fmt.Sprintf(" and at most %v", k.most)
		}
		return fmt.Errorf("%s is %v, want %s", k.name, *k.number, want)
	}
	return nil
}

// orList is `"a", "b" or "c"`.
func orList(names []string) string {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = fmt.Sprintf("%q", n)
	}
	if last := len(quoted) - 1; last > 0 {
		return strings.Join(quoted[:last], ", ") + " or " + quoted[last]
	}
	return quoted[0]
}

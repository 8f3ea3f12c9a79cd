package train

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"lockstep/configs"
	"lockstep/optim"
	"lockstep/train/setup"
)

// origin is what decided the bits of the steps before a checkpoint. A resumed run must agree with it.
type origin struct {
	Settings map[string]string `json:"settings"` // of the shape, those of [decides]
	Schedule optim.Schedule    `json:"schedule"` // of the run's steps; with reinforcement learning of its updates
	Short    bool              `json:"short"`    // the last step had fewer packs than run.packs: run.epochs ended
}

// decides tells whether a key of the shape decides the bits of a step. Others may change when a run is resumed: its
// length, evaluation, saving, logging, names and the device. [origin.differs] checks that a changed length
// changes none of the steps that were taken.
func decides(s *configs.Shape, key string) bool {
	table, name, _ := strings.Cut(key, ".")
	switch table {
	case "lora", "optim", "definition":
		return true
	case "model":
		return name != "weights" && name != "coded" || setup.EncodesWeights(s)
	case "data":
		return name != "eval_path" && name != "eval_samples"
	case "run":
		return name == "packs" || name == "seed"
	case "indexer":
		return s.Indexer.Stage != ""
	case "dpo":
		return s.Data.Preferences != ""
	case "warm_start":
		return s.RL.Objective != ""
	case "rl":
		return s.RL.Objective != "" && !slices.Contains([]string{"exact_kl", "retries", "timeout"}, name)
	case "rollout":
		switch name {
		case "max_tokens", "seed":
			return s.RL.Objective != ""
		case "slots", "page_rows", "pages", "prefill_rows": // which answers are complete first decides what is learned
			return s.RL.Staleness > 0
		}
		return s.RL.Objective != "" && strings.HasPrefix(name, "numerics.")
	}
	return false
}

// deciding returns the settings of a shape that decide bits, by key.
func deciding(s *configs.Shape) map[string]string {
	values := allSettings(s)
	maps.DeleteFunc(values, func(key, _ string) bool { return !decides(s, key) })
	return values
}

func allSettings(s *configs.Shape) map[string]string {
	values := map[string]string{}
	for _, v := range s.Settings() {
		values[v.Key] = v.Value
	}
	return values
}

// differs names, in one line, what would have given other bits up to a step; "": nothing. updates is the number of
// steps of the schedule that were taken until then.
func (o origin) differs(s *configs.Shape, now optim.Schedule, updates int) string {
	if o.Settings == nil {
		return "it was written by an earlier version, which did not record the shape: start a new run in another --out"
	}
	if list := o.changed(s); len(list) > 0 {
		return "the shape has changed since: " + strings.Join(list, "; ") + ": restore it, or start a new run in " +
			"another --out"
	}
	for step := 1; step <= updates; step++ {
		was, is := o.Schedule.At(step), now.At(step)
		if was != is {
			return fmt.Sprintf("the length has changed since, and with it learning rates of updates that were made "+
				"(optim.schedule = %q, %d of %d updates, now of %d; the rate of update %d was %g, now %g): "+
				"restore run.steps or run.epochs, or start a new run in another --out",
				now.Kind, updates, o.Schedule.Steps, now.Steps, step, was, is)
		}
	}
	if o.Short && now.Steps > o.Schedule.Steps {
		return fmt.Sprintf("the last step before the end of run.epochs had fewer packs than run.packs = %d, a "+
			"longer run "+
			"would have filled it: restore run.epochs, or start a new run in another --out", s.Run.Packs)
	}
	return ""
}

// changed lists the keys that decide bits, then or now, and have another value. One that a side lacks has its default.
func (o origin) changed(s *configs.Shape) (list []string) {
	defaults, now := allSettings(configs.Default()), allSettings(s)
	keys := maps.Clone(o.Settings)
	maps.Copy(keys, deciding(s))
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		was, recorded := o.Settings[key]
		if !recorded {
			was = defaults[key]
		}
		is, known := now[key]
		if !known {
			is = defaults[key]
		}
		if was != is {
			list = append(list, fmt.Sprintf("%s was %s, now %s", key, orAbsent(was), orAbsent(is)))
		}
	}
	return list
}

func orAbsent(value string) string {
	if value == "" {
		return "absent"
	}
	return value
}

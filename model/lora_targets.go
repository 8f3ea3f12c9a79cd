package model

import (
	"fmt"
	"slices"
	"strings"

	"lockstep/model/peft"
)

// AllLinear is PEFT's name for every linear layer but the output head.
const AllLinear = "all-linear"

// PEFT is the config with targets as PEFT has them for this model, from the names that people use. [AllLinear] is
// every projection, of experts too; it leaves out the head, routers, indexers, and what PEFT puts no adapter on. A
// name without a dot, such as "down_proj", reaches experts: their fused weight becomes a target parameter, and the
// name stays for the modules that have it. Gate and up of an expert are one weight there, gate_up_proj, with one
// adapter, so that gate_proj or up_proj alone is an error. "mlp.down_proj" or "shared_experts.down_proj" reach no
// experts.
func (m *Model) PEFT(c peft.Config) (peft.Config, error) {
	modules, parameters := m.Targets()
	targets := c.Targets
	if slices.Contains(targets, AllLinear) {
		if len(targets) > 1 {
			return c, fmt.Errorf("lora: target %q stands alone: remove the others, or name each", AllLinear)
		}
		targets, c.TargetParameters = m.allLinear(modules), parameters
	}
	c.Targets, c.TargetParameters = nil, slices.Clone(c.TargetParameters)
	for i, t := range c.TargetParameters {
		c.TargetParameters[i] = m.memoryName(t)
	}
	for _, t := range targets {
		reached, err := reached(t, targets, parameters)
		if err != nil {
			return c, err
		}
		for _, p := range reached {
			if !slices.ContainsFunc(c.TargetParameters, func(given string) bool { return peft.IsSuffix(p, given) }) {
				c.TargetParameters = append(c.TargetParameters, p)
			}
		}
		switch {
		case len(reached) > 0 && !slices.Contains(modules, t):
		case byWeight(t, parameters):
			c.TargetParameters = append(c.TargetParameters, m.memoryName(t)+".weight")
		default: // one that matches nothing is refused later, by its name
			c.Targets = append(c.Targets, m.memoryName(t))
		}
	}
	c.RankPattern, c.AlphaPattern = byWeights(c.RankPattern, parameters), byWeights(c.AlphaPattern, parameters)
	return c, m.checkValues(c)
}

// byWeights are values of modules with names that mean weights too, where PEFT is told of the weight.
func byWeights(values []peft.ModuleValue, parameters []string) []peft.ModuleValue {
	values = slices.Clone(values)
	for i, v := range values {
		if byWeight(v.Pattern, parameters) {
			values[i].Pattern += `(\.weight)?`
		}
	}
	return values
}

// checkValues is an error where a value is for no projection with an adapter.
func (m *Model) checkValues(c peft.Config) error {
	for _, v := range slices.Concat(c.RankPattern, c.AlphaPattern) {
		only := c
		only.Rank, only.Alpha, only.RankPattern, only.AlphaPattern = 1, 1, nil, nil
		only.RankPattern = []peft.ModuleValue{{Pattern: v.Pattern, Value: 2}}
		targets, err := m.adapterTargets(only)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(slices.Concat(targets...), func(t target) bool { return t.Rank == 2 }) {
			modules, parameters := m.Targets()
			return fmt.Errorf("lora: a rank or alpha for %q: no projection of that name has an adapter: want names "+
				"such as %s", strings.TrimSuffix(v.Pattern, `(\.weight)?`),
				strings.Join(slices.Concat(modules, parameters), ", "))
		}
	}
	return nil
}

// otherHalf is what lies in one weight of experts with a projection.
var otherHalf = map[string]string{"gate_proj": "up_proj", "up_proj": "gate_proj"}

const gateUp = "gate_up_proj"

// reached lists the fused weights of experts that a name without a dot means; all are the names that are given.
func reached(target string, all, parameters []string) (list []string, err error) {
	other, half := otherHalf[target]
	for _, p := range parameters {
		switch {
		case peft.IsSuffix(p, target) && !strings.Contains(target, "."):
			list = append(list, p)
		case half && peft.IsSuffix(p, gateUp) && slices.Contains(all, other):
			list = append(list, p)
		case half && peft.IsSuffix(p, gateUp):
			return nil, fmt.Errorf("lora: target %q: experts of this model have gate and up in one weight: add %q, "+
				"or name modules outside experts, such as %q", target, other, "mlp."+target)
		}
	}
	return list, nil
}

// byWeight tells whether PEFT has to be told of a module as the parameter that its weight is: by the names of a
// dense MLP it means experts alone where gate and up of these are fused (0.21,
// convert_peft_config_for_transformers).
func byWeight(target string, parameters []string) bool {
	switch target[strings.LastIndexByte(target, '.')+1:] {
	case "gate_proj", "up_proj", "down_proj":
		return slices.ContainsFunc(parameters, func(p string) bool { return peft.IsSuffix(p, gateUp) })
	}
	return false
}

// allLinear are the modules that [AllLinear] means. PEFT refuses out_proj of Mamba: kernels in transformers take its
// weight past the module.
func (m *Model) allLinear(modules []string) []string {
	return slices.DeleteFunc(slices.Clone(modules), func(name string) bool {
		return m.Family == "nemotron_h" && name == "out_proj"
	})
}

// Targets are the names of the model's projections, each once: the last part of a module's name, and of a fused
// weight of experts the last three, such as "mlp.experts.down_proj".
func (m *Model) Targets() (modules, parameters []string) {
	for _, l := range m.linears() {
		for _, s := range l.Subs {
			parts := strings.Split(s.Module, ".")
			list, name := &modules, parts[len(parts)-1]
			if l.Fused {
				list, name = &parameters, strings.Join(parts[max(0, len(parts)-3):], ".")
			}
			if !slices.Contains(*list, name) {
				*list = append(*list, name)
			}
		}
	}
	return modules, parameters
}

// OutsideExperts are targets that reach every projection but those of experts: the last two parts of modules' names.
func (m *Model) OutsideExperts() (list []string) {
	for _, l := range m.linears() {
		for _, s := range l.Subs {
			parts := strings.Split(s.Module, ".")
			name := strings.Join(parts[max(0, len(parts)-2):], ".")
			if !l.Fused && !slices.Contains(list, name) {
				list = append(list, name)
			}
		}
	}
	return list
}

package plan

import (
	"encoding/json"
	"fmt"
	"strings"
)

// JSON is the plan with all its numbers.
func (o *OnMachine) JSON() ([]byte, error) {
	return json.MarshalIndent(struct {
		Machine  string `json:"machine"`
		Measured bool   `json:"measured"`
		*OnMachine
	}{o.Machine.Name, o.Machine.Measured, o}, "", "  ")
}

// String is the plan for people: a paragraph for each mesh that fits, a line for each that does not.
func (o *OnMachine) String() string {
	var b strings.Builder
	m := o.Machine
	how := "measured " + m.Date
	if !m.Measured {
		how = "UNMEASURED"
	}
	fmt.Fprintf(&b, "%s\n%s: %d x %s, %.1f GiB each to a run, %s\n", o.Model, m.Name, m.Cards, m.Card,
		float64(o.available())/gibibyte, how)
	if note := m.Note(); note != "" {
		fmt.Fprintln(&b, note)
	}
	fmt.Fprintf(&b, "a step: %s\n", o.Batch)
	for i, mesh := range o.Meshes {
		if mesh.Fits() {
			fmt.Fprintf(&b, "\n%d. %s", i+1, mesh.text(m.Device, m.Measured))
		}
	}
	var not []string
	for _, mesh := range o.Meshes {
		if !mesh.Fits() {
			text := fmt.Sprintf("  %s: %s", mesh.name(), Size(mesh.Bytes))
			if mesh.Host > mesh.HostHas {
				text += fmt.Sprintf(", and %s of the host's %s", Size(mesh.Host), Size(mesh.HostHas))
			}
			not = append(not, text)
		}
	}
	if len(not) > 0 {
		fmt.Fprintf(&b, "\ndoes not fit:\n%s\n", strings.Join(not, "\n"))
	}
	if o.Mend != "" {
		fmt.Fprintf(&b, "%s\n", o.Mend)
	}
	if len(o.Refused) > 0 {
		fmt.Fprintf(&b, "\nnot possible:\n  %s\n", strings.Join(o.Refused, "\n  "))
	}
	if m.Cards > 1 {
		b.WriteString("\nThis is by plan: of meshes, four GPUs at most have run; of packs over ranks " +
			"(parallel.context), stages\nand weights on the host two.\n")
	}
	return b.String()
}

// name is the mesh in words.
func (m OnMesh) name() string {
	if m.Ranks == 1 {
		return "1 rank"
	}
	text := fmt.Sprintf("%d ranks", m.Ranks)
	if m.Stages > 1 {
		return fmt.Sprintf("%s, a pipeline stage each", text)
	}
	if m.Experts > 1 {
		text += ", experts divided"
		if m.Weights == "sharded" {
			text += ", other weights sharded"
		} else {
			text += ", other weights replicated"
		}
	} else {
		text += ", weights " + m.Weights
	}
	if m.Context > 1 {
		text += fmt.Sprintf(", packs over %d ranks", m.Context)
	}
	if m.Interleave > 1 {
		text += ", two-batch overlap"
	}
	return text
}

// text is a mesh that fits.
func (m OnMesh) text(device string, measured bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s tokens/s", m.name(), grouped(m.Step.Rate()))
	if !measured {
		b.WriteString(" (unmeasured)")
	}
	var memory []string
	unit, short := "GiB", shortGiB
	if m.Bytes < gibibyte {
		unit, short = "MiB", func(n int) string { return fmt.Sprintf("%.0f", float64(n)/(1<<20)) }
	}
	var host []string
	for _, p := range m.Purposes {
		if !p.Host || device == "cpu" {
			memory = append(memory, p.Name+" "+short(p.Bytes))
		} else {
			host = append(host, p.Name+" "+shortGiB(p.Bytes))
		}
	}
	of := "card"
	if device == "cpu" {
		of = "machine"
	}
	fmt.Fprintf(&b, "\n   %s a %s: %s; %s of %s", unit, of, strings.Join(memory, ", "), short(m.Bytes),
		short(m.Available))
	if len(host) > 0 {
		fmt.Fprintf(&b, "\n   GiB of the host: %s; %s of %s", strings.Join(host, ", "), shortGiB(m.Host),
			shortGiB(m.HostHas))
	}
	var parts []string
	for _, p := range m.Step.Parts {
		text := fmt.Sprintf("%s %s", p.Name, seconds(p.Seconds))
		if p.Hidden > 0 {
			text += fmt.Sprintf(" (%s hidden)", seconds(p.Hidden))
		}
		parts = append(parts, text)
	}
	fmt.Fprintf(&b, "\n   s a step: %s; %s together", strings.Join(parts, ", "), seconds(m.Step.Seconds))
	fmt.Fprintf(&b, "\n   %s\n   longest sequence: %s tokens", m.Recompute, grouped(float64(m.Longest)))
	if m.Bounded {
		b.WriteString(", all positions that the model has")
	}
	return b.String() + "\n"
}

func shortGiB(n int) string { return fmt.Sprintf("%.1f", float64(n)/gibibyte) }

// seconds has three digits.
func seconds(t float64) string {
	switch {
	case t >= 10:
		return fmt.Sprintf("%.1f", t)
	case t >= 0.1:
		return fmt.Sprintf("%.2f", t)
	}
	return fmt.Sprintf("%.4f", t)
}

// grouped is a whole number with commas.
func grouped(x float64) string {
	text := fmt.Sprintf("%.0f", x)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

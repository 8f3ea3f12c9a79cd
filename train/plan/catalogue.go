package plan

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"lockstep/configs"
	"lockstep/kernels"
	"lockstep/model"
)

// Catalogue returns a table of the published models, a line for each.
func Catalogue() (string, error) {
	var b strings.Builder
	const form = "%-24s%-18s%12s%10s%10s%14s%12s%18s\n"
	fmt.Fprintf(&b, form, "model", "family", "parameters", "active", "context", "full", "LoRA", "cache of a token")
	for _, name := range configs.Published() {
		e, err := published(name)
		if err != nil {
			return "", err
		}
		cells := []any{name, e.head.Family, "not built", "yet", e.context(), "", "", ""}
		if s := e.summary; s != nil {
			d := s.Demands[len(s.Demands)-1]
			cells = []any{
				name, s.Family, billions(s.Total), billions(s.Active), e.context(), gib(d.Full.Bytes()),
				gib(d.LoRA.Bytes()), fmt.Sprintf("%.0f KiB", float64(d.Full.Token)/(1<<10)),
			}
		}
		fmt.Fprintf(&b, form, cells...)
	}
	b.WriteString(
		"\nfull, LoRA: memory to train in bf16, without activations. See lockstep shapes MODEL for details.\n")
	return b.String(), nil
}

// Describe returns everything about one published model as text, with the peak of memory for a micro-batch.
func Describe(name string, size StepSize) (string, error) {
	e, err := published(name)
	if err != nil {
		return "", err
	}
	if e.summary == nil {
		return fmt.Sprintf("family      %s, not built yet\n\n%s", e.head.Family, e.config), nil
	}
	text := e.summary.String()
	if e.context() == silent {
		text += "positions   config.json gives no max_position_embeddings: this is the family's default\n"
	}
	const form = "%-12s%12s%12s%13s%13s%10s\n"
	text += "\n" + fmt.Sprintf(form, "", "memory", gpus[0].name, gpus[1].name, gpus[2].name, "CPU")
	for _, d := range slices.Backward(e.summary.Demands) {
		text += fmt.Sprintf(form, fits("full", d.DType, d.Full.Bytes())...) + fmt.Sprintf(form,
			fits("LoRA", d.DType, d.LoRA.Bytes())...)
	}
	peaks, err := Peaks(size, "model.catalogue="+name, "model.tokenizer=bytes")
	if err != nil {
		return "", err
	}
	return fmt.Sprintf(`%s
memory: weights, gradients, moments and masters; a tenth of each device is left for activations.
parallel.weights = "sharded" cuts the weights of blocks over the GPUs, and each has those of two blocks besides.
in a shape: model.catalogue = %q; a smaller model.config.num_hidden_layers keeps the first layers.

%s
%s`, text, name, peaks, e.config), nil
}

// entry is a model of the catalogue.
type entry struct {
	config []byte
	head   struct {
		Family    string `json:"model_type"`
		Positions int    `json:"max_position_embeddings"`
		Text      struct {
			Positions int `json:"max_position_embeddings"`
		} `json:"text_config"`
	}
	summary *model.Summary // nil: the family is not built yet
}

func published(name string) (*entry, error) {
	e := &entry{}
	var err error
	if e.config, err = configs.PublishedConfig(name); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(e.config, &e.head); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if !slices.Contains(model.Families(), e.head.Family) {
		return e, nil
	}
	if e.summary, err = model.Summarise(e.config); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return e, nil
}

const silent = "-" // a config.json that says nothing of its context

// context is how many positions the config.json gives.
func (e *entry) context() string {
	if n := max(e.head.Positions, e.head.Text.Positions); n > 0 {
		return fmt.Sprint(n)
	}
	return silent
}

// gpus are the sizes of memory that cards come in.
var gpus = []struct {
	name  string
	bytes int
}{{"80 GB GPUs", 80e9}, {"141 GB GPUs", 141e9}, {"192 GB GPUs", 192e9}}

// fits is a row that says on what so many bytes fit: how many GPUs of each size, in bf16, which is what they compute,
// and how much memory of a CPU.
func fits(mode string, dtype kernels.DType, bytes int) []any {
	need := bytes / 9 * 10
	row := []any{mode + ", " + dtype.String(), gib(bytes)}
	for _, g := range gpus {
		n := "-"
		if dtype == kernels.BF16 {
			n = deviceCount(need, g.bytes)
		}
		row = append(row, n)
	}
	ram := 1 << 30
	for ram < need {
		ram *= 2
	}
	return append(row, fmt.Sprintf("%d GiB", ram>>30))
}

// deviceCount is the smallest of the usual numbers of devices that hold so many bytes; a dash where none does.
func deviceCount(need, each int) string {
	for _, n := range []int{1, 2, 4, 8} {
		if n*each >= need {
			return fmt.Sprint(n)
		}
	}
	return "-"
}

func gib(n int) string { return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30)) }

// billions is a number of parameters as names of models have it.
func billions(n int) string {
	switch x := float64(n); {
	case n < 1e9:
		return fmt.Sprintf("%.0fM", x/1e6)
	case n < 1e10:
		return fmt.Sprintf("%.2fB", x/1e9)
	default:
		return fmt.Sprintf("%.1fB", x/1e9)
	}
}

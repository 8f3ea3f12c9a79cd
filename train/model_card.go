package train

import (
	"encoding/json"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"lockstep/configs"
	"lockstep/data/atomicfile"
	"lockstep/train/runlog"
)

// cardFile is the model card of a result, as the Hugging Face hub shows it.
const cardFile = "README.md"

// writeCard writes the model card of the result: how it was made, and what was proved of it. It names no folder of the
// machine.
func (j *job) writeCard(final string, proof *runlog.Proof) error {
	text, err := j.card(proof)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(final, cardFile), func(w io.Writer) error {
		_, err := io.WriteString(w, text)
		return err
	})
}

func (j *job) card(proof *runlog.Proof) (string, error) {
	s := j.shape
	var b strings.Builder
	library, base := "transformers", ""
	if j.trainer.Model.LoRA != nil {
		library = "peft"
	}
	if s.Model.Path != "" {
		name, err := json.Marshal(lastPart(s.Model.Path))
		if err != nil {
			return "", err
		}
		base = fmt.Sprintf("base_model: %s\n", name)
	}
	fmt.Fprintf(&b, "---\nlibrary_name: %s\n%spipeline_tag: text-generation\ntags:\n- lockstep\n- %s\n---\n\n# %s\n\n",
		library, base, j.method(), s.Run.Name)
	fmt.Fprintf(&b, "A %s model, made by Lockstep: %s, %d steps, %d tokens.\n\n", j.trainer.Model.Family, j.method(),
		j.state.Step, j.state.Tokens)
	fmt.Fprintf(&b, "| | |\n|---|---|\n| data | %s |\n| definition of the arithmetic | `%s` |\n", j.dataDigest(),
		j.state.Digest)
	switch {
	case proof == nil:
		b.WriteString("| rollout engine against trainer | not compared |\n")
	default:
		fmt.Fprintf(&b, "| rollout engine against trainer | %d of %d numbers differ over %d positions, KL %g |\n",
			proof.Mismatches, proof.Logits+proof.LogProbs, proof.Tokens, float64(proof.KL))
	}
	b.WriteString("\nKeys of the shape that are not at their defaults:\n\n```toml\n")
	for _, v := range cardSettings(s) {
		fmt.Fprintf(&b, "%s = %s\n", v.Key, withPath.ReplaceAllStringFunc(v.Value, func(text string) string {
			return text[:1] + lastPart(text[1:len(text)-1]) + text[:1]
		}))
	}
	b.WriteString("```\n")
	return b.String(), nil
}

// method is how the model was trained, as people call it.
func (j *job) method() string {
	switch s := j.shape; {
	case s.RL.Objective != "":
		return s.RL.Objective
	case s.Data.Preferences != "" && s.DPO.Kind == "sigmoid":
		return "dpo"
	case s.Data.Preferences != "":
		return s.DPO.Kind
	}
	return "sft"
}

// dataDigest names what was learned from.
func (j *job) dataDigest() string {
	c, name := j.corpus, lastPart(j.shape.Data.Task+j.shape.Data.Path+j.shape.Data.Preferences)
	switch {
	case c.TrainQuestions != nil:
		q := c.TrainQuestions
		return fmt.Sprintf("`%s`, %d questions, digest `%016x`", name, q.Len(), q.Digest())
	case c.Pairs != nil:
		return fmt.Sprintf("`%s`, %d pairs, digest `%016x`", name, c.Pairs.Len(), c.Pairs.Digest())
	}
	return fmt.Sprintf("`%s`, %d samples, digest `%016x`", name, c.Train.Len(), c.Train.Digest())
}

// withPath finds strings of a TOML value that are paths of more than one part.
var withPath = regexp.MustCompile(`"[^"]*[/\\][^"]*"|'[^']*[/\\][^']*'`)

// cardSettings are the settings that are not at their defaults and say how the model was made, without folders.
func cardSettings(s *configs.Shape) []configs.Setting {
	defaults := allSettings(configs.Default())
	return slices.DeleteFunc(s.Settings(), func(v configs.Setting) bool {
		return v.Value == defaults[v.Key] || slices.Contains([]string{"run.out", "run.name", "rl.url", "rl.command",
			"rl.loss"}, v.Key) || strings.HasPrefix(v.Key, "device.")
	})
}

// lastPart is the name of a file or folder without where it lies.
func lastPart(name string) string { return path.Base(filepath.ToSlash(filepath.Clean(name))) }

package train

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"lockstep/data"
	"lockstep/kernels"
	"lockstep/serve"
)

// episodesFile is the log of sampled answers in a run's folder. lockstep parity and verify --replay read it.
const episodesFile = "rollouts.jsonl"

// episode is one sampled answer: a line of rollouts.jsonl.
type episode struct {
	Step     int       `json:"step"`     // that learned from it, or left it out
	Asked    int       `json:"asked"`    // number of its prompt in the run, from 0
	Question int       `json:"question"` // place of its prompt in the data
	Sample   int       `json:"sample"`   // place in the group of its prompt
	Prompt   []int32   `json:"prompt_ids"`
	IDs      []int32   `json:"ids"`
	LogProbs []float32 `json:"logprobs"` // of IDs, as the engine recorded them, at the temperature
	// of the weights that chose each of IDs: optimizer steps since the warm start
	Versions  []int              `json:"versions"`
	Reward    float64            `json:"reward"`
	Advantage float32            `json:"advantage"`
	Learned   bool               `json:"learned"` // false: left out, its group was of one reward
	Finish    serve.FinishReason `json:"finish_reason"`
	Text      string             `json:"text"`

	Temperature float32 `json:"temperature"`
}

// lesson is what the trainer at a version learns from the episode: row t reads a token and is to predict the next,
// where the model chose that.
func (e *episode) lesson(version int) lesson {
	n := len(e.Prompt) + len(e.IDs) - 1
	l := lesson{Sample: data.Sample{IDs: make([]int32, 0, n), Targets: make([]int32, n)}, rollout: make([]float32, n),
		advantage: make([]float32, n)}
	l.inverse = slices.Repeat([]float32{kernels.Inverse(e.Temperature)}, n)
	l.IDs = append(append(l.IDs, e.Prompt...), e.IDs[:len(e.IDs)-1]...)
	for t := range l.Targets {
		l.Targets[t] = -1
	}
	for i, id := range e.IDs {
		t := len(e.Prompt) - 1 + i
		l.Targets[t], l.rollout[t], l.advantage[t] = id, e.LogProbs[i], e.Advantage
		if e.Versions[i] != version {
			if l.stale == nil {
				l.stale = map[int]bool{}
			}
			l.stale[t] = true
		}
	}
	return l
}

// appendEpisodes writes the answers of a step in one piece.
func appendEpisodes(dir string, groups []*group) (err error) {
	var text []byte
	for _, g := range groups {
		for i := range g.Episodes {
			line, err := json.Marshal(&g.Episodes[i])
			if err != nil {
				return fmt.Errorf("%s: %w", episodesFile, err)
			}
			text = append(append(text, line...), '\n')
		}
	}
	f, err := os.OpenFile(filepath.Join(dir, episodesFile), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}

// eachEpisode reads the log. A last line that a killed run left half-written is not part of it.
func eachEpisode(dir string, visit func(e *episode, line []byte) error) error {
	path := filepath.Join(dir, episodesFile)
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for n := 1; len(text) > 0; n++ {
		line, rest, whole := cutLine(text)
		if !whole {
			return nil
		}
		var e episode
		if err := json.Unmarshal(line, &e); err != nil {
			return fmt.Errorf("%s:%d: not a sampled answer (%w)", path, n, err)
		}
		if len(e.Prompt) == 0 || len(e.IDs) == 0 || len(e.LogProbs) != len(e.IDs) || len(e.Versions) != len(e.IDs) {
			return fmt.Errorf("%s:%d: want a prompt, and as many ids as logprobs and versions", path, n)
		}
		if err := visit(&e, line); err != nil {
			return err
		}
		text = rest
	}
	return nil
}

// cutEpisodes removes what was logged after step, in one rename.
func cutEpisodes(dir string, step int) error {
	path := filepath.Join(dir, episodesFile)
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return data.AtomicFile(path, func(w io.Writer) error {
		return eachEpisode(dir, func(e *episode, line []byte) error {
			if e.Step > step {
				return nil
			}
			_, err := w.Write(append(line, '\n'))
			return err
		})
	})
}

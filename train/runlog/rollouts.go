package runlog

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"lockstep/data/atomicfile"
	"lockstep/serve"
)

// EpisodesFile is the log of sampled answers in a run's folder. lockstep parity and verify --replay read it.
const EpisodesFile = "rollouts.jsonl"

// Episode is one sampled answer: a line of rollouts.jsonl.
type Episode struct {
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

// AppendEpisodes writes the answers of a step in one piece.
func AppendEpisodes(dir string, list []*Episode) error {
	var text []byte
	for _, e := range list {
		line, err := json.Marshal(e)
		if err != nil {
			return fmt.Errorf("%s: %w", EpisodesFile, err)
		}
		text = append(append(text, line...), '\n')
	}
	f, err := os.OpenFile(filepath.Join(dir, EpisodesFile), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}

// EachEpisode reads the log. A last line that a killed run left half-written is not part of it.
func EachEpisode(dir string, visit func(e *Episode, line []byte) error) error {
	path := filepath.Join(dir, EpisodesFile)
	text, err := atomicfile.Read(path)
	if err != nil {
		return err
	}
	for n := 1; len(text) > 0; n++ {
		line, rest, complete := cutLine(text)
		if !complete {
			return nil
		}
		var e Episode
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

// CutEpisodes removes what was logged after step, in one rename.
func CutEpisodes(dir string, step int) error {
	path := filepath.Join(dir, EpisodesFile)
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return atomicfile.Write(path, func(w io.Writer) error {
		return EachEpisode(dir, func(e *Episode, line []byte) error {
			if e.Step > step {
				return nil
			}
			_, err := w.Write(append(line, '\n'))
			return err
		})
	})
}

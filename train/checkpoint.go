package train

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"lockstep/data"
	"lockstep/data/atomicfile"
	"lockstep/data/safetensors"
	"lockstep/model"
	"lockstep/parallel"
	"lockstep/train/runlog"
	"lockstep/train/setup"
)

// state is what a checkpoint holds besides tensors.
type state struct {
	Step       int              `json:"step"`
	Tokens     int              `json:"tokens"`
	Seconds    float64          `json:"seconds"` // trained so far
	Digest     string           `json:"definition"`
	Origin     origin           `json:"origin"`
	Data       data.StreamState `json:"data"`
	Parameters int              `json:"parameters"`
	RL         *learnerState    `json:"rl,omitempty"` // nil: before reinforcement learning, or none
}

const (
	checkpointsDir = "checkpoints"
	// the checkpoint that reinforcement learning started from: its reference, and where a replay begins
	startDir      = "start"
	stateFile     = "state.json"
	sumsFile      = "SHA256SUMS" // of all files of the checkpoint, in the format of sha256sum
	weightsDir    = "model"      // a Hugging Face folder; with LoRA a PEFT adapter
	optimizerFile = "optimizer.safetensors"
)

func checkpointName(step int) string { return fmt.Sprintf("step-%08d", step) }

// saveCheckpoint writes a checkpoint as folder dir. It is written under a temporary name, synced and renamed: a folder
// with the final name is complete.
func saveCheckpoint(c model.Replicas, tok *data.ChatTokenizer, dir, base string, st state) error {
	return atomicfile.Dir(dir, func(tmp string) (err error) {
		if err := os.Mkdir(filepath.Join(tmp, weightsDir), 0o755); err != nil {
			return err
		}
		if err := setup.SaveModel(c[0], tok, filepath.Join(tmp, weightsDir), base); err != nil {
			return err
		}
		if err := safetensors.Write(filepath.Join(tmp, optimizerFile), c.OptimizerTensors(), nil); err != nil {
			return err
		}
		if err := runlog.WriteJSON(filepath.Join(tmp, stateFile), st); err != nil {
			return err
		}
		return writeSums(tmp)
	})
}

// listCheckpoints lists the complete checkpoints of a run, newest first.
func listCheckpoints(parent string) ([]string, error) {
	entries, err := os.ReadDir(parent)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && strings.HasPrefix(e.Name(), "step-") && !strings.HasSuffix(e.Name(), ".old") {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	slices.Reverse(names)
	return names, err
}

func prune(parent string, keep int) error {
	names, err := listCheckpoints(parent)
	if err != nil {
		return err
	}
	for _, name := range names[min(keep, len(names)):] {
		if err := os.RemoveAll(filepath.Join(parent, name)); err != nil {
			return err
		}
	}
	return nil
}

// loadCheckpoint reads the newest checkpoint whose files are complete into the replicas. It returns nil where the run
// has none. fits says why the run cannot be resumed from a checkpoint; "": it can.
func loadCheckpoint(w *parallel.World, c model.Replicas, out string, fits func(*state) string,
	note func(string, ...any)) (*state, error) {
	parent := filepath.Join(out, checkpointsDir)
	names, err := listCheckpoints(parent)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		dir := filepath.Join(parent, name)
		st, err := readState(dir)
		if errors.Is(err, errEarlier) {
			return nil, fmt.Errorf("%s: %w", dir, err)
		}
		if err == nil && checkpointName(st.Step) != name {
			err = fmt.Errorf("%s has step %d", stateFile, st.Step)
		}
		if err != nil {
			note("%s is damaged, trying the previous one: %s", dir, data.Shown(err.Error()))
			continue
		}
		if unlike := fits(st); unlike != "" {
			return nil, fmt.Errorf("%s: %s", dir, unlike)
		}
		return st, restore(w, c, dir)
	}
	return nil, nil
}

// errEarlier is the error of a checkpoint that was written before all of it had checksums.
var errEarlier = errors.New("written by an earlier version, without " + sumsFile + ": start a new run in another --out")

// readState reads the state of a checkpoint all of whose files are as they were written.
func readState(dir string) (*state, error) {
	switch _, err := checkSums(dir); {
	case errors.Is(err, fs.ErrNotExist) && hasOldSums(dir):
		return nil, errEarlier
	case err != nil:
		return nil, err
	}
	text, err := atomicfile.Read(filepath.Join(dir, stateFile))
	if err != nil {
		return nil, err
	}
	st := new(state)
	if err := json.Unmarshal(text, st); err != nil {
		return nil, fmt.Errorf("%s: %w", stateFile, err)
	}
	return st, nil
}

// hasOldSums tells whether the state of a checkpoint holds the checksums of the other files, as it once did.
func hasOldSums(dir string) bool {
	var st struct {
		Files map[string]string `json:"files"`
	}
	text, err := atomicfile.Read(filepath.Join(dir, stateFile))
	return err == nil && json.Unmarshal(text, &st) == nil && len(st.Files) > 0
}

// restore loads weights and the optimizer's state.
func restore(w *parallel.World, c model.Replicas, dir string) error {
	if err := restoreWeights(c[0], dir); err != nil {
		return err
	}
	if err := c.Broadcast(w); err != nil {
		return err
	}
	f, err := safetensors.Open(filepath.Join(dir, optimizerFile))
	if err != nil {
		return err
	}
	defer f.Close()
	if err := c.LoadOptimizer(f.Checkpoint()); err != nil {
		return err
	}
	return c.EncodeMasters(w)
}

func restoreWeights(m *model.Model, dir string) error {
	weights, err := safetensors.OpenCheckpoint(filepath.Join(dir, weightsDir))
	if err != nil {
		return err
	}
	defer weights.Close()
	if m.LoRA != nil {
		return m.LoadAdapter(weights)
	}
	return m.Load(weights)
}

package runlog

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"lockstep/data/atomicfile"
)

// ResultFile is what a finished run says of itself, in its folder.
const ResultFile = "result.json"

// Result is result.json: what a finished run says of itself, besides its shape and its logs.
type Result struct {
	Finished    time.Time    `json:"finished"`
	Seconds     float64      `json:"seconds"` // of training
	Environment []NameValue  `json:"environment"`
	Memory      Memory       `json:"memory"`
	Proof       *Proof       `json:"proof,omitempty"`   // nil: the run had no proof
	Samples     []Generation `json:"samples,omitempty"` // of the last evaluation
}

// NameValue is a name and a value, both for people.
type NameValue struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Proof is the result of holding the rollout engine against the training forward.
type Proof struct {
	Tokens     int        `json:"tokens"`     // positions
	Logits     int        `json:"logits"`     // numbers compared bit for bit
	LogProbs   int        `json:"logprobs"`   // likewise, of next tokens
	Mismatches int        `json:"mismatches"` // of both kinds
	KL         Number     `json:"kl"`         // mean over positions of KL(training || rollout), nats
	Digest     string     `json:"definition"` // hex
	Ways       []ProofWay `json:"ways"`
}

// Zero tells whether something was compared and every bit agreed.
func (p *Proof) Zero() bool { return p.Logits > 0 && p.Mismatches == 0 && p.KL == 0 }

// ProofWay is one way of computing that was held against the training forward, such as "decode".
type ProofWay struct {
	Name       string `json:"name"`
	Logits     int    `json:"logits"`
	Mismatches int    `json:"mismatches"`
	KL         Number `json:"kl"`
}

// Generation is a sampled answer.
type Generation struct {
	Prompt string  `json:"prompt"`
	Answer string  `json:"answer"`
	Reward float64 `json:"reward"`
	Note   string  `json:"note,omitempty"` // what was expected; "": nothing
}

// Memory is what a plan said and what the run took of it, in bytes.
type Memory struct {
	Planned       int   `json:"planned"`
	Peak          int64 `json:"peak"` // resident memory of the process
	PlannedDevice int   `json:"planned_device"`
	Device        int   `json:"device"` // of all devices; on the CPU a part of the process's
	PlannedPinned int   `json:"planned_pinned,omitempty"`
	Pinned        int   `json:"pinned,omitempty"` // of the host, for what is offloaded from all devices
}

// Mark is what a reward of 1 or 0 means; "": another.
func (g Generation) Mark() string {
	switch g.Reward {
	case 1:
		return "right"
	case 0:
		return "wrong"
	}
	return ""
}

// ReadResult reads the result of a run; nil: it has not finished.
func ReadResult(path string) (*Result, error) {
	text, err := atomicfile.Read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var r Result
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("%s: not the result of a run (%w), remove the file", path, err)
	}
	return &r, nil
}

package train

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"

	"lockstep/data/safetensors"
	"lockstep/model"
	"lockstep/train/trainer"
)

// referenceFile holds the log-probabilities of pairs under the weights that a run started from: tensors "train" and
// "held_out", F32 [rows], of all answers one after the other. Its metadata say what they were made from, and their
// checksum.
const referenceFile = "reference.safetensors"

// provenance is what a reference was made from, as digests.
type provenance struct{ definition, weights, train, heldOut string }

// weightsDigest returns the SHA-256 of a model's tensors, where a run starts from an adapter with those of it: new
// adapters add nothing when a run starts.
func weightsDigest(m *model.Model, adapted bool) (string, error) {
	h, all := sha256.New(), m.Tensors()
	if adapted {
		all = append(all, m.AdapterTensors()...)
	}
	for _, t := range all {
		fmt.Fprintf(h, "%s %s %v\n", t.Name, t.DType, t.Shape)
		if err := t.Write(h); err != nil {
			return "", fmt.Errorf("digest of %s: %w", t.Name, err)
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// metadata lists the safetensors metadata of a reference, and what to do where a file has another value.
func (p provenance) metadata() []struct{ key, value, mend string } {
	return []struct{ key, value, mend string }{
		{"definition", p.definition, "was computed by another definition: use the run's device and settings"},
		{"weights", p.weights, "was computed from other weights: restore the model that the run started from"},
		{"train", p.train, "belongs to other pairs: restore data.preferences"},
		{"held_out", p.heldOut, "belongs to other held-out pairs: restore data.eval_path"},
	}
}

// write saves the reference of samples.
func (p *preference) write(path string) error {
	train, held := referenceBytes(p.train), referenceBytes(p.heldOut)
	meta := map[string]string{"sha256": referenceSum(train, held)}
	for _, f := range p.provenance.metadata() {
		meta[f.key] = f.value
	}
	tensor := func(name string, raw []byte) safetensors.OutTensor {
		return safetensors.OutTensor{Name: name, DType: "F32", Shape: []int{len(raw) / 4},
			Write: func(w io.Writer) error {
				_, err := w.Write(raw)
				return err
			}}
	}
	return safetensors.Write(path, []safetensors.OutTensor{tensor("train", train), tensor("held_out", held)}, meta)
}

// read fills in the reference that write saved; found is false where there is none.
func (p *preference) read(path string) (found bool, err error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	f, err := safetensors.Open(path)
	if err != nil {
		return false, fmt.Errorf("the reference is damaged: remove it, and --resume computes it again: %w", err)
	}
	defer f.Close()
	meta, tensors := f.Metadata(), f.Checkpoint()
	train, okTrain := tensors.Tensor("train")
	held, okHeld := tensors.Tensor("held_out")
	if !okTrain || !okHeld || meta["sha256"] == "" {
		return false, fmt.Errorf("%s: not a reference of pairs: remove it to recompute it with --resume", path)
	}
	for _, entry := range p.provenance.metadata() {
		if meta[entry.key] != entry.value {
			return false, fmt.Errorf("%s: %s, or start a new run in another --out", path, entry.mend)
		}
	}
	if referenceSum(train.Data, held.Data) != meta["sha256"] {
		return false, fmt.Errorf("%s: has a different checksum than when it was written: remove it to recompute it "+
			"with --resume", path)
	}
	if !setReference(p.train, train) || !setReference(p.heldOut, held) {
		return false, fmt.Errorf("%s: has other rows than the pairs: remove it to recompute it with --resume", path)
	}
	return true, nil
}

func referenceSum(train, held []byte) string {
	h := sha256.New()
	h.Write(train)
	h.Write(held)
	return hex.EncodeToString(h.Sum(nil))
}

// referenceBytes is the reference of samples, little-endian.
func referenceBytes(list []trainer.Sample) (raw []byte) {
	for _, l := range list {
		for _, x := range l.Reference {
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(x))
		}
	}
	return raw
}

// setReference gives each sample its rows of a tensor. It returns false where the tensor has more or fewer.
func setReference(list []trainer.Sample, t safetensors.TensorInfo) bool {
	rows := 0
	for _, l := range list {
		rows += len(l.IDs)
	}
	if t.DType != "F32" || t.Len() != rows {
		return false
	}
	raw := t.Data
	for i := range list {
		list[i].Reference = make([]float32, len(list[i].IDs))
		for k := range list[i].Reference {
			list[i].Reference[k], raw = math.Float32frombits(binary.LittleEndian.Uint32(raw)), raw[4:]
		}
	}
	return true
}

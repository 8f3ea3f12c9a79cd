package train

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"lockstep/configs"
	"lockstep/data/atomicfile"
	"lockstep/kernels"
	"lockstep/model"
	"lockstep/serve"
	"lockstep/train/plan"
	"lockstep/train/report"
	"lockstep/train/runlog"
	"lockstep/train/setup"
)

// finish saves the result, proves it and writes the report.
func (j *job) finish() error {
	if err := j.save(); err != nil {
		return err
	}
	final := filepath.Join(j.folder, finalName(j.trainer.Model))
	if err := j.saveFinal(final); err != nil {
		return err
	}
	proof, failed, err := j.prove()
	switch {
	case j.ctx.Err() != nil:
		return ErrInterrupted
	case errors.Is(err, serve.ErrNotFinite):
		return fmt.Errorf("proof of %s, which is saved: %w: start again with a lower optim.lr", final, err)
	case err != nil:
		return err
	}
	if err := j.writeCard(final, proof); err != nil {
		return err
	}
	if err := j.report(proof); err != nil {
		return err
	}
	j.progress.Close()
	j.progress = nil
	j.note("%d tokens in %.0f s; peak memory %d MiB", j.state.Tokens, j.state.Seconds, plan.PeakMemory()>>20)
	if err := j.comparePlan(); err != nil {
		return err
	}
	j.note("model: %s", final)
	j.note("report: %s", filepath.Join(j.folder, report.ReportFile))
	return failed
}

// comparePlan notes what the plan said of memory and of a step's time, and what they were, where the machine is known.
func (j *job) comparePlan() error {
	m := j.options.Machine
	if m == nil && j.shape.Device.Kind == "cuda" && !j.shape.Parallel.Share {
		if known, ok := configs.MachineOf(j.ranks.DeviceName(), j.world.Size()); ok {
			m = &known
		}
	}
	if m == nil || len(j.took) == 0 {
		return nil
	}
	step, err := plan.StepOn(*m, j.shape, j.corpus.Longest(j.shape.Rollout.MaxTokens), j.plan.Keep)
	if err != nil {
		return err
	}
	slices.Sort(j.took)
	memory := j.taken()
	j.note("plan by %s: %s and %.3g s a step of full packs; measured: %s and %.3g s (median of %d)", m.Name,
		plan.Size(memory.PlannedDevice), step.Seconds, plan.Size(memory.Device), j.took[len(j.took)/2], len(j.took))
	return nil
}

// report writes result.json, the report and its picture.
func (j *job) report(proof *runlog.Proof) error {
	// resumed after the last step: the evaluation is in the log, its texts are not
	if len(j.generations) == 0 && j.corpus.HeldOutQuestions != nil {
		if err := j.evaluate(new(runlog.Record)); err != nil {
			return err
		}
	}
	err := runlog.WriteJSON(filepath.Join(j.folder, runlog.ResultFile), runlog.Result{
		Finished: time.Now().UTC().Truncate(time.Second), Seconds: j.state.Seconds, Environment: environment(j),
		Memory: j.taken(), Proof: proof, Samples: j.generations[:min(len(j.generations), 8)],
	})
	if err != nil {
		return err
	}
	r, err := report.Read([]string{j.folder})
	if err != nil {
		return err
	}
	return errors.Join(r.WriteHTML(filepath.Join(j.folder, report.ReportFile)),
		r.WriteSVG(filepath.Join(j.folder, report.CurveFile)))
}

func finalName(m *model.Model) string {
	if m.LoRA != nil {
		return "adapter"
	}
	return "model"
}

func (j *job) saveFinal(final string) error {
	return atomicfile.Dir(final, func(tmp string) error {
		return setup.SaveDeployed(j.trainer.Model, j.tokenizer, tmp, j.shape.Model.Path)
	})
}

// prove compares the rollout engine with the training forward on the trained weights. failed is not nil where bits
// differ.
func (j *job) prove() (p *runlog.Proof, failed, err error) {
	if j.shape.Run.VerifyTokens == 0 {
		return nil, nil, nil
	}
	rep, err := serve.Verify(j.ctx, j.ranks, serve.VerifyOptions{Tokens: j.shape.Run.VerifyTokens,
		Seed: uint64(j.shape.Run.Seed), Corpus: j.corpus.Texts(64)})
	if err != nil {
		return nil, nil, err
	}
	j.note("%s", rep)
	t := rep.Totals()
	p = &runlog.Proof{Tokens: t.Tokens, Logits: t.Logits, LogProbs: t.LogProbs, Mismatches: t.Mismatches,
		KL: runlog.Number(t.KL), Digest: rep.Digest}
	for _, c := range rep.Comparisons {
		p.Ways = append(p.Ways, runlog.ProofWay{Name: c.Name, Logits: c.Logits, Mismatches: c.Mismatches,
			KL: runlog.Number(c.KL)})
	}
	return p, rep.Err(), nil
}

// taken compares the memory that was planned with the memory that the run took.
func (j *job) taken() runlog.Memory {
	n := runlog.Memory{Planned: j.memory.Total(), Peak: plan.PeakMemory(), PlannedDevice: j.memory.Device(),
		PlannedPinned: j.memory.Host}
	for i, d := range j.world.Devices() {
		n.Pinned += kernels.Pinned(d)
		bytes := kernels.Allocated(d)
		if i == 0 {
			bytes += kernels.Allocated(j.rolloutDevice)
		}
		if j.shape.Device.Kind == "cpu" {
			n.Device += bytes
		} else {
			n.Device = max(n.Device, bytes)
		}
	}
	return n
}

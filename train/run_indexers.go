package train

import (
	"fmt"

	"lockstep/model"
	"lockstep/train/runlog"
	"lockstep/train/trainer"
)

// indexers records the loss of indexers that are trained, and returns fields for the progress line.
func (j *job) indexers(rec *runlog.Record, res trainer.StepResult) (fields []string) {
	if j.trainer.Model.Indexing == model.IndexersFrozen {
		return nil
	}
	rec.IndexerLoss, rec.IndexerNorm = runlog.Num(res.IndexerLoss), runlog.Num(res.IndexerNorm)
	return []string{fmt.Sprintf("indexer loss %.4f", res.IndexerLoss)}
}

// Package runlog is the files that a run leaves for people, reports and replays: metrics.jsonl and TensorBoard events
// ([Metrics], [Record]), rollouts.jsonl ([Episode]) and result.json ([Result]). It writes and reads them; a line that a
// killed run left half-written is cut off.
//
// It imports data and serve. Checkpoints belong to package train.
package runlog

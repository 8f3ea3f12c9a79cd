// Package train is what a run is: its folder, its data and model, the training loop, checkpoints and resume, metrics
// and the report. It imports everything but main.
package train

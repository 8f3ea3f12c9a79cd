// Package plan tells what a run takes of a device's memory before it begins: [New] builds the run's graph on a device
// that counts memory and computes nothing, [Plan.Choose] selects what the backward pass recomputes, and [Admit] refuses
// a run that does not fit and names the settings by which it would. [Peaks] and [Describe] tell the same of models
// without a run.
//
// It imports configs, serve, model, kernels/meta, train/setup and train/trainer.
package plan

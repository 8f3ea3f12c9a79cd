// Package setup makes what a shape describes: the device's configuration, the model with its tokenizer and adapters,
// the data, and the options of trainer and rollout engine. Runs, plans and benchmarks begin here.
//
// It imports configs, serve, model, data, optim, kernels/devices and train/trainer. It writes nothing but models.
package setup

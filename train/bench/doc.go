// Package bench measures speed as ratios within one run: training on the CPU against the FMA peak ([CPU]), training,
// forward and decoding on a GPU ([CUDA]) and its kernels against a copy in memory ([Kernels]), the rollout engine
// against what memory allows ([Rollout]), objectives by their number of passes ([RL]), run.recompute ([Recompute]), and
// exchanges between ranks ([Exchange]). A peer (transformers or torch, by a Python interpreter) runs the same work
// where one is named.
//
// It imports train/setup, train/plan and train/trainer, and what these do. Nothing but the command line imports it.
package bench

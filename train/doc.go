// Package train is what a run is: its folder, its steps, evaluation, checkpoints and resume, reinforcement learning and
// preferences, and the replay of a recorded run. [Run] does all of it.
//
// Below it lie train/setup (a shape's model, data and options), train/plan (memory), train/trainer (the optimizer's
// step), train/runlog (the files of a run), train/report (its page) and train/bench (benchmarks, which it does not
// import). It imports everything else but main.
package train

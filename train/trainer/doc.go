// Package trainer updates the weights of a model. It is for whoever has samples: a run, reinforcement learning, a
// benchmark or a service.
//
//	t := trainer.New(rank, m, trainer.Options{...})
//	packs := trainer.Supervised(samples) // or trainer.Pack, for objectives with weights of their own
//	for step := 1; ; step++ {
//		res := t.Step(step, packs)
//	}
//
// A [Sample] is a sequence of tokens with what an objective knows of each of them. Packs of samples become a [Batch]:
// rows one after the other, with an index from samples to rows. [Trainer.Step] is forward, backward and the optimizer's
// step; where packs come one after the other, a [Feed] computes each as it comes, and ends in the same bits.
// [Trainer.ForwardBackward] is the first two alone, of one micro-batch. [Trainer.LogProbs] and [EachLogProb]
// compute log-probabilities without gradients.
//
// It imports model, optim, parallel, data and kernels. It knows nothing of shapes, folders or logs: those belong to
// packages configs, train and train/runlog.
package trainer

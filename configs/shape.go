package configs

import (
	"errors"
	"strconv"
)

// Shape is everything that decides a run. The comment of a field is its documentation in printed shapes too: run go
// generate after a change. The tag default is its TOML value, range the interval of a number, oneof the values of a
// string and bool those that false and true stand for.
type Shape struct {
	Model Model `toml:"model"` // the network to train: a checkpoint, or a new one
	Data  Data  `toml:"data"`  // training and evaluation data
	LoRA  LoRA  `toml:"lora"`  // adapters instead of full fine-tuning
	// the indexer of sparse attention, trained to match the attention weights
	Indexer Indexer `toml:"indexer"`
	Optim   Optim   `toml:"optim"` // AdamW and its learning rate
	Run     Run     `toml:"run"`   // length, batch and outputs
	DPO     DPO     `toml:"dpo"`   // with data.preferences: direct preference optimisation
	// supervised fine-tuning on a task's worked solutions before reinforcement learning
	WarmStart WarmStart `toml:"warm_start"`
	// reinforcement learning: sample answers, reward them, update by their advantages
	RL         RL         `toml:"rl"`
	Rollout    Rollout    `toml:"rollout"`    // the engine that generates answers
	Definition Definition `toml:"definition"` // the arithmetic, shared by training and serving
	Device     Device     `toml:"device"`     // where it runs; results are the same bits on each
	Parallel   Parallel   `toml:"parallel"`   // how many devices train together; never changes a bit
	Pipeline   Pipeline   `toml:"pipeline"`   // how micro-batches pass stages; never changes a bit
	Offload    Offload    `toml:"offload"`    // what lies in the host's memory; never changes a bit

	Notes []string `toml:"-"` // what reading the shape has changed of it, a line each
}

// Model is either a checkpoint (path) or a new network (family and config, or a published one's by its name in the
// catalogue).
type Model struct {
	// checkpoint folder in the Hugging Face layout
	Path string `toml:"path"`
	// instead of path: model_type of a new network, such as "qwen3_moe"
	Family string `toml:"family"`
	// instead of family: a model that "lockstep shapes" lists; becomes its family and config
	Catalogue string `toml:"catalogue"`
	// of a new network: tokenizer.json, a folder that has one, "bytes" or "countdown"
	Tokenizer string `toml:"tokenizer"`
	// storage of weights and activations; "auto": bf16 for tc16, else fp32
	DType string `toml:"dtype" default:"'auto'" oneof:"auto,fp32,bf16"`
	// "auto": what a checkpoint has in FP8, INT4 or MXFP4 and is not trained stays in codes; "open": numbers, the same
	// bits; a format: projections are put into it, those that are trained after each update (QAT)
	Weights string `toml:"weights" default:"'auto'" oneof:"auto,open,int4,mxfp4,mxfp8,fp8"`
	// which projections a format is for; "auto": of 4 bits experts, where there are some, else all
	Coded    string `toml:"coded" default:"'auto'" oneof:"auto,experts,projections"`
	InitSeed int    `toml:"init_seed" default:"1" range:"[0,)"` // seed of a new network's weights
	// of Nemotron-H; "none": steps are within time_step_limit of config.json, as in the model's own code; "reference":
	// at least time_step_min, as transformers has it whatever the limit; saved with the model
	TimeStepFloor string `toml:"time_step_floor" default:"'none'" oneof:"none,reference"`
	// of a new network: fields of its config.json; under catalogue what differs, such as num_hidden_layers = 2
	Config map[string]any `toml:"config"`
}

// Data is a built-in task, or JSONL files of samples or of preferences.
type Data struct {
	Task string `toml:"task" oneof:",countdown"` // built-in task: "countdown"
	// instead of task: JSONL file to train on
	Path string `toml:"path"`
	// instead of both: JSONL file of pairs of answers, a chosen and a rejected one; see dpo
	Preferences string `toml:"preferences"`
	// JSONL file held out for evaluation
	EvalPath string `toml:"eval_path"`
	// tokens of a pack: samples packed one after the other
	PackRows int `toml:"pack_rows" default:"2048" range:"[2,16777216]"`
	// what to do with a sample longer than a pack
	Long string `toml:"long" default:"'error'" oneof:"error,drop,truncate"`
	// train on answers without a known end token; the model then never stops
	NoEnd bool `toml:"no_end"`
	// held-out samples of an evaluation
	EvalSamples int `toml:"eval_samples" default:"200" range:"[0,10000000]"`
	// with task "countdown": its instances
	Countdown Countdown `toml:"countdown"`
}

// Countdown is the task of reaching a target from numbers by arithmetic.
type Countdown struct {
	Numbers   int    `toml:"numbers" default:"3" range:"[2,8]"`            // numbers of an instance
	MinNumber int    `toml:"min_number" default:"1" range:"[1,1000]"`      // smallest number
	MaxNumber int    `toml:"max_number" default:"10" range:"[1,1000]"`     // largest number
	MaxTarget int    `toml:"max_target" default:"100" range:"[1,1000000]"` // largest target
	Operators string `toml:"operators" default:"'+-*'"`                    // allowed operators, out of + - * /
	// how a solution is written; "": the task's default
	Style string `toml:"style"`
	Train int    `toml:"train" default:"10000" range:"[1,10000000]"` // instances to train on
	Test  int    `toml:"test" default:"200" range:"[1,10000000]"`    // held-out instances
	Seed  int    `toml:"seed" default:"1" range:"[0,)"`              // seed of the instances
}

// LoRA is the shape of the adapters, in PEFT's terms.
type LoRA struct {
	// adapter to start from, a PEFT folder; it has its own rank, alpha and targets: those below are absent, or agree
	Path string `toml:"path"`
	// rank of the adapters; 0: that of path, or without one full fine-tuning
	Rank int `toml:"rank" default:"0" range:"[0,4096]"`
	// adapters are scaled by alpha / rank
	Alpha float64 `toml:"alpha" default:"32.0" range:"(0,)"`
	// rank-stabilised: adapters are scaled by alpha / sqrt(rank) instead
	UseRSLoRA bool `toml:"use_rslora" default:"false"`
	// ranks of some projections in place of rank, such as "down_proj=32"; the first that matches counts
	RankPattern []string `toml:"rank_pattern"`
	// alphas of some projections in place of alpha, such as "down_proj=64"
	AlphaPattern []string `toml:"alpha_pattern"`
	// projections that get adapters; gate_proj, up_proj and down_proj reach experts too; "all-linear": all but the head
	Targets []string `toml:"targets" default:"['q_proj', 'k_proj', 'v_proj', 'o_proj']"`
	// expert weights that get adapters, such as "mlp.experts.gate_up_proj"
	TargetParameters []string `toml:"target_parameters"`
	// "shared": the experts of a layer have one A of gate_proj and up_proj, and one B of down_proj, which add up what
	// they learn; "each": every expert has factors of its own
	Experts string `toml:"experts" default:"'each'" oneof:"each,shared"`
	// modules that are trained in full and stored with the adapters, such as "lm_head"
	ModulesToSave []string `toml:"modules_to_save"`
	// probability by which a training step drops elements of what adapters read, as in PEFT; not of experts, nor in RL
	Dropout float64 `toml:"dropout" default:"0.0" range:"[0,0.999]"`
	// seed of the adapters' weights and of dropout
	Seed int `toml:"seed" default:"1" range:"[0,)"`
}

// On tells whether adapters are trained.
func (l LoRA) On() bool { return l.Rank > 0 || l.Path != "" }

// Indexer says what indexers of sparse attention learn (DeepSeek-V3.2-Exp report, section 2.1). Their loss has no
// gradient to other weights. AdamW does not depend on the scale of a loss, so their speed is set by a learning rate and
// not by a coefficient.
type Indexer struct {
	// "sparse": KL over the selected keys, trained with the model; "dense": KL over all keys under full attention, the
	// model frozen; "": frozen
	Stage string `toml:"stage" oneof:",sparse,dense"`
	// learning rate of the indexer, as a multiple of the model's
	LRFactor float64 `toml:"lr_factor" default:"1.0" range:"(0,)"`
}

// Optim is AdamW: decoupled weight decay, bias correction, clipping by the global norm.
type Optim struct {
	LR float64 `toml:"lr" default:"1e-4" range:"(0,)"` // peak learning rate
	// decay of the first moment
	Beta1 float64 `toml:"beta1" default:"0.9" range:"[0,1)"`
	// decay of the second moment
	Beta2 float64 `toml:"beta2" default:"0.95" range:"[0,1)"`
	// added to the root of the second moment
	Eps float64 `toml:"eps" default:"1e-8" range:"(0,)"`
	// decoupled weight decay: a step takes lr * weight_decay of each weight
	WeightDecay float64 `toml:"weight_decay" default:"0.0" range:"[0,)"`
	// learning-rate schedule after warm-up
	Schedule    string `toml:"schedule" default:"'cosine'" oneof:"constant,linear,cosine"`
	WarmupSteps int    `toml:"warmup_steps" default:"0" range:"[0,1000000000]"` // steps of linear warm-up
	// instead of warmup_steps: share of all steps, rounded up
	WarmupRatio float64 `toml:"warmup_ratio" default:"0.0" range:"[0,1]"`
	// learning rate of the last step, as a fraction of lr
	FinalLR float64 `toml:"final_lr" default:"0.1" range:"[0,1]"`
	// largest global norm of the gradient; 0: no clipping
	Clip float64 `toml:"clip" default:"1.0" range:"[0,)"`
}

// DPO is the loss of pairs by what the log-probability of each answer gained over that under the weights that the run
// starts from; the margin is chosen - rejected.
type DPO struct {
	// "sigmoid": -ln sigmoid(beta * margin); "ipo": (margin - 1 / (2 * beta))^2, where gains are averaged over the
	// tokens of an answer, as in TRL; "ipo_sum": the same of sums
	Kind string `toml:"kind" default:"'sigmoid'" oneof:"sigmoid,ipo,ipo_sum"`
	// strength of the KL penalty: a larger beta keeps the model closer to its start
	Beta float64 `toml:"beta" default:"0.1" range:"(0,)"`
	// of sigmoid: probability that the preference of a pair is wrong
	LabelSmoothing float64 `toml:"label_smoothing" default:"0.0" range:"[0,0.5)"`
}

// WarmStart is a supervised stage with its own AdamW state, at the rate of a cosine from lr down to a tenth.
type WarmStart struct {
	// optimizer steps before those of run.steps; 0: none
	Steps       int     `toml:"steps" default:"0" range:"[0,1000000000]"`
	LR          float64 `toml:"lr" default:"1e-3" range:"(0,)"`                  // peak learning rate
	WarmupSteps int     `toml:"warmup_steps" default:"0" range:"[0,1000000000]"` // steps of linear warm-up
	// instead of warmup_steps: share of steps, rounded up
	WarmupRatio float64 `toml:"warmup_ratio" default:"0.0" range:"[0,1]"`
	Packs       int     `toml:"packs" default:"8" range:"[1,1048576]"` // packs of a step
}

// RL says how answers become gradients. A step of the run samples prompts * group answers, and takes minibatches *
// epochs optimizer steps on them.
type RL struct {
	// loss; "custom": that of a program; "": the run is supervised
	Objective string `toml:"objective" oneof:",policy_gradient,ppo,grpo,dr_grpo,dapo,gspo,cispo,dro,custom"`
	// of custom: the program and its arguments; it reads {"question", "sample", "reward", "advantage", "weight", "ids",
	// "logprobs", "rollout"} for each answer and writes {"gradients": [...], "loss": x}
	Loss []string `toml:"loss"`
	// prompts of a step
	Prompts int `toml:"prompts" default:"16" range:"[1,1048576]"`
	// answers to each prompt
	Group int `toml:"group" default:"8" range:"[1,65536]"`
	// minibatches that the answers of a step are split into, an optimizer step each
	Minibatches int `toml:"minibatches" default:"1" range:"[1,1048576]"`
	// passes over the answers of a step
	Epochs int `toml:"epochs" default:"1" range:"[1,1048576]"`
	// advantage estimator; "": the objective's own
	Advantage string `toml:"advantage" oneof:",group_norm,group_mean,leave_one_out,batch_norm,none"`
	// how the losses of tokens are aggregated; "": the objective's own
	Aggregate string `toml:"aggregate" oneof:",token,sequence,constant,sum"`
	// "epsilon": ratios count in [1 - clip_low, 1 + clip_high]; "absolute": in [clip_low, clip_high]; "": epsilon
	ClipBounds string `toml:"clip_bounds" oneof:",epsilon,absolute"`
	// lower bound of ratios; 0: the objective's own
	ClipLow float64 `toml:"clip_low" default:"0.0" range:"[0,1]"`
	// upper bound of ratios; 0: the objective's own
	ClipHigh float64 `toml:"clip_high" default:"0.0" range:"[0,)"`
	// dual clip: bound on the ratio where the advantage is negative; 0: none
	DualClip float64 `toml:"dual_clip" default:"0.0" range:"[0,)"`
	// with proximal: cap of the importance weight, trainer / rollout; 0: no weighting
	ImportanceCap float64 `toml:"importance_cap" default:"0.0" range:"[0,)"`
	// with proximal: tokens whose importance weight is lower are masked; 0: none
	BandLow float64 `toml:"band_low" default:"0.0" range:"[0,1]"`
	// with proximal: tokens whose importance weight is higher are masked; 0: none
	BandHigh float64 `toml:"band_high" default:"0.0" range:"[0,)"`
	// level of the importance weight; "sequence": the geometric mean over the answer; "": token
	ImportanceLevel string `toml:"importance_level" oneof:",token,sequence"`
	// of gspo: to each row alone, or through the mean over the answer; "": token
	GSPOGradient string `toml:"gspo_gradient" oneof:",token,mean"`
	// of dro: weight of the quadratic; 0: the objective's own
	DROBeta float64 `toml:"dro_beta" default:"0.0" range:"[0,)"`
	// of dro: rows with the quadratic, all or those whose advantage is not 0; "": all
	DROQuadratic string `toml:"dro_quadratic" oneof:",all,advantage"`
	// weight of the KL to the model that the stage started from
	KLCoef float64 `toml:"kl_coef" default:"0.0" range:"[0,)"`
	// with kl_coef: estimator of that KL; "": k3
	KLEstimator string `toml:"kl_estimator" oneof:",k1,k2,k3"`
	// ratios against the trainer's log-probabilities of the old policy, which take one more forward, not the rollout's
	Proximal bool `toml:"proximal" default:"false"`
	// sample on until every prompt of a step has right and wrong answers (DAPO)
	Dynamic bool `toml:"dynamic" default:"false"`
	// length before rollout.max_tokens over which the reward falls by 1 (DAPO); 0: off
	OverlongRows int `toml:"overlong_rows" default:"0" range:"[0,16777216]"`
	// sampling temperature; log-probabilities, KL and entropy, the reference's too, are those of softmax(logits /
	// temperature)
	Temperature float64 `toml:"temperature" default:"1.0" range:"[0.01,100]"`
	// weight updates that an answer may span; above 0 generation continues while the weights change
	Staleness int `toml:"staleness" default:"0" range:"[0,1024]"`
	// packs of answers are computed while others are sampled, in the order of prompts, by the same weights; changes no
	// bit
	Stream bool `toml:"stream" default:"false"`
	// reward function: the task's own, a comparison with the line's answer (exact, math), a program, an endpoint
	Reward string `toml:"reward" default:"'task'" oneof:"task,exact,math,command,http"`
	// with reward "command": the program and its arguments
	Command []string `toml:"command"`
	// with reward "http": the endpoint
	URL string `toml:"url"`
	// with reward "exact", the part of the text to compare: all, the last line, after marker, inside \\boxed{}
	Final string `toml:"final" default:"'text'" oneof:"text,line,after,boxed"`
	// with final "after": such as "####"
	Marker string `toml:"marker"`
	// with reward "http": how often a failed request is sent again
	Retries int `toml:"retries" default:"5" range:"[0,100]"`
	// with rewards "command" and "http": concurrent calls, each with an equal part of a step's answers
	Parallel int `toml:"parallel" default:"1" range:"[1,1024]"`
	// seconds that the program or the endpoint may take for a step's answers
	Timeout float64 `toml:"timeout" default:"60.0" range:"(0,)"`
	// answers of a step whose KL is also computed over the full vocabulary
	ExactKL int `toml:"exact_kl" default:"1" range:"[0,1000000000]"`
}

// Run is the length of the run, its batch, and what it leaves behind.
type Run struct {
	// name in logs and reports; "": the shape's file name
	Name string `toml:"name"`
	// folder of the run; "": the next free one of runs/NAME, runs/NAME-2, ...
	Out string `toml:"out"`
	// optimizer steps; 0: see epochs
	Steps int `toml:"steps" default:"0" range:"[0,1000000000]"`
	// instead of steps: passes over the data
	Epochs int `toml:"epochs" default:"0" range:"[0,1048576]"`
	// packs of an optimizer step: the global batch
	Packs int `toml:"packs" default:"8" range:"[1,1048576]"`
	// packs computed at a time; never changes a bit
	MicroBatch int `toml:"micro_batch" default:"1" range:"[1,1048576]"`
	// seed of the order of samples
	Seed int `toml:"seed" default:"1" range:"[0,)"`
	// activations that the backward pass recomputes to save memory; "auto": what memory has no room for, by block and
	// part; "full" or true: every block; "halves": attention or a recurrence, and what follows it, each by itself: one
	// of them is held at a time, and twice as many inputs; "none" or false: nothing; never changes a bit
	Recompute string `toml:"recompute" default:"'auto'" oneof:"auto,full,halves,none" bool:"none,full"`
	// steps between evaluations; 0: only at the end
	EvalEvery int `toml:"eval_every" default:"0" range:"[0,1000000000]"`
	// steps between checkpoints; 0: only at the end
	SaveEvery int `toml:"save_every" default:"100" range:"[0,1000000000]"`
	// checkpoints to keep
	Keep int `toml:"keep" default:"2" range:"[1,1000000000]"`
	// steps between records of the metrics
	LogEvery int `toml:"log_every" default:"1" range:"[1,1000000000]"`
	// positions of the zero-KLD proof at the end; 0: no proof
	VerifyTokens int `toml:"verify_tokens" default:"2048" range:"[0,1000000000]"`
}

// Rollout sizes the engine and says how it samples.
type Rollout struct {
	Slots    int `toml:"slots" default:"32" range:"[1,65536]"`        // sequences decoded at a time by a rank
	PageRows int `toml:"page_rows" default:"64" range:"[1,16777216]"` // tokens of a cache page
	Pages    int `toml:"pages" default:"0" range:"[0,16777216]"`      // cache pages; 0: what the slots need
	// prompt tokens read at a time: more are read faster, in more memory, and answers wait for them longer
	PrefillRows int `toml:"prefill_rows" default:"8192" range:"[1,16777216]"`
	MaxTokens   int `toml:"max_tokens" default:"256" range:"[1,16777216]"` // new tokens of an answer
	// of evaluation, training has rl.temperature; 0: greedy
	Temperature float64 `toml:"temperature" default:"0.0" range:"[0,1e6]"`
	// of evaluation: probability mass to sample from; 1: all
	TopP float64 `toml:"top_p" default:"1.0" range:"(0,1]"`
	// of evaluation: tokens to sample from; 0: all
	TopK int `toml:"top_k" default:"0" range:"[0,1000000000]"`
	Seed int `toml:"seed" default:"1" range:"[0,)"` // seed of sampling

	// allow numerics other than the trainer's, to measure their effect
	AllowMismatch bool `toml:"allow_mismatch" default:"false"`
	// roundings of other serving stacks that differ from their trainers'
	Numerics Numerics `toml:"numerics"`
}

// Numerics are departures of the rollout engine from the definition. Its default is none.
type Numerics struct {
	// "bf16": outputs of experts are rounded before and after each is added
	Combine string `toml:"combine" oneof:",bf16"`
	Router  string `toml:"router" oneof:",bf16"` // "bf16": logits of the router are rounded
	// "bf16": normalised values are rounded before a norm's weight multiplies them
	Norm string `toml:"norm" oneof:",bf16"`
	// keys of one softmax of attention, a multiple of 64; 0: the definition's
	KeySplit int `toml:"key_split" default:"0" range:"[0,4096]"`
	// "fp8": E4M3 in blocks of 128 x 128; "int4": 4 bits in groups of 32
	Weights string `toml:"weights" oneof:",fp8,int4"`
}

// Definition chooses the arithmetic of dot products, of 2^x, of latent attention, of gradients and of what projections
// in codes and attention read.
type Definition struct {
	// "fma": fp32 chains; "tc16": bf16 tensor cores, bit for bit; "auto": tc16 on cuda or with acts = "fp8x128", else
	// fma
	Dot string `toml:"dot" default:"'auto'" oneof:"auto,fma,tc16"`
	// "poly": a polynomial; "ex2h": the GPU's instruction, bit for bit; "auto": ex2h on cuda, else poly
	Exp2 string `toml:"exp2" default:"'auto'" oneof:"auto,poly,ex2h"`
	// latent attention; "expanded": keys and values of each head; "absorbed": weight absorption, attention over the
	// latent cache shared by all heads; "auto": absorbed for models with an indexer (the only form on cuda)
	Latent string `toml:"latent" default:"'auto'" oneof:"auto,expanded,absorbed"`
	// "mxfp8": inputs of projections in codes are rounded to E4M3, in blocks of 32 columns; "fp8x128": products of
	// weights in FP8 are of codes of both, as DeepGEMM's, with blocks of 128 columns of inputs (takes dot tc16);
	// "auto": as the config.json of model.path says, or the adapter of lora.path
	Acts string `toml:"acts" default:"'auto'" oneof:"auto,none,mxfp8,fp8x128"`
	// "mxfp8": gradients of outputs of such projections are rounded too, in blocks of 32 columns for those of inputs,
	// and with the inputs in blocks of 32 rows for those of weights
	Grads string `toml:"grads" oneof:",mxfp8"`
	// "mxfp8": attention reads keys and values rounded to E4M3, in blocks of 32 columns of each head, and the latent
	// where it is absorbed; "auto": as the config.json of model.path says, or the adapter of lora.path
	Cache string `toml:"cache" default:"'auto'" oneof:"auto,none,mxfp8"`
	// rows of a pack whose gradients are one sum, a multiple of 64; sums of a step are added in the order of packs
	Segment int `toml:"segment" default:"8192" range:"[64,16777216]"`
}

// Device is the machine.
type Device struct {
	Kind    string `toml:"kind" default:"'cpu'" oneof:"cpu,cuda"`                  // device
	Threads int    `toml:"threads" default:"0" range:"[0,4096]"`                   // threads; 0: one for each core
	ISA     string `toml:"isa" default:"'auto'" oneof:"auto,avx512,avx2,portable"` // instruction set
}

// Parallel divides a step over ranks, one for each device.
type Parallel struct {
	// data parallel: ranks that compute the packs of a step; gradients and the optimizer's state are cut over them
	// (ZeRO-2); each takes a GPU, on the CPU they share the threads; 0: all GPUs of the machine
	Ranks int `toml:"ranks" default:"1" range:"[0,64]"`
	// what each rank has of the weights: all, or whole matrices of every block, of which the rest is copied while the
	// block before computes (FSDP)
	Weights string `toml:"weights" default:"'replicated'" oneof:"replicated,sharded"`
	// expert parallel: ranks over which the experts of one copy of the model are divided, 1 or all (0); tokens go to
	// them (all-gather) and their outputs back (all-to-all)
	Experts int `toml:"experts" default:"1" range:"[0,64]"`
	// context parallel: ranks over which the rows of a pack are divided, in whole segments of definition.segment rows;
	// it divides ranks (0: all of them). In attention and recurrences a rank computes some heads of all rows
	// (all-to-all, as DeepSpeed-Ulysses), and the ranks divide the key heads too; in absorbed latent and sparse
	// attention it computes its own rows over gathered keys
	Context int `toml:"context" default:"1" range:"[0,64]"`
	// pipeline: parts that the blocks of the model are cut into, 1, or one for each rank (0); micro-batches of a step
	// pass the ranks one after the other. What is not a step has all blocks on each rank, and copies those of others
	Stages int `toml:"stages" default:"1" range:"[0,64]"`
	// two-batch overlap: the packs of a micro-batch are divided over so many lanes, and while one exchanges tokens of
	// experts the other computes; 1: each exchange is waited for
	Interleave int `toml:"interleave" default:"1" range:"[1,2]"`
	// where the machine has fewer GPUs than ranks, rank i takes GPU i modulo their number: to try a mesh out, not for
	// speed
	Share bool `toml:"share" default:"false"`
}

// Pipeline says in which order a rank of a pipeline computes.
type Pipeline struct {
	// "1f1b": one forward, one backward, so that a rank keeps no more micro-batches than there are stages from it on;
	// "zero-bubble": gradients of weights are put off to where a rank would wait (ZB-H1), each rank keeps as many
	// micro-batches as there are stages, and copies of what those gradients read; "interleaved": each rank has several
	// chunks of blocks, which micro-batches pass one after the other: it waits less, and keeps more micro-batches;
	// "stream": micro-batches pass as they come, a rank takes the oldest backward that it may, else the next forward;
	// of those that are there at once it makes 1F1B
	Schedule string `toml:"schedule" default:"'1f1b'" oneof:"1f1b,zero-bubble,interleaved,stream"`
	// micro-batches that a rank is ahead of its first backward for each rank below it, by "1f1b" and "zero-bubble":
	// with 2 (ZB-H2) or more, ranks wait less where stages or tasks differ in time, and keep more micro-batches
	Ahead int `toml:"ahead" default:"1" range:"[1,64]"`
	// of blocks, that each rank has by the interleaved schedule
	Chunks int `toml:"chunks" default:"2" range:"[2,64]"`
	// blocks of each stage, in order, as [7, 5], interleaved of first a chunk of each rank; a half is the attention of
	// a block, or what follows it: [6.5, 5.5]. Empty: so that a step ends as soon as can be, by the plan's times of
	// blocks, embedding and head
	Blocks []float64 `toml:"blocks" range:"[0.5,65536]"`

	Planned []float64 `toml:"-"` // blocks of each stage by the plan, where Blocks does not say
}

// Offload keeps what a device does not hold in pinned memory of the host.
type Offload struct {
	// masters and moments of AdamW; they pass through a ring on the device, which updates them
	Optimizer bool `toml:"optimizer" default:"false"`
	// GiB of the ring on each device, or one matrix where that is larger; the larger, the more is there before the
	// gradient's norm is known; 1 is enough with offload.breadth
	Ring float64 `toml:"ring" default:"10.0" range:"(0,1048576]"`
	// the host's cores update the states of the last blocks, which the next forward needs last, while others pass
	// through the device: so many GiB of each rank's, as "20", or "auto": as many as both end with together, by the
	// rate of the cores, which is measured, and that of the links, of the card's machine file or else of an H200
	HostUpdate string `toml:"host_update" default:"'0'"`
	// breadth-first: so many micro-batches of a rank pass each block before the next block does, forward and backward,
	// so that states come from the host behind the forward of all of them: those of the next block are updated between
	// the passes of a block. Inputs of their blocks are kept. Take as many as "lockstep plan" hides optimizer state
	// with. Where weights come from the host all do
	Breadth int `toml:"breadth" default:"1" range:"[1,65536]"`
	// frozen weights: "all" stay on a card, "auto": of blocks what fits, or so many GiB of blocks, as "20"; the others
	// are copied from the host, two blocks at a time, once a pass over all micro-batches of a rank's step
	Weights string `toml:"weights" default:"'all'"`
	// inputs of the blocks that the backward pass recomputes; they go out behind the forward and come back ahead of the
	// backward
	Activations bool `toml:"activations" default:"false"`
}

// Stay is how many bytes of blocks' weights stay on a card, where others may leave; by "auto" none, until a plan has
// said what fits.
func (o Offload) Stay() (bytes int, leave bool, err error) {
	switch o.Weights {
	case "all":
		return 0, false, nil
	case "auto":
		return 0, true, nil
	}
	gib, err := strconv.ParseFloat(o.Weights, 64)
	if err == nil && !(gib >= 0 && gib <= 1<<20) {
		err = errors.New("out of range")
	}
	return int(gib * (1 << 30)), true, err
}

// OnHost is how many bytes of states the host's cores update on each rank; by "auto" none, until a plan has chosen.
func (o Offload) OnHost() (bytes int, err error) {
	if o.HostUpdate == "auto" {
		return 0, nil
	}
	gib, err := strconv.ParseFloat(o.HostUpdate, 64)
	if err == nil && !(gib >= 0 && gib <= 1<<20) {
		err = errors.New("out of range")
	}
	return int(gib * (1 << 30)), err
}

// ResolveAuto replaces "auto" by what the device's kind and the definition choose.
func (s *Shape) ResolveAuto() {
	auto := func(value *string, first bool, one, other string) {
		if *value == "auto" {
			*value = other
			if first {
				*value = one
			}
		}
	}
	cuda := s.Device.Kind == "cuda"
	acts := s.Definition.Acts
	if acts == "auto" {
		acts = folderActs(s.Model.Path, s.LoRA.Path)
	}
	auto(&s.Definition.Dot, cuda || acts == "fp8x128", "tc16", "fma")
	auto(&s.Definition.Exp2, cuda, "ex2h", "poly")
	auto(&s.Model.DType, s.Definition.Dot == "tc16", "bf16", "fp32")
}

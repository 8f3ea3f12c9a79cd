package configs

// Shape is everything that decides a run. The comment of a field is its documentation in printed shapes too (schema.go embeds this
// file); the tag default is its TOML value, range the interval of a number, oneof the values of a string and bool those that false and true stand for.
type Shape struct {
	Model      Model      `toml:"model"`      // the network to train: a checkpoint, or a new one
	Data       Data       `toml:"data"`       // what it learns from
	LoRA       LoRA       `toml:"lora"`       // adapters instead of full fine-tuning
	Indexer    Indexer    `toml:"indexer"`    // what chooses the keys of sparse attention: it learns to score them as attention weighs them
	Optim      Optim      `toml:"optim"`      // AdamW and its learning rate
	Run        Run        `toml:"run"`        // length, batch and outputs
	DPO        DPO        `toml:"dpo"`        // with data.preferences: direct preference optimisation
	WarmStart  WarmStart  `toml:"warm_start"` // supervised steps on a task's worked solutions before reinforcement learning
	RL         RL         `toml:"rl"`         // reinforcement learning: sample answers, judge them, learn from the difference
	Rollout    Rollout    `toml:"rollout"`    // the engine that generates answers
	Definition Definition `toml:"definition"` // the arithmetic, shared by training and serving
	Device     Device     `toml:"device"`     // where it runs; a definition gives the same bits on each
}

// Model is either a checkpoint (path) or a new network (family and config, or a published one's by its name in the catalogue).
type Model struct {
	Path      string         `toml:"path"`                                          // checkpoint folder in the Hugging Face layout
	Family    string         `toml:"family"`                                        // instead of path: model_type of a new network, such as "qwen3_moe"
	Catalogue string         `toml:"catalogue"`                                     // instead of family: a model that "lockstep shapes" lists; turns into its family and config
	Tokenizer string         `toml:"tokenizer"`                                     // of a new network: tokenizer.json, a folder that has one, "bytes" or "countdown"
	DType     string         `toml:"dtype" default:"'auto'" oneof:"auto,fp32,bf16"` // storage of weights and activations; "auto": bf16 for tc16, else fp32
	InitSeed  int            `toml:"init_seed" default:"1" range:"[0,)"`            // seed of a new network's weights
	Config    map[string]any `toml:"config"`                                        // of a new network: fields of its config.json; under catalogue what differs, such as num_hidden_layers = 2
}

// Data is a built-in task, or JSONL files of samples or of preferences.
type Data struct {
	Task        string    `toml:"task" oneof:",countdown"`                            // built-in task: "countdown"
	Path        string    `toml:"path"`                                               // instead of task: JSONL file to train on
	Preferences string    `toml:"preferences"`                                        // instead of both: JSONL file of pairs of answers, a chosen and a rejected one; see dpo
	EvalPath    string    `toml:"eval_path"`                                          // JSONL file held out for evaluation
	PackRows    int       `toml:"pack_rows" default:"2048" range:"[2,16777216]"`      // tokens of a pack, samples laid end to end
	Long        string    `toml:"long" default:"'error'" oneof:"error,drop,truncate"` // what to do with a sample longer than a pack
	NoEnd       bool      `toml:"no_end"`                                             // learn answers whose end is not known, which never stop
	EvalSamples int       `toml:"eval_samples" default:"200" range:"[0,)"`            // held-out samples of an evaluation
	Countdown   Countdown `toml:"countdown"`                                          // with task "countdown": its instances
}

// Countdown is the task of reaching a target from numbers by arithmetic.
type Countdown struct {
	Numbers   int    `toml:"numbers" default:"3" range:"[2,8]"`            // numbers of an instance
	MinNumber int    `toml:"min_number" default:"1" range:"[1,1000]"`      // smallest number
	MaxNumber int    `toml:"max_number" default:"10" range:"[1,1000]"`     // largest number
	MaxTarget int    `toml:"max_target" default:"100" range:"[1,1000000]"` // largest target
	Operators string `toml:"operators" default:"'+-*'"`                    // allowed operators, out of + - * /
	Style     string `toml:"style"`                                        // how a solution is written; "": the task's default
	Train     int    `toml:"train" default:"10000" range:"[1,10000000]"`   // instances to train on
	Test      int    `toml:"test" default:"200" range:"[1,10000000]"`      // held-out instances
	Seed      int    `toml:"seed" default:"1" range:"[0,)"`                // seed of the instances
}

// LoRA is the shape of the adapters, in PEFT's terms.
type LoRA struct {
	Rank             int      `toml:"rank" default:"0" range:"[0,4096]"`                          // rank of the adapters; 0: full fine-tuning
	Alpha            float64  `toml:"alpha" default:"32.0" range:"(0,)"`                          // adapters are scaled by alpha / rank
	Targets          []string `toml:"targets" default:"['q_proj', 'k_proj', 'v_proj', 'o_proj']"` // projections that get adapters; gate_proj, up_proj and down_proj reach experts too; "all-linear": all but the head
	TargetParameters []string `toml:"target_parameters"`                                          // expert weights that get adapters, such as "mlp.experts.gate_up_proj"
	Seed             int      `toml:"seed" default:"1" range:"[0,)"`                              // seed of the adapters' weights
}

// Indexer says what indexers of sparse attention learn (DeepSeek-V3.2-Exp report, section 2.1). Their loss reaches nothing else, and AdamW is blind to the scale of a loss:
// how fast they learn beside the model is a rate, not a coefficient.
type Indexer struct {
	Stage    string  `toml:"stage" oneof:",sparse,dense"`          // "sparse": over the keys they chose, beside the model; "dense": over all keys, which attention reads, and they alone learn; "": frozen
	LRFactor float64 `toml:"lr_factor" default:"1.0" range:"(0,)"` // their learning rate, as a multiple of the model's
}

// Optim is AdamW: decoupled weight decay, bias correction, clipping by the global norm.
type Optim struct {
	LR          float64 `toml:"lr" default:"1e-4" range:"(0,)"`                             // peak learning rate
	Beta1       float64 `toml:"beta1" default:"0.9" range:"[0,1)"`                          // decay of the gradient's mean
	Beta2       float64 `toml:"beta2" default:"0.95" range:"[0,1)"`                         // decay of the gradient's mean square
	Eps         float64 `toml:"eps" default:"1e-8" range:"(0,)"`                            // added to the root of the mean square
	WeightDecay float64 `toml:"weight_decay" default:"0.0" range:"[0,)"`                    // fraction of a weight lost per unit of learning rate
	Schedule    string  `toml:"schedule" default:"'cosine'" oneof:"constant,linear,cosine"` // course of the learning rate after warm-up
	WarmupSteps int     `toml:"warmup_steps" default:"0" range:"[0,)"`                      // steps of linear warm-up
	WarmupRatio float64 `toml:"warmup_ratio" default:"0.0" range:"[0,1]"`                   // instead of warmup_steps: share of all steps, rounded up
	FinalLR     float64 `toml:"final_lr" default:"0.1" range:"[0,1]"`                       // learning rate of the last step, as a fraction of lr
	Clip        float64 `toml:"clip" default:"1.0" range:"[0,)"`                            // largest norm of the gradient; 0: off
}

// DPO is the loss of pairs by what the log-probability of each answer gained over that under the weights that the run starts from; the margin is chosen - rejected.
type DPO struct {
	Kind           string  `toml:"kind" default:"'sigmoid'" oneof:"sigmoid,ipo"`  // "sigmoid": -ln sigmoid(beta * margin); "ipo": (margin - 1 / (2 * beta))^2
	Beta           float64 `toml:"beta" default:"0.1" range:"(0,)"`               // how closely the model is held to where it starts: more is closer
	LabelSmoothing float64 `toml:"label_smoothing" default:"0.0" range:"[0,0.5)"` // of sigmoid: share of pairs that are taken to be the wrong way round
}

// WarmStart is a supervised stage with its own AdamW state, at the rate of a cosine from lr down to a tenth.
type WarmStart struct {
	Steps       int     `toml:"steps" default:"0" range:"[0,)"`           // optimizer steps before those of run.steps; 0: none
	LR          float64 `toml:"lr" default:"1e-3" range:"(0,)"`           // peak learning rate
	WarmupSteps int     `toml:"warmup_steps" default:"0" range:"[0,)"`    // steps of linear warm-up
	WarmupRatio float64 `toml:"warmup_ratio" default:"0.0" range:"[0,1]"` // instead of warmup_steps: share of steps, rounded up
	Packs       int     `toml:"packs" default:"8" range:"[1,)"`           // packs of a step
}

// RL says how answers become gradients. A step of the run samples prompts * group answers, and takes minibatches * epochs optimizer steps on them.
type RL struct {
	Objective       string   `toml:"objective" oneof:",policy_gradient,ppo,grpo,dr_grpo,dapo,gspo,cispo,dro,custom"` // loss; "custom": that of a program; "": the run is supervised
	Loss            []string `toml:"loss"`                                                                           // of custom: the program and its arguments; it reads {"question", "sample", "reward", "advantage", "weight", "ids", "logprobs", "rollout"} for each answer and writes {"gradients": [...], "loss": x}
	Prompts         int      `toml:"prompts" default:"16" range:"[1,)"`                                              // prompts of a step
	Group           int      `toml:"group" default:"8" range:"[1,)"`                                                 // answers to each prompt
	Minibatches     int      `toml:"minibatches" default:"1" range:"[1,)"`                                           // optimizer steps that share the answers of a step
	Epochs          int      `toml:"epochs" default:"1" range:"[1,)"`                                                // passes over the answers of a step
	Advantage       string   `toml:"advantage" oneof:",group_norm,group_mean,leave_one_out,batch_norm,none"`         // how rewards are compared; "": the objective's own
	Aggregate       string   `toml:"aggregate" oneof:",token,sequence,constant,sum"`                                 // weight of a token; "": the objective's own
	ClipBounds      string   `toml:"clip_bounds" oneof:",epsilon,absolute"`                                          // "epsilon": ratios count in [1 - clip_low, 1 + clip_high]; "absolute": in [clip_low, clip_high]; "": epsilon
	ClipLow         float64  `toml:"clip_low" default:"0.0" range:"[0,1]"`                                           // lower bound of ratios; 0: the objective's own
	ClipHigh        float64  `toml:"clip_high" default:"0.0" range:"[0,)"`                                           // upper bound of ratios; 0: the objective's own
	DualClip        float64  `toml:"dual_clip" default:"0.0" range:"[0,)"`                                           // bound on the ratio of bad answers; 0: none
	ImportanceCap   float64  `toml:"importance_cap" default:"0.0" range:"[0,)"`                                      // with proximal: largest weight for rollouts that differ; 0: no weight
	BandLow         float64  `toml:"band_low" default:"0.0" range:"[0,1]"`                                           // with proximal: rows whose weight is lower are left out; 0: none
	BandHigh        float64  `toml:"band_high" default:"0.0" range:"[0,)"`                                           // with proximal: rows whose weight is higher are left out; 0: none
	ImportanceLevel string   `toml:"importance_level" oneof:",token,sequence"`                                       // whose weight that is; "sequence": the geometric mean over the answer; "": token
	GSPOGradient    string   `toml:"gspo_gradient" oneof:",token,mean"`                                              // of gspo: to each row alone, or through the mean over the answer; "": token
	DROBeta         float64  `toml:"dro_beta" default:"0.0" range:"[0,)"`                                            // of dro: weight of the quadratic; 0: the objective's own
	DROQuadratic    string   `toml:"dro_quadratic" oneof:",all,advantage"`                                           // of dro: rows with the quadratic, all or those whose advantage is not 0; "": all
	KLCoef          float64  `toml:"kl_coef" default:"0.0" range:"[0,)"`                                             // weight of the KL to the model that the stage started from
	KLEstimator     string   `toml:"kl_estimator" oneof:",k1,k2,k3"`                                                 // with kl_coef: estimator of that KL; "": k3
	Proximal        bool     `toml:"proximal" default:"false"`                                                       // ratios to the trainer's own log-probabilities, at one more forward, not to the rollout's
	Dynamic         bool     `toml:"dynamic" default:"false"`                                                        // sample on until every prompt of a step has right and wrong answers (DAPO)
	OverlongRows    int      `toml:"overlong_rows" default:"0" range:"[0,)"`                                         // length before rollout.max_tokens over which the reward falls by 1 (DAPO); 0: off
	Temperature     float64  `toml:"temperature" default:"1.0" range:"[0.01,100]"`                                   // of answers, and of all log-probabilities, KL and entropy, the reference's too: they are of softmax(logits / temperature)
	Staleness       int      `toml:"staleness" default:"0" range:"[0,1024]"`                                         // updates that an answer may span: above 0 answers go on while the weights change
	Reward          string   `toml:"reward" default:"'task'" oneof:"task,exact,math,command,http"`                   // who judges: the task, the answer of the line, a program, an endpoint
	Command         []string `toml:"command"`                                                                        // with reward "command": the program and its arguments
	URL             string   `toml:"url"`                                                                            // with reward "http": the endpoint
	Final           string   `toml:"final" default:"'text'" oneof:"text,line,after,boxed"`                           // with reward "exact", what is compared: the text, its last line, what follows marker, what is in \\boxed{}
	Marker          string   `toml:"marker"`                                                                         // with final "after": such as "####"
	Retries         int      `toml:"retries" default:"5" range:"[0,100]"`                                            // with reward "http": how often a failed request is sent again
	Parallel        int      `toml:"parallel" default:"1" range:"[1,1024]"`                                          // with rewards "command" and "http": parts that a step's answers are cut into, judged at a time
	Timeout         float64  `toml:"timeout" default:"60.0" range:"(0,)"`                                            // seconds that the program or the endpoint may take for a step's answers
	ExactKL         int      `toml:"exact_kl" default:"1" range:"[0,)"`                                              // answers of a step whose KL is also summed over the whole vocabulary
}

// Run is the length of the run, its batch, and what it leaves behind.
type Run struct {
	Name         string `toml:"name"`                                                               // name in logs and reports; "": the shape's file name
	Out          string `toml:"out"`                                                                // folder of the run; "": the next free one of runs/NAME, runs/NAME-2, ...
	Steps        int    `toml:"steps" default:"0" range:"[0,)"`                                     // optimizer steps; 0: see epochs
	Epochs       int    `toml:"epochs" default:"0" range:"[0,)"`                                    // instead of steps: passes over the data
	Packs        int    `toml:"packs" default:"8" range:"[1,)"`                                     // packs of an optimizer step: the global batch
	MicroBatch   int    `toml:"micro_batch" default:"1" range:"[1,)"`                               // packs computed at a time; never changes a bit
	Seed         int    `toml:"seed" default:"1" range:"[0,)"`                                      // seed of the order of samples
	Recompute    string `toml:"recompute" default:"'auto'" oneof:"auto,full,none" bool:"none,full"` // what the backward pass computes again to save memory; "auto": what memory has no room for, by block and part; "full" or true: every block; "none" or false: nothing; never changes a bit
	EvalEvery    int    `toml:"eval_every" default:"0" range:"[0,)"`                                // steps between evaluations; 0: only at the end
	SaveEvery    int    `toml:"save_every" default:"100" range:"[0,)"`                              // steps between checkpoints; 0: only at the end
	Keep         int    `toml:"keep" default:"2" range:"[1,)"`                                      // checkpoints to keep
	LogEvery     int    `toml:"log_every" default:"1" range:"[1,)"`                                 // steps between records of the metrics
	VerifyTokens int    `toml:"verify_tokens" default:"2048" range:"[0,)"`                          // positions of the zero-KLD proof at the end; 0: no proof
}

// Rollout sizes the engine and says how it samples.
type Rollout struct {
	Slots       int     `toml:"slots" default:"32" range:"[1,)"`           // sequences decoded at a time
	PageRows    int     `toml:"page_rows" default:"64" range:"[1,)"`       // tokens of a cache page
	Pages       int     `toml:"pages" default:"0" range:"[0,)"`            // cache pages; 0: as many as the slots need
	PrefillRows int     `toml:"prefill_rows" default:"2048" range:"[1,)"`  // prompt tokens read at a time
	MaxTokens   int     `toml:"max_tokens" default:"256" range:"[1,)"`     // new tokens of an answer
	Temperature float64 `toml:"temperature" default:"0.0" range:"[0,1e6]"` // of evaluation, training has rl.temperature; 0: greedy
	TopP        float64 `toml:"top_p" default:"1.0" range:"(0,1]"`         // of evaluation: probability mass to sample from; 1: all
	TopK        int     `toml:"top_k" default:"0" range:"[0,)"`            // of evaluation: tokens to sample from; 0: all
	Seed        int     `toml:"seed" default:"1" range:"[0,)"`             // seed of sampling

	AllowMismatch bool     `toml:"allow_mismatch" default:"false"` // let numerics differ from the trainer's, to see what it does
	Numerics      Numerics `toml:"numerics"`                       // what other serving stacks compute differently from their trainers
}

// Numerics are departures of the rollout engine from the definition. Its default is none.
type Numerics struct {
	Combine  string `toml:"combine" oneof:",bf16"`                  // "bf16": outputs of experts are rounded before and after each is added
	Router   string `toml:"router" oneof:",bf16"`                   // "bf16": logits of the router are rounded
	Norm     string `toml:"norm" oneof:",bf16"`                     // "bf16": normalised values are rounded before a norm's weight multiplies them
	KeySplit int    `toml:"key_split" default:"0" range:"[0,4096]"` // keys of one softmax of attention, a multiple of 64; 0: the definition's
	Weights  string `toml:"weights" oneof:",fp8,int4"`              // "fp8": E4M3 in blocks of 128 x 128; "int4": 4 bits in groups of 32
}

// Definition chooses the arithmetic of dot products, of 2^x and of latent attention.
type Definition struct {
	Dot    string `toml:"dot" default:"'auto'" oneof:"auto,fma,tc16"`             // "fma": fp32 chains; "tc16": bf16 tensor cores, bit for bit; "auto": tc16 on cuda, else fma
	Exp2   string `toml:"exp2" default:"'auto'" oneof:"auto,poly,ex2h"`           // "poly": a polynomial; "ex2h": the GPU's instruction, bit for bit; "auto": ex2h on cuda, else poly
	Latent string `toml:"latent" default:"'auto'" oneof:"auto,expanded,absorbed"` // latent attention; "expanded": keys and values of each head; "absorbed": queries brought to the latent, a cache of one row for all heads; "auto": absorbed where an indexer chooses keys, which cuda has no other form for
}

// Device is the machine.
type Device struct {
	Kind    string `toml:"kind" default:"'cpu'" oneof:"cpu,cuda"`                  // device
	Threads int    `toml:"threads" default:"0" range:"[0,4096]"`                   // threads; 0: one for each core
	ISA     string `toml:"isa" default:"'auto'" oneof:"auto,avx512,avx2,portable"` // instruction set
}

// Settle replaces "auto" by what the device's kind and the definition choose.
func (s *Shape) Settle() {
	auto := func(value *string, first bool, one, other string) {
		if *value == "auto" {
			*value = other
			if first {
				*value = one
			}
		}
	}
	cuda := s.Device.Kind == "cuda"
	auto(&s.Definition.Dot, cuda, "tc16", "fma")
	auto(&s.Definition.Exp2, cuda, "ex2h", "poly")
	auto(&s.Model.DType, s.Definition.Dot == "tc16", "bf16", "fp32")
}

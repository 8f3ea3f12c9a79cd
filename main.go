// Command lockstep fine-tunes mixture-of-experts language models on one machine and serves them with the same forward,
// bit for bit. This file is the command line: it parses, calls a package and prints.
package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"lockstep/configs"
	"lockstep/data"
	"lockstep/data/atomicfile"
	"lockstep/data/tokenizer"
	"lockstep/kernels"
	"lockstep/kernels/devices"
	"lockstep/model"
	"lockstep/parallel"
	"lockstep/quant"
	"lockstep/serve"
	"lockstep/serve/api"
	"lockstep/train"
	"lockstep/train/bench"
	"lockstep/train/plan"
	"lockstep/train/report"
	"lockstep/train/setup"
)

func main() {
	signalled, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM,
		syscall.SIGHUP)
	ctx, cancel := context.WithCancel(context.Background())
	context.AfterFunc(signalled, func() {
		stop() // before anybody is told: a second signal ends the program at once
		cancel()
	})
	if err := root().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "lockstep: "+message(err))
		os.Exit(1)
	}
}

// message is what the program prints for an error.
func message(err error) string {
	switch {
	case errors.Is(err, train.ErrInterrupted):
		return "interrupted; the state is saved: continue with --resume"
	case errors.Is(err, context.Canceled):
		return "interrupted"
	}
	return data.ShownError(err)
}

func root() *cobra.Command {
	c := &cobra.Command{
		Use:           "lockstep",
		Short:         "Fine-tune MoE language models and serve them with the same forward, bit for bit",
		Version:       version(debug.ReadBuildInfo()),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	c.SetVersionTemplate("{{.Version}}\n")
	c.SetFlagErrorFunc(badFlag)
	group(c, trainCommand(), mergeCommand(), exportCommand(), scoreCommand(), generateCommand(), serveCommand(),
		tokenizeCommand(), verifyCommand(), parityCommand(), reportCommand(), inspectCommand(), shapesCommand(),
		planCommand(), benchCommand(), devicesCommand())
	return c
}

// version lists the module's version, its revision, the version of Go, and the digest of the default definition: two
// builds with the same digest compute the same bits.
func version(info *debug.BuildInfo, ok bool) string {
	name, parts := "lockstep, unknown build", []string{"definition " + kernels.Default().Digest()}
	if !ok {
		return strings.Join(append([]string{name}, parts...), ", ")
	}
	name = "lockstep " + info.Main.Version
	set := map[string]string{}
	for _, s := range info.Settings {
		set[s.Key] = s.Value
	}
	if revision := set["vcs.revision"]; revision != "" {
		if set["vcs.modified"] == "true" {
			revision += " with changes"
		}
		name += ", revision " + revision
	}
	parts = append(parts, info.GoVersion+" "+set["GOOS"]+"/"+set["GOARCH"])
	if tags := set["-tags"]; tags != "" {
		parts = append(parts, "tags "+tags)
	}
	return strings.Join(append([]string{name}, parts...), ", ")
}

// group makes c a command that only has subcommands.
func group(c *cobra.Command, below ...*cobra.Command) {
	c.Args = unknownCommand
	c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	c.SuggestionsMinimumDistance = 3
	c.AddCommand(below...)
}

// unknownCommand suggests the nearest command.
func unknownCommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := "see " + c.CommandPath() + " --help"
	if s := c.SuggestionsFor(args[0]); len(s) > 0 {
		hint = "did you mean " + strings.Join(s, " or ") + "?"
	}
	return fmt.Errorf("unknown command %q: %s", args[0], hint)
}

// badFlag suggests the nearest flag for an unknown one.
func badFlag(c *cobra.Command, err error) error {
	name, unknown := strings.CutPrefix(err.Error(), "unknown flag: --")
	if !unknown {
		return fmt.Errorf("%w: see %s --help", err, c.CommandPath())
	}
	var known []string
	c.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
	if near := configs.Nearest(name, known); near != "" {
		return fmt.Errorf("unknown flag --%s: did you mean --%s?", name, near)
	}
	return fmt.Errorf("unknown flag --%s: see %s --help", name, c.CommandPath())
}

// none rejects arguments.
func none(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("takes only flags, got %q: see %s --help", args[0], c.CommandPath())
	}
	return nil
}

// atMostOne rejects more than one argument.
func atMostOne(c *cobra.Command, args []string) error {
	if len(args) > 1 {
		return fmt.Errorf("want one argument at most, got %d: see %s --help", len(args), c.CommandPath())
	}
	return nil
}

// one requires a single argument.
func one(what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) != 1 {
			return fmt.Errorf("want one %s, got %d arguments: see %s --help", what, len(args), c.CommandPath())
		}
		return nil
	}
}

func trainCommand() *cobra.Command {
	var set []string
	var o train.Options
	var device, machine string
	var printConfig bool
	var ranks ranksFlag
	c := &cobra.Command{
		Use:   "train SHAPE.toml",
		Short: "Train the model of a shape",
		Example: "  lockstep train configs/countdown-sft.toml --set run.steps=100 --out /tmp/run\n" +
			"  lockstep train configs/dpo-lora.toml --set model.path=Qwen3-0.6B --set data.preferences=pairs.jsonl",
		Args: one("SHAPE.toml"),
		RunE: func(c *cobra.Command, args []string) error {
			if device != "" {
				set = append(set, "device.kind="+device)
			}
			s, err := configs.Load(args[0], append(set, ranks.settings()...))
			if err != nil {
				return err
			}
			if printConfig {
				_, err := os.Stdout.Write(s.TOML())
				return err
			}
			if machine != "" {
				m, err := configs.LoadMachine(machine)
				if err == nil && m.Device != s.Device.Kind {
					err = fmt.Errorf("--machine %s: its devices are %s, and the run is on %s", machine, m.Device,
						s.Device.Kind)
				}
				if err != nil {
					return err
				}
				o.Machine = &m
			}
			o.Log = os.Stderr
			context.AfterFunc(c.Context(), func() {
				fmt.Fprintln(o.Log, "finishing the step, then saving; a second signal stops at once")
			})
			return train.Run(c.Context(), s, o)
		},
	}
	f := c.Flags()
	f.StringArrayVar(&set, "set", nil, "override a key of the shape: table.key=value; may be repeated")
	f.StringVar(&o.Out, "out", "", "folder of the run (default: the shape's run.out, or the next free runs/NAME)")
	f.BoolVar(&o.Resume, "resume", false, "continue from the newest checkpoint, with the bits of an uninterrupted run")
	f.StringVar(&device, "device", "", "device to run on: cpu or cuda (default: the shape's)")
	f.StringVar(&machine, "machine", "", "name or file of the machine that this is: its plan is compared with what "+
		"the run took\nat the end (default: of GPUs the one of their name)")
	ranks.flag(c)
	f.BoolVar(&printConfig, "print-config", false, "print the resolved shape as TOML and exit")
	return c
}

// ranksFlag is the flag of how many ranks work together.
type ranksFlag string

func (n *ranksFlag) flag(c *cobra.Command) {
	c.Flags().StringVar((*string)(n), "ranks", "", "ranks that work together, each on a GPU or a share of the CPU's "+
		"threads; 0: all GPUs; never changes a bit (default: those of the shape, else 1)")
}

// settings is the given flag as an override of a shape's key.
func (n ranksFlag) settings() []string {
	if n == "" {
		return nil
	}
	return []string{"parallel.ranks=" + string(n)}
}

// target is the model, the device and the ranks of a command.
type target struct {
	dir, adapter, device, dtype, weights, coded string
	acts, cache, dot, exp2, latent, isa         string
	threads                                     int
	ranks                                       ranksFlag
	set                                         []string
	silent                                      bool   // about how weights and pages were opened
	stepFloor                                   string // of time steps
}

func (t *target) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&t.dir, "model", "", "model folder in the Hugging Face layout")
	f.StringVar(&t.adapter, "adapter", "", "PEFT adapter folder to apply to the model")
	f.StringVar(&t.stepFloor, "time-step-floor", "none", "of Nemotron-H: none, or reference, the floor of time steps "+
		"that transformers has (see model.time_step_floor of shapes)")
	f.StringVar(&t.dtype, "dtype", "",
		"storage of weights and activations: fp32 or bf16 (default fp32; bf16 with --dot tc16)")
	f.StringVar(&t.weights, "weights", "auto", "auto keeps what is in FP8, INT4 or MXFP4 in codes, open makes numbers "+
		"of it, with the same bits; int4, mxfp4, mxfp8 and fp8 put projections into that format")
	f.StringVar(&t.acts, "acts", "auto", "mxfp8 rounds the inputs of projections in codes, in blocks of 32; fp8x128 "+
		"multiplies codes by weights in FP8, in blocks of 128, as DeepGEMM does; none does neither; auto does as the "+
		"folder of the model or the adapter says")
	f.StringVar(&t.cache, "cache", "auto", "mxfp8 rounds the keys and values that attention reads, in blocks of 32 "+
		"columns of a head, or its latent; none does not; auto does as the folder says")
	f.StringArrayVar(&t.set, "set", nil, "how ranks divide the model: parallel.experts=N or "+
		"parallel.weights=sharded; of a shape any table.key=value; may be repeated")
	t.ranks.flag(c)
	t.deviceFlags(c)
}

func (t *target) deviceFlags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&t.device, "device", "cpu", "device to run on: cpu or cuda")
	f.StringVar(&t.dot, "dot", "", "arithmetic of dot products: fma or tc16 (default fma; tc16 on cuda and "+
		"with --acts fp8x128)")
	f.StringVar(&t.exp2, "exp2", "",
		"arithmetic of 2^x: poly or ex2h, the instruction of NVIDIA GPUs (default poly; ex2h on cuda)")
	f.StringVar(&t.latent, "latent", "", "form of latent attention: expanded, or absorbed, with the latent as key and "+
		"value of all heads (default: absorbed for sparse attention, the only one for it on cuda)")
	f.StringVar(&t.isa, "isa", "auto", "instruction set: auto, avx512, avx2 or portable; does not change results")
	f.IntVar(&t.threads, "threads", 0, "threads, 0 for all cores; does not change results")
}

// config is the device that the flags choose.
func (t *target) config() devices.Config {
	def := devices.Definition(t.device)
	if given(t.dot) {
		def.Dot = kernels.DotMode(t.dot)
	}
	if given(t.exp2) {
		def.Exp2 = kernels.Exp2Mode(t.exp2)
	}
	if given(t.latent) {
		def.Latent = kernels.LatentForm(t.latent)
	}
	def.Acts, def.Cache = setup.RoundingBy(cmp.Or(t.acts, "auto"), cmp.Or(t.cache, "auto"), t.dir, t.adapter)
	if def.Acts == quant.FP8x128 && !given(t.dot) {
		def.Dot = kernels.DotTC16
	}
	return devices.Config{Kind: t.device, ISA: t.isa, Threads: t.threads, Definition: def}
}

// given reports whether a flag sets a value rather than leave it to the device.
func given(flag string) bool { return flag != "" && flag != "auto" }

// storage is the type of weights and activations: that of --dtype, by default the one that dot products read.
func (t *target) storage(dot kernels.DotMode) (kernels.DType, error) {
	switch t.dtype {
	case "":
		if dot == kernels.DotTC16 {
			return kernels.BF16, nil
		}
		return kernels.F32, nil
	case "fp32":
		return kernels.F32, nil
	case "bf16":
		return kernels.BF16, nil
	}
	return 0, fmt.Errorf("--dtype %q: want fp32 or bf16", t.dtype)
}

// weightsBy is what --weights says.
func (t *target) weightsBy(o *model.Options) error {
	switch e := quant.Encoding(t.weights); {
	case t.weights == "auto":
		o.Weights = model.KeepWeights
	case slices.Contains(quant.Encodings, e):
		o.Encode = setup.EncodeBy(t.weights, cmp.Or(t.coded, "auto"))
	case t.weights != "open":
		return fmt.Errorf("--weights %q: want auto, open, int4, mxfp4, mxfp8 or fp8", t.weights)
	}
	return nil
}

// settings are the given flags as overrides of a shape's keys.
func (t *target) settings(c *cobra.Command) (set []string) {
	for _, f := range []struct{ flag, key string }{
		{"device", "device.kind"}, {"isa", "device.isa"}, {"threads", "device.threads"}, {"dot", "definition.dot"},
		{"exp2", "definition.exp2"}, {"latent", "definition.latent"}, {"dtype", "model.dtype"},
		{"time-step-floor", "model.time_step_floor"},
		{"weights", "model.weights"}, {"acts", "definition.acts"}, {"cache", "definition.cache"},
	} {
		if c.Flags().Changed(f.flag) {
			set = append(set, f.key+"="+c.Flags().Lookup(f.flag).Value.String())
		}
	}
	return slices.Concat(t.set, set, t.ranks.settings())
}

// open loads the model on the devices and runs body.
func (t *target) open(broken kernels.Break, body func(m *serve.ServedModel) error) error {
	c := t.config()
	c.Break = broken
	dtype, err := t.storage(c.Definition.Dot)
	if err != nil {
		return err
	}
	if t.stepFloor != "none" && t.stepFloor != "reference" {
		return fmt.Errorf("--time-step-floor %q: want none or reference", t.stepFloor)
	}
	o := model.Options{DType: dtype, StepFloor: t.stepFloor == "reference"}
	if err := t.weightsBy(&o); err != nil {
		return err
	}
	mesh, err := configs.ParseParallel(slices.Concat(t.set, t.ranks.settings()))
	if err != nil {
		return err
	}
	return setup.OnRanks(c, &mesh, func(w *parallel.World, r *parallel.Rank) error {
		setup.CutBy(&o, mesh, w.Devices())
		m, err := serve.Open(w, r, t.dir, t.adapter, o)
		if err != nil {
			return err
		}
		for _, opened := range []string{m.Model.Opened(), m.Model.PagesOpened()} {
			if opened != "" && !t.silent {
				fmt.Fprintln(os.Stderr, opened)
			}
		}
		return body(m)
	})
}

// files are a command's input and output.
type files struct{ in, out string }

// flags adds --in and --out, both required.
func (f *files) flags(c *cobra.Command, in, out string) {
	f.optional(c, in, out)
	require(c, "in", "out")
}

// optional adds --in and --out.
func (f *files) optional(c *cobra.Command, in, out string) {
	c.Flags().StringVar(&f.in, "in", "", in)
	c.Flags().StringVar(&f.out, "out", "", out)
	before(c, f.distinct)
}

// distinct rejects an output that would overwrite the input, or a file of the model or the adapter.
func (f *files) distinct(c *cobra.Command) error {
	out, err := os.Stat(f.out)
	if err != nil {
		return nil // it is new, or writing it will say so
	}
	if in, err := os.Stat(f.in); err == nil && os.SameFile(in, out) {
		return fmt.Errorf("--out %s is also the file of --in: choose another", f.out)
	}
	home, err := os.Stat(filepath.Dir(f.out))
	if err != nil {
		return err
	}
	for _, name := range []string{"model", "adapter"} {
		flag := c.Flags().Lookup(name)
		if flag == nil || flag.Value.String() == "" {
			continue
		}
		if dir, err := os.Stat(flag.Value.String()); err == nil && os.SameFile(dir, home) {
			return fmt.Errorf("--out %s is a file of the folder of --%s: choose another", f.out, name)
		}
	}
	return nil
}

// require makes flags required.
func require(c *cobra.Command, flags ...string) {
	before(c, func(c *cobra.Command) error { return missing(c, flags...) })
}

// missing rejects a flag without a value.
func missing(c *cobra.Command, flags ...string) error {
	for _, name := range flags {
		if c.Flags().Lookup(name).Value.String() == "" {
			return fmt.Errorf("--%s is missing: see %s --help", name, c.CommandPath())
		}
	}
	return nil
}

// before adds a check ahead of the others.
func before(c *cobra.Command, check func(c *cobra.Command) error) {
	next := c.PreRunE
	c.PreRunE = func(c *cobra.Command, args []string) error {
		if err := check(c); err != nil || next == nil {
			return err
		}
		return next(c, args)
	}
}

func scoreCommand() *cobra.Command {
	var t target
	var f files
	var logits bool
	c := &cobra.Command{
		Use:   "score",
		Short: "Compute the log-probabilities of token sequences",
		Args:  none,
		RunE: func(c *cobra.Command, _ []string) error {
			return t.open(kernels.BreakNone, func(m *serve.ServedModel) error {
				n, err := serve.Score(c.Context(), m.Ranks, f.in, f.out, logits)
				if err == nil {
					fmt.Printf("%d sequences scored: %s\n", n, f.out)
				}
				return err
			})
		},
	}
	t.flags(c)
	require(c, "model")
	f.flags(c, `lines {"ids": [...]}`,
		"safetensors file: logprobs.N fp32 [T-1] at temperature 1, N counts lines from 0")
	c.Flags().BoolVar(&logits, "logits", false, "write logits.N fp32 [T, V] too")
	return c
}

func exportCommand() *cobra.Command {
	var t target
	var coded, out string
	c := &cobra.Command{
		Use:   "export",
		Short: "Write a model with its projections in a format",
		Long: "Writes a model folder with the tokenizer, template and generation_config.json of the model, and with\n" +
			"projections in --weights: int4, mxfp4 and mxfp8 as compressed-tensors writes them (gpt-oss: its own\n" +
			"MXFP4), fp8 in blocks of 128 x 128 as DeepSeek-V3's. With --weights open codes become numbers. What is\n" +
			"written is what --weights makes of the model in every other command, on every bit.",
		Example: "  lockstep export --model Qwen3-30B-A3B --weights int4 --out Qwen3-30B-A3B-INT4",
		Args:    none,
		RunE:    func(*cobra.Command, []string) error { return export(&t, coded, out) },
	}
	t.flags(c)
	f := c.Flags()
	f.Lookup("dtype").Usage = "storage of what is not in codes: fp32 or bf16 (default: the model's)"
	f.Lookup("weights").DefValue = ""
	f.StringVar(&coded, "coded", "auto", "what is put into the format: experts, projections, or auto: with 4 bits "+
		"experts, where there are some, else projections")
	f.StringVar(&out, "out", "", "folder to write, which must not exist")
	require(c, "model", "weights", "out")
	return c
}

// export writes the target's model in its format.
func export(t *target, coded, out string) error {
	if !slices.Contains([]string{"auto", "experts", "projections"}, coded) {
		return fmt.Errorf("--coded %q: want auto, experts or projections", coded)
	}
	if t.weights == "auto" {
		return errors.New("--weights auto: want int4, mxfp4, mxfp8, fp8 or open")
	}
	if _, err := os.Stat(out); err == nil {
		return fmt.Errorf("--out %s exists: choose another folder", out)
	}
	if _, err := t.ownStorage(); err != nil {
		return err
	}
	t.coded, t.silent = coded, true
	return t.open("", func(m *serve.ServedModel) error {
		if m.Model.LoRA != nil {
			return errors.New("an adapter cannot be exported: serve base and adapter, or merge them first")
		}
		save := m.Model.SaveFolder
		if m.Model.InCodes() {
			save = m.Model.SaveInCodes
		}
		if err := atomicfile.Dir(out, func(tmp string) error { return save(tmp, t.dir) }); err != nil {
			return err
		}
		fmt.Println(cmp.Or(m.Model.Opened(), "weights: numbers, as they were"))
		return nil
	})
}

func mergeCommand() *cobra.Command {
	var t target
	var in, out string
	c := &cobra.Command{
		Use:   "merge",
		Short: "Write a model and an adapter on it as one model",
		Long: "Writes W + scale*B*A for every weight W under the adapter, experts included, in fp32, rounded once\n" +
			"to --dtype, as a model folder with the tokenizer, template and generation_config.json of the base.\n" +
			"Then it scores sequences with the base and the adapter, and with the merged model: a merge changes\n" +
			"bits, and the largest difference is printed. A base in FP8, INT4, MXFP4 or NF4 becomes bf16.",
		Example: "  lockstep merge --model Qwen3-0.6B --adapter runs/qwen3-lora/adapter --out merged",
		Args:    none,
		RunE: func(c *cobra.Command, _ []string) error {
			return merge(c.Context(), &t, in, out)
		},
	}
	t.flags(c)
	f := c.Flags()
	f.Lookup("dtype").Usage = "storage of the merged weights and of scoring: fp32, bf16 (default: the model's)"
	f.StringVar(&out, "out", "", "folder to write, which must not exist")
	f.StringVar(&in, "in", "", `sequences to score, lines {"ids": [...]} (default: random ones)`)
	require(c, "model", "adapter", "out")
	return c
}

// ownStorage makes --dtype the model's own storage type where it is not given, and returns it.
func (t *target) ownStorage() (dtype kernels.DType, err error) {
	if given(t.dtype) {
		return t.storage(kernels.DotFMA)
	}
	dtype, err = model.StorageType(t.dir)
	t.dtype = map[kernels.DType]string{kernels.F32: "fp32", kernels.BF16: "bf16"}[dtype]
	return dtype, err
}

// merge writes the merged folder, and prints what the merge changed.
func merge(ctx context.Context, t *target, in, out string) error {
	if _, err := os.Lstat(out); err == nil {
		return fmt.Errorf("--out %s exists: choose another", out)
	}
	dtype, err := t.ownStorage()
	if err != nil {
		return err
	}
	seqs, before, err := t.logProbs(in, nil)
	if err != nil {
		return err
	}
	var done model.Merged
	if err := atomicfile.Dir(out, func(tmp string) error {
		done, err = model.MergeFolder(ctx, t.dir, t.adapter, tmp, dtype)
		return err
	}); err != nil {
		return err
	}
	fmt.Printf("%s: %d projections merged, %d parameters replaced, %s\n", out, done.Projections, done.Saved, t.dtype)
	if done.Decoded != "" {
		fmt.Printf("the base is stored in %s, the merged model is not\n", done.Decoded)
	}
	t.dir, t.adapter = out, ""
	_, after, err := t.logProbs(in, seqs)
	if err == nil {
		fmt.Print(serve.CompareScores(before, after))
	}
	return err
}

// logProbs scores sequences by the model: those that are given, else those of a file, else random ones.
func (t *target) logProbs(in string, given [][]int32) (seqs [][]int32, scores [][]float32, err error) {
	err = t.open(kernels.BreakNone, func(m *serve.ServedModel) (err error) {
		if seqs = given; seqs == nil {
			if seqs, err = serve.SequencesOf(in, m.Model); err != nil {
				return err
			}
		}
		scores, err = m.LogProbs(seqs)
		return err
	})
	return seqs, scores, err
}

// mostSamples bounds the samples of a prompt, against typing errors: all of them are kept in memory.
const mostSamples = 1 << 16

func generateCommand() *cobra.Command {
	var t target
	var f files
	var q serve.Sampling
	d := configs.Default().Rollout
	o := serve.Options{}
	c := &cobra.Command{
		Use:   "generate",
		Short: "Sample completions of prompts with the rollout engine",
		Long: "Samples completions of prompts with the rollout engine. A sample ends at an id of eos_token_id\n" +
			"in config.json and generation_config.json, or at eos_token of tokenizer_config.json. The model's\n" +
			"generation_config.json sets the defaults of --temperature (0 if do_sample is false), --top-p,\n" +
			"--top-k, --min-p, --repetition-penalty and --max-tokens (max_new_tokens); they are printed at the\n" +
			"start.",
		Args: none,
		RunE: func(c *cobra.Command, _ []string) error {
			if q.N < 1 || q.N > mostSamples {
				return fmt.Errorf("--n %d: want 1 to %d", q.N, mostSamples)
			}
			return t.open(kernels.BreakNone, func(m *serve.ServedModel) error {
				sampling := q.WithDefaults(m.Model.Sampling, c.Flags().Changed)
				noteSampling(m.Model.Sampling)
				n, err := serve.Generate(c.Context(), m, f.in, f.out, o, sampling)
				if err == nil {
					fmt.Printf("%d samples generated: %s\n", n, f.out)
				}
				return err
			})
		},
	}
	t.flags(c)
	require(c, "model")
	f.flags(c, `lines {"ids": [...]}, {"prompt": "..."} or {"messages": [...]}`,
		"JSONL file of ids, text, logprobs and finish_reason")
	p := c.Flags()
	p.IntVar(&q.MaxTokens, "max-tokens", d.MaxTokens, "most new tokens of a sample")
	p.Float64Var(&q.Temperature, "temperature", d.Temperature,
		"of sampling and of the log-probabilities; 0 is greedy, with log-probabilities at temperature 1")
	p.Float64Var(&q.TopP, "top-p", d.TopP, "probability mass to sample from (nucleus sampling)")
	p.IntVar(&q.TopK, "top-k", d.TopK, "tokens to sample from, 0 for all")
	p.Float64Var(&q.MinP, "min-p", 0, "least probability to sample, relative to the likeliest token's")
	p.Float64Var(&q.Repetition, "repetition-penalty", 1,
		"divides logits above 0 of tokens so far, prompt included, and multiplies those below")
	p.IntVar(&q.N, "n", 1, "samples of each prompt")
	p.Uint64Var(&q.Seed, "seed", 1, "seed of the samples")
	p.BoolVar(&q.IgnoreEOS, "ignore-eos", false, "continue to --max-tokens past end-of-sequence tokens")
	engineFlags(c, &o)
	return c
}

// noteSampling prints the sampling defaults of generation_config.json and its unsupported settings.
func noteSampling(g data.Generation) {
	if text := g.Sampling(); text != "" {
		fmt.Fprintf(os.Stderr, "generation_config.json: defaults are %s\n", text)
	}
	for _, setting := range g.Unsupported {
		fmt.Fprintf(os.Stderr, "generation_config.json: %s is not supported and ignored\n", data.Shown(setting))
	}
}

func engineFlags(c *cobra.Command, o *serve.Options) {
	p, d := c.Flags(), configs.Default().Rollout
	p.IntVar(&o.Slots, "slots", d.Slots, "most sequences in the batch; does not change results")
	p.IntVar(&o.PageRows, "page-rows", d.PageRows, "token positions of a cache page; does not change results")
	p.IntVar(&o.Pages, "pages", d.Pages, "pages of the cache, 0 for enough for all slots, at most 1 GiB")
	p.IntVar(&o.PrefillRows, "prefill-rows", d.PrefillRows, "most prompt tokens of a step; does not change results")
}

// keyVariable holds the API key. A flag would show it in lists of processes.
const keyVariable = "LOCKSTEP_API_KEY"

// listener is where a server listens and who may ask it.
type listener struct {
	address, cert, certKey, log string
	insecure                    bool
	exposed                     bool // to other machines, without a key
}

func (s *listener) flags(c *cobra.Command, o *api.Options) {
	p := c.Flags()
	p.StringVar(&s.address, "address", "127.0.0.1:8000", "host and port to listen on")
	p.BoolVar(&s.insecure, "insecure", false, "listen for other machines without an API key")
	p.StringArrayVar(&o.Origins, "allow-origin", nil, "origin of web pages that may ask the server, such as\n"+
		"https://example.org, or *; may be repeated")
	p.StringVar(&s.cert, "tls-cert", "", "certificate (PEM), for HTTPS; with --tls-key")
	p.StringVar(&s.certKey, "tls-key", "", "private key of --tls-cert (PEM)")
	p.BoolVar(&o.Reasoning, "reasoning", false, "give thinking as reasoning_content, not in content")
	p.StringVar(&s.log, "log", "text", "what a line for each request looks like on stderr: text, json or none")
	o.Limits = api.DefaultLimits()
	p.IntVar(&o.Limits.Waiting, "max-waiting", o.Limits.Waiting, "samples that may wait for a place in the batch")
	p.DurationVar(&o.Limits.Read, "read-timeout", o.Limits.Read, "time for a request's body to arrive")
	p.DurationVar(&o.Limits.Write, "write-timeout", o.Limits.Write, "time for a client to take a part of its response")
	p.DurationVar(&o.Limits.Request, "request-timeout", o.Limits.Request, "time for a whole request")
	p.DurationVar(&o.Limits.Drain, "drain", o.Limits.Drain, "time for the requests in flight when told to stop")
}

// listen opens the address and completes the options of the server there.
func (s *listener) listen(o *api.Options) (net.Listener, error) {
	if host, port, err := net.SplitHostPort(s.address); err != nil || port == "" || host == "" && !s.insecure {
		return nil, fmt.Errorf("--address %q: want HOST:PORT, such as 127.0.0.1:8000", s.address)
	}
	var given bool
	if o.Key, given = os.LookupEnv(keyVariable); given && o.Key == "" {
		return nil, fmt.Errorf("%s is set and empty: give a key, or unset it", keyVariable)
	}
	if err := errors.Join(o.Limits.Validate(), s.secure(o), s.logs(o)); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", s.address)
	if err != nil {
		return nil, fmt.Errorf("--address: %w", err)
	}
	s.exposed = o.Key == "" && !l.Addr().(*net.TCPAddr).IP.IsLoopback()
	if s.exposed && !s.insecure {
		return nil, errors.Join(fmt.Errorf("--address %s can be reached from other machines: set an API key in %s, or "+
			"give --insecure to go without", s.address, keyVariable), l.Close())
	}
	return l, nil
}

// secure sets the certificate.
func (s *listener) secure(o *api.Options) error {
	if s.cert == "" && s.certKey == "" {
		return nil
	}
	pair, err := tls.LoadX509KeyPair(s.cert, s.certKey)
	if err != nil {
		return fmt.Errorf("--tls-cert %q --tls-key %q: %w", s.cert, s.certKey, err)
	}
	o.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	return nil
}

// logs sets the log of requests.
func (s *listener) logs(o *api.Options) error {
	switch s.log {
	case "text":
		o.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	case "json":
		o.Log = slog.New(slog.NewJSONHandler(os.Stderr, nil))
	case "none":
	default:
		return fmt.Errorf("--log %q: want text, json or none", s.log)
	}
	return nil
}

func serveCommand() *cobra.Command {
	var t target
	var o api.Options
	var on listener
	c := &cobra.Command{
		Use:   "serve",
		Short: "Serve a model over HTTP with OpenAI's interface",
		Long: "Serves /v1/completions, /v1/chat/completions (with streaming, log-probabilities, n, seed and\n" +
			"stop strings), /v1/models, /tokenize, /detokenize, /metrics (Prometheus), /health (the engine\n" +
			"runs) and /ready (it takes requests). Requests of all clients run in one batch, and none changes\n" +
			"a bit of another's response: log-probabilities are those that score and training compute.\n\n" +
			"A prompt may be token ids; \"return_token_ids\": true adds those of the response. \"echo\" with\n" +
			"\"logprobs\", or \"prompt_logprobs\", gives the prompt's log-probabilities, at temperature 1: the bits\n" +
			"of lockstep score; max_tokens may be 0. logit_bias, min_p, frequency_penalty, presence_penalty and\n" +
			"repetition_penalty change what is drawn, and no log-probability that is told. Equal requests\n" +
			"with a \"seed\" get equal responses. system_fingerprint is the digest of the definition. Defaults\n" +
			"of temperature, top_p, top_k, min_p, repetition_penalty and max_tokens are those of the model's\n" +
			"generation_config.json, printed at the start, then OpenAI's.\n\n" +
			"With \"tools\", the calls that a model writes are tool_calls of the answer, for the formats that chat\n" +
			"templates have: Hermes JSON, Qwen3.5 and Qwen3-Coder, GLM, Kimi K2, DeepSeek V3, gpt-oss, MiniMax M2\n" +
			"and Llama 3. A call cannot be forced; what cannot be read as a call stays content;\n" +
			"\"parallel_tool_calls\": false gives the first alone. Thinking stays content, with its marks, unless\n" +
			"--reasoning makes it reasoning_content; gpt-oss's channels are always divided.\n\n" +
			"Set " + keyVariable + " in the environment to require that API key of clients; an address that\n" +
			"other machines reach needs one. Bodies are JSON with that Content-Type, at most 8 MiB. The batch\n" +
			"takes one sample of each waiting request after the other; when too many wait, a request gets 429.\n" +
			"Ctrl-C finishes the requests in flight, for as long as --drain says, then exits.",
		Example: "  lockstep serve --model runs/countdown-sft/model\n" +
			"  curl localhost:8000/v1/completions --json '{\"prompt\": \"make 28 from 7 9 12:\", \"max_tokens\": 60, " +
			"\"temperature\": 0}'",
		Args: none,
		RunE: func(c *cobra.Command, _ []string) error {
			// Listen first, so that a wrong address fails before the model is loaded.
			l, err := on.listen(&o)
			if err != nil {
				return err
			}
			defer l.Close()
			if o.Name == "" {
				dir, err := filepath.Abs(t.dir)
				if err != nil {
					return err
				}
				o.Name = filepath.Base(dir)
			}
			return t.open(kernels.BreakNone, func(m *serve.ServedModel) error {
				s, err := api.New(m, o)
				if err != nil {
					return err
				}
				noteSampling(m.Model.Sampling)
				scheme := "http"
				if o.TLS != nil {
					scheme = "https"
				}
				fmt.Fprintf(os.Stderr, "%s on %s://%s/v1: %s, definition %.12s\n", o.Name, scheme, l.Addr(),
					m.DeviceName(), m.Rank.Dev.Definition().Digest())
				if on.exposed {
					fmt.Fprintln(os.Stderr, "insecure: whoever reaches the address may use the server, without a key")
				}
				context.AfterFunc(c.Context(), func() {
					fmt.Fprintln(os.Stderr, "finishing the requests in flight; a second signal stops at once")
				})
				return s.Run(c.Context(), l)
			})
		},
	}
	t.flags(c)
	require(c, "model")
	on.flags(c, &o)
	p := c.Flags()
	p.StringVar(&o.Name, "name", "", "the model's name for clients (default: the name of its folder)")
	p.Uint64Var(&o.Seed, "seed", 1, "seed of requests without one")
	engineFlags(c, &o.Engine)
	return c
}

func devicesCommand() *cobra.Command {
	var arch, exp2 string
	c := &cobra.Command{
		Use:   "devices",
		Short: "List the devices of this machine, with memory, power, clocks and links of GPUs",
		Long: "The devices of this machine, a line each. --compile fills the cache of compiled kernels instead, so\n" +
			"that the first start on a rented node does not wait for it: make kernels does so without a GPU, in the\n" +
			"image of a container.",
		Example: "  lockstep devices\n  XDG_CACHE_HOME=/image/cache lockstep devices --compile sm_90a",
		Args:    none,
		RunE: func(c *cobra.Command, _ []string) error {
			if c.Flags().Changed("exp2") && arch == "" {
				return errors.New("--exp2 is of kernels that --compile compiles: set it to an architecture, as sm_90a")
			}
			if arch != "" {
				def := devices.Definition(devices.CUDA)
				def.Exp2 = kernels.Exp2Mode(exp2)
				line, err := devices.Prepare(def, arch)
				if err == nil {
					fmt.Println(line)
				}
				return err
			}
			lines, err := devices.List()
			if err == nil {
				fmt.Println(strings.Join(lines, "\n"))
			}
			return err
		},
	}
	c.Flags().StringVar(&arch, "compile", "", "compile all kernels for this architecture: sm_90a (H100, H200) or "+
		"sm_100a (B200)")
	c.Flags().StringVar(&exp2, "exp2", string(kernels.Exp2Ex2h), "their arithmetic of 2^x: ex2h or poly")
	return c
}

func tokenizeCommand() *cobra.Command {
	var dir string
	var f files
	var decode, chat, noEnd bool
	var line int
	c := &cobra.Command{
		Use:   "tokenize",
		Short: "Convert texts to token ids, or back, or show the targets of a chat",
		Example: "  lockstep tokenize --model DIR --in text.jsonl --out ids.jsonl\n" +
			"  lockstep tokenize --model DIR --in chats.jsonl --chat --line 3",
		Args: none,
		RunE: func(c *cobra.Command, _ []string) error {
			if chat {
				text, err := train.ShowChat(os.Stdout, dir, f.in, line, noEnd)
				fmt.Print(text)
				return err
			}
			t, err := tokenizer.Load(dir)
			if err != nil {
				return err
			}
			n, err := data.TokenizeFile(c.Context(), t, f.in, f.out, decode)
			if err == nil {
				fmt.Printf("%d lines: %s\n", n, f.out)
			}
			return err
		},
	}
	c.Flags().StringVar(&dir, "model", "", "folder with tokenizer.json")
	require(c, "model")
	f.optional(c, `lines {"text": "..."}; with --decode {"ids": [...]}; with --chat a run's data`,
		"JSONL file of ids, or of texts with --decode")
	before(c, func(c *cobra.Command) error {
		if chat {
			return nil
		}
		return missing(c, "out")
	})
	require(c, "in")
	p := c.Flags()
	p.BoolVar(&decode, "decode", false, "convert ids to texts")
	p.BoolVar(&chat, "chat", false,
		"print a line as training sees it, with targets coloured or in brackets; needs no --out")
	p.IntVar(&line, "line", 1, "with --chat: number of the line, from 1")
	p.BoolVar(&noEnd, "no-end", false, "with --chat: as with data.no_end = true")
	return c
}

func verifyCommand() *cobra.Command {
	var t target
	o := serve.VerifyOptions{}
	var broken, replay string
	c := &cobra.Command{
		Use:   "verify [SHAPE.toml]",
		Short: "Verify that decode, chunked prefill and the training forward agree on every bit",
		Long: "Compares logits and log-probabilities bit for bit over random traffic. With --replay it repeats\n" +
			"a run of reinforcement learning from its start on the recorded answers: it compares every\n" +
			"log-probability with that of the weights that sampled the token, and the checkpoints byte for\n" +
			"byte.",
		Example: "  lockstep verify --model runs/countdown-sft/model --tokens 22000\n  lockstep verify --replay " +
			"runs/countdown-zero-kld",
		Args: atMostOne,
		RunE: func(c *cobra.Command, args []string) error {
			if replay != "" {
				if len(args) > 0 || t.dir != "" || t.adapter != "" || broken != "" {
					return fmt.Errorf("--replay can be combined with --set and device flags only")
				}
				res, err := train.Replay(c.Context(), replay, t.settings(c), os.Stderr)
				if err != nil {
					return err
				}
				fmt.Println(res)
				return res.Err()
			}
			if (len(args) == 1) == (t.dir != "") {
				return fmt.Errorf("give one of a shape, --model and --replay")
			}
			if t.adapter != "" && len(args) == 1 {
				return fmt.Errorf("--adapter needs --model in place of a shape")
			}
			verify := func(s serve.Ranks) (err error) {
				if o.Reference, err = s.OneRankReference(); err != nil {
					return err
				}
				rep, err := serve.Verify(c.Context(), s, o)
				if err != nil {
					return err
				}
				fmt.Print(rep.Table())
				return rep.Err()
			}
			if len(args) == 1 {
				return setup.OnShape(args[0], t.settings(c), kernels.Break(broken), verify)
			}
			return t.open(kernels.Break(broken), func(m *serve.ServedModel) error { return verify(m.Ranks) })
		},
	}
	t.flags(c)
	c.Flags().IntVar(&o.Tokens, "tokens", 4096, "least positions to compare, each with a full vocabulary of logits")
	c.Flags().IntVar(&o.MaxLength, "longest", 0, "length of the longest sequence of each round; 0 for up to 1024")
	c.Flags().Uint64Var(&o.Seed, "seed", 1, "seed of the requests")
	c.Flags().StringVar(&replay, "replay", "",
		"folder of a run of reinforcement learning to repeat on its recorded answers")
	var rules []string
	for _, b := range kernels.Breaks {
		rules = append(rules, string(b))
	}
	c.Flags().StringVar(&broken, "break", "", "break a rule of the definition, which must be noticed: "+
		strings.Join(rules,
			", "))
	return c
}

func parityCommand() *cobra.Command {
	var t target
	var o serve.ParityOptions
	var fidelity serve.FidelityOptions
	var against []string
	var asJSON bool
	c := &cobra.Command{
		Use:   "parity [SHAPE.toml]",
		Short: "Compare log-probabilities that any engine recorded, or other definitions, with the training forward",
		Long: "Computes the log-probabilities of recorded completions by the training forward and compares them\n" +
			"with the recorded ones: equal bits, estimates of KL, differences, and how many tokens PPO clips.\n" +
			"A line of the file is one completion, as lockstep generate writes it:\n\n" +
			"  {\"prompt_ids\": [...], \"ids\": [...], \"logprobs\": [...], \"temperature\": 0.6}\n\n" +
			"Log-probabilities are those of softmax(logits/temperature); without a temperature, of\n" +
			"softmax(logits). Other accepted names:\n" +
			"  prompt_ids: " + strings.Join(data.RecordedPrompts[1:], ", ") + "\n" +
			"  ids: " + strings.Join(data.RecordedIDs[1:], ", ") + "\n" +
			"  logprobs: " + strings.Join(data.RecordedLogProbs[1:], ", ") +
			", each a number or a list that begins with one\n\n" +
			"With --against, the tokens also go through the model by another definition. The report shows the\n" +
			"first operation with a different output, and how the difference grows from layer to layer.\n" +
			"Settings: weights=fp8 (linear layers in E4M3 blocks), coded=experts (those of experts alone), " +
			strings.Join(kernels.Settings, ", ") + ".\n\n" +
			"With a shape in place of --model and --rollout, drawn tokens go through its untrained model by its own\n" +
			"definition and by each --against. A table has the symmetric KL of the next token over the whole\n" +
			"vocabulary, with logits scaled to a standard deviation of 2.",
		Example: "  lockstep parity --model DIR --rollout out.jsonl\n" +
			"  lockstep parity --model DIR --rollout out.jsonl --against " +
			"combine=bf16,router=bf16,weights=fp8,key_split=256\n" +
			"  lockstep parity configs/moe-1b.toml --against weights=mxfp8,acts=mxfp8 --against weights=int4",
		Args: atMostOne,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 1 {
				rep, err := parityOfShape(c, &t, args[0], against, fidelity)
				if err != nil {
					return err
				}
				return printReport(rep, asJSON)
			}
			if err := missing(c, "model", "rollout"); err != nil {
				return err
			}
			if c.Flags().Changed("tokens") || c.Flags().Changed("seed") {
				return fmt.Errorf("--tokens and --seed are for a shape: a recording has its own tokens")
			}
			if len(against) > 1 {
				return fmt.Errorf("--against %d times: a recording is compared with one other definition, a shape "+
					"with several", len(against))
			}
			if len(against) == 1 {
				var err error
				other := t.config()
				if o.Alternative, err = serve.ParseAlternative(other.Definition, against[0]); err != nil {
					return err
				}
				other.Definition = o.Alternative.Definition
				if o.Against, err = devices.Open(other); err != nil {
					return err
				}
				defer o.Against.Close()
			}
			return t.open(kernels.BreakNone, func(m *serve.ServedModel) error {
				rep, err := serve.Parity(c.Context(), m, o)
				if err != nil {
					return err
				}
				return printReport(rep, asJSON)
			})
		},
	}
	t.flags(c)
	f := c.Flags()
	f.StringVar(&o.Rollout, "rollout", "", "JSONL file of recorded completions")
	f.Float64Var(&o.Temperature, "temperature", 0,
		"of the recorded log-probabilities; 0 for that of each line")
	f.StringArrayVar(&against, "against", nil,
		"another definition to compare with: setting=value,...; of a shape may be repeated")
	f.IntVar(&fidelity.Tokens, "tokens", 4096, "of a shape: tokens to draw")
	f.Uint64Var(&fidelity.Seed, "seed", 1, "of a shape: seed of the tokens")
	f.Float64Var(&o.Bounds.ClipLow, "clip-low", 0.2, "PPO clips ratios below 1 minus this")
	f.Float64Var(&o.Bounds.ClipHigh, "clip-high", 0.2, "PPO clips ratios above 1 plus this")
	f.Float64Var(&o.Bounds.Cap, "cap", 2, "upper bound of truncated importance weights")
	f.BoolVar(&asJSON, "json", false, "print the report as JSON")
	return c
}

// parityOfShape compares the untrained model of a shape with what it is by other definitions.
func parityOfShape(c *cobra.Command, t *target, path string, against []string, o serve.FidelityOptions) (
	f *serve.Fidelity, err error) {
	for _, flag := range []string{"model", "adapter", "rollout", "temperature", "clip-low", "clip-high", "cap"} {
		if c.Flags().Changed(flag) {
			return nil, fmt.Errorf("--%s is for a recording: leave it out, or the shape", flag)
		}
	}
	set := t.settings(c)
	s, err := configs.Load(path, set)
	if err != nil {
		return nil, err
	}
	device := setup.Device(s)
	for _, text := range against {
		a, err := serve.ParseAlternative(device.Definition, text)
		if err != nil {
			return nil, err
		}
		o.Against = append(o.Against, a)
	}
	o.Open = func(def kernels.Definition) (kernels.Device, error) {
		device.Definition = def
		return devices.Open(device)
	}
	err = setup.OnShape(path, set, kernels.BreakNone, func(s serve.Ranks) error {
		f, err = serve.MeasureFidelity(c.Context(), s, o)
		return err
	})
	return f, err
}

// printReport prints a report as text or as JSON.
func printReport(rep interface{ JSON() ([]byte, error) }, asJSON bool) error {
	if !asJSON {
		fmt.Print(rep)
		return nil
	}
	text, err := rep.JSON()
	fmt.Println(string(text))
	return err
}

func reportCommand() *cobra.Command {
	var out, svg string
	c := &cobra.Command{
		Use:   "report RUN...",
		Short: "Write a report of one or several runs: curves, differences of their shapes, answers",
		Long: "Writes one HTML page, without other files or scripts, about runs, finished or still training.\n" +
			"Runs whose shapes differ only in seed, init_seed, run.name and run.out are one series: their\n" +
			"mean at each step, with a band from the lowest to the highest. A step that some runs lack has\n" +
			"the mean of the others. Steps of reinforcement learning count from the end of the warm start. A\n" +
			"KL of exactly 0 has its own lane under the logarithmic axis.",
		Example: "  lockstep report runs/countdown-sft\n  lockstep report runs/zero-1 runs/zero-2 runs/fp8-1 " +
			"runs/fp8-2 --out compare.html --svg compare.svg",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return fmt.Errorf("give the folder of at least one run: see %s --help", c.CommandPath())
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			r, err := report.Read(args)
			if err != nil {
				return err
			}
			if svg != "" {
				if err := r.WriteSVG(svg); err != nil {
					return err
				}
				fmt.Printf("%s: %s\n", r, svg)
				if !c.Flags().Changed("out") {
					return nil
				}
			}
			if err := r.WriteHTML(out); err != nil {
				return err
			}
			fmt.Printf("%s: %s\n", r, out)
			return nil
		},
	}
	c.Flags().StringVar(&out, "out", "report.html", "HTML file; not written with --svg alone")
	c.Flags().StringVar(&svg, "svg", "",
		"SVG file with reward, KL and clip fraction (for supervised runs, loss and accuracy), such as for a README")
	return c
}

// stepFlags size the micro-batch for which peak memory is computed.
func stepFlags(c *cobra.Command) *plan.StepSize {
	size, f := plan.DefaultStepSize(), c.Flags()
	f.IntVar(&size.MicroBatch, "micro-batch", size.MicroBatch, "packs of a micro-batch, for peak memory")
	f.IntVar(&size.Rows, "rows", size.Rows, "tokens of a pack, for peak memory")
	f.StringVar(&size.Weights, "weights", size.Weights, "model.weights, for peak memory: int4, mxfp4, mxfp8 or fp8")
	return &size
}

func inspectCommand() *cobra.Command {
	var size *plan.StepSize
	c := &cobra.Command{
		Use:   "inspect DIR",
		Short: "Show the contents of a model folder and the memory to train it",
		Args:  one("DIR"),
		RunE: func(_ *cobra.Command, args []string) error {
			s, err := model.Inspect(args[0])
			if err != nil {
				return err
			}
			peaks, err := plan.Peaks(*size, "model.path="+args[0])
			if err == nil {
				fmt.Printf("%s\n%s", s, peaks)
			}
			return err
		},
	}
	size = stepFlags(c)
	return c
}

func shapesCommand() *cobra.Command {
	var size *plan.StepSize
	c := &cobra.Command{
		Use:   "shapes [MODEL]",
		Short: "List the catalogue of published models, or show one and the memory to train it",
		Long: "Lists published models with their parameters and memory, or shows one. In a shape,\n" +
			"model.catalogue makes a model of these sizes with random weights. Keys of model.config override\n" +
			"its configuration; with a smaller num_hidden_layers it keeps the first layers.",
		Example: "  lockstep shapes Qwen3-30B-A3B\n" +
			"  lockstep verify configs/qwen3-30b-a3b.toml --device cpu --set model.catalogue=Qwen3-0.6B --set " +
			"model.config.num_hidden_layers=2",
		Args: atMostOne,
		RunE: func(_ *cobra.Command, args []string) error {
			describe := plan.Catalogue
			if len(args) == 1 {
				describe = func() (string, error) { return plan.Describe(args[0], *size) }
			}
			text, err := describe()
			fmt.Print(text)
			return err
		},
	}
	size = stepFlags(c)
	return c
}

func planCommand() *cobra.Command {
	var machine, mesh string
	var set []string
	var asJSON bool
	c := &cobra.Command{
		Use:   "plan SHAPE.toml",
		Short: "Tell what a shape would take and do on a machine, by mesh, before anything runs",
		Long: "Builds the graph of the run on a device that counts memory and work and computes nothing, for every\n" +
			"mesh of the machine's cards, and prints them best first: bytes of a card by purpose (to the byte those\n" +
			"of the run's own plan, but for its workspace), seconds of a step by part, what of exchanges is hidden\n" +
			"behind arithmetic, tokens/s, the longest sequence; and where none fits, what would. Times are work\n" +
			"over the rates of the machine's file, which says which of them were measured.\n\n" +
			"Sequences count as long as packs, tokens choose experts evenly, and answers have rollout.max_tokens.\n" +
			"Machines: " + strings.Join(configs.Machines(), ", ") + ", or a file of lockstep bench machine.",
		Example: "  lockstep plan configs/glm5.2-lora.toml --machine 8xH200\n" +
			"  lockstep plan configs/qwen3-30b-a3b.toml --machine 2xH200 --mesh ranks=2,experts=2,weights=sharded",
		Args: one("SHAPE.toml"),
		RunE: func(c *cobra.Command, args []string) error {
			m, err := configs.LoadMachine(machine)
			if err != nil {
				return err
			}
			var keys []string
			if mesh != "" {
				keys = strings.Split(mesh, ",")
			}
			p, err := plan.For(func(more ...string) (*configs.Shape, error) {
				return configs.Load(args[0], slices.Concat(more[:1], set, more[1:]))
			}, m, keys)
			if err != nil {
				return err
			}
			if asJSON {
				text, err := p.JSON()
				fmt.Println(string(text))
				return err
			}
			fmt.Print(p)
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&machine, "machine", "", "name or file of a machine")
	require(c, "machine")
	f.StringVar(&mesh, "mesh", "",
		"one mesh in place of all: keys of [parallel], such as ranks=8,experts=8,interleave=2")
	f.StringArrayVar(&set, "set", nil, "override a key of the shape: table.key=value; may be repeated")
	f.BoolVar(&asJSON, "json", false, "print the plan as JSON")
	return c
}

func benchCommand() *cobra.Command {
	c := &cobra.Command{Use: "bench", Short: "Measure speed relative to hardware limits and other programs in " +
		"the same run"}
	group(c, benchCPUCommand(), benchCUDACommand(), benchRolloutCommand(), benchRLCommand(), benchRecomputeCommand(),
		benchRanksCommand(), benchExchangeCommand(), benchMachineCommand(),
		benchUpdateCommand(), benchStreamCommand())
	return c
}

func benchStreamCommand() *cobra.Command {
	o := bench.StreamOptions{Out: os.Stdout}
	var set []string
	var ranks ranksFlag
	c := &cobra.Command{
		Use:   "stream SHAPE.toml",
		Short: "First results of packs that come slowly: computed as they come, and accumulated",
		Long: "A step of a shape on random packs that come one by one, slower than the ranks could take them:\n" +
			"when the log-probabilities of the first are there, where packs are computed as they come, and where\n" +
			"they are accumulated until all have come. Fails where gradients differ in a bit.",
		Example: "  lockstep bench stream configs/countdown-sft.toml --ranks 2 --set parallel.stages=2 --set " +
			"pipeline.schedule=stream",
		Args: one("SHAPE.toml"),
		RunE: func(c *cobra.Command, args []string) error {
			s, err := configs.Load(args[0], append(set, ranks.settings()...))
			if err != nil {
				return err
			}
			return bench.Stream(c.Context(), s, o)
		},
	}
	f := c.Flags()
	ranks.flag(c)
	f.IntVar(&o.Items, "items", 64, "packs of the step")
	f.Float64Var(&o.Rate, "rate", 0.1, "rate at which they come, of the rate when all are there")
	f.StringArrayVar(&set, "set", nil, "override a key of the shape: table.key=value; may be repeated")
	return c
}

func benchCPUCommand() *cobra.Command {
	o := bench.Options{Out: os.Stdout}
	var set []string
	c := &cobra.Command{
		Use:   "cpu SHAPE.toml",
		Short: "Training steps of a shape, and its matrix products relative to the FMA peak",
		Long: "Trains some steps of a shape and prints tokens/s and peak memory. Then it times every matrix\n" +
			"product of a step, and one of 1024^3, relative to the rate of register-only FMAs that the same\n" +
			"threads reach before and after. With --peer, transformers and torch train the same batches.",
		Example: "  lockstep bench cpu configs/countdown-sft.toml --peer .venv/bin/python",
		Args:    one("SHAPE.toml"),
		RunE: func(c *cobra.Command, args []string) error {
			s, err := configs.Load(args[0], set)
			if err != nil {
				return err
			}
			return bench.CPU(c.Context(), s, o)
		},
	}
	benchFlags(c, &o, &set, 30, 500*time.Millisecond)
	return c
}

func benchFlags(c *cobra.Command, o *bench.Options, set *[]string, steps int, each time.Duration) {
	f := c.Flags()
	f.IntVar(&o.Steps, "steps", steps, "optimizer steps to time")
	f.DurationVar(&o.Each, "each", each, "time to spend on each kernel")
	f.StringVar(&o.Peer, "peer", "", "Python interpreter with torch and transformers to compare with")
	f.StringArrayVar(set, "set", nil, "override a key of the shape: table.key=value; may be repeated")
}

func benchCUDACommand() *cobra.Command {
	o := bench.Options{Out: os.Stdout}
	var set []string
	c := &cobra.Command{
		Use:   "cuda [SHAPE.toml]",
		Short: "Kernels of a GPU, or training, forward and decoding of a shape's model on it",
		Long: "Without a shape: matrix products, attention and memory-bound operations, relative to a copy in\n" +
			"GPU memory and to torch. With a shape: tokens/s of training steps, of the forward alone and of\n" +
			"decoding, the time of each kernel, and the same for transformers, by QLoRA next to adapters on 4 bits\n" +
			"(bitsandbytes, which PYTHONPATH may have).",
		Example: "  lockstep bench cuda --peer python3\n  lockstep bench cuda configs/moe-1b.toml --peer python3",
		Args:    atMostOne,
		RunE: func(c *cobra.Command, args []string) error {
			set := append(set, "device.kind=cuda")
			if len(args) == 0 {
				return bench.Kernels(c.Context(), o)
			}
			s, err := configs.Load(args[0], set)
			if err != nil {
				return err
			}
			return bench.CUDA(c.Context(), s, o)
		},
	}
	benchFlags(c, &o, &set, 5, 200*time.Millisecond)
	return c
}

func benchRolloutCommand() *cobra.Command {
	o := bench.RolloutOptions{Prompt: bench.Span{Low: 64, High: 512}, New: bench.Span{Low: 64, High: 1024},
		Out: os.Stdout}
	var set []string
	c := &cobra.Command{
		Use:   "rollout SHAPE.toml",
		Short: "The rollout engine on random prompts: tokens/s, latencies, and use of memory bandwidth",
		Long: "Submits all requests at once to the untrained model of a shape. Lengths are random by the seed;\n" +
			"answers end by length alone. Prints output and prefill tokens/s, latencies, mean batch size, use\n" +
			"of the cache and preemptions. For the steps it prints the least bytes that they read (weights,\n" +
			"routed experts, cached keys and values) relative to the bandwidth of a memory copy in the same\n" +
			"run. rollout.slots and rollout.pages size the engine.\n\n" +
			"With --kernels the requests run once more, and some decode steps and some steps with prefill run\n" +
			"kernel by kernel: calls, time and share of each kernel. The difference to the time of the whole\n" +
			"step is what the GPU waits for.",
		Example: "  lockstep bench rollout configs/moe-1b.toml --samples 8 --set rollout.slots=256 --set " +
			"rollout.pages=16384",
		Args: one("SHAPE.toml"),
		RunE: func(c *cobra.Command, args []string) error {
			if o.Requests < 1 || o.Samples < 1 {
				return fmt.Errorf("--requests %d --samples %d: both must be at least 1", o.Requests, o.Samples)
			}
			s, err := configs.Load(args[0], set)
			if err != nil {
				return err
			}
			return bench.Rollout(c.Context(), s, o)
		},
	}
	f := c.Flags()
	f.IntVar(&o.Requests, "requests", 256, "samples to generate")
	f.IntVar(&o.Samples, "samples", 1, "samples of each prompt")
	f.Var(&o.Prompt, "prompt", "least and most tokens of a prompt")
	f.Var(&o.New, "new", "least and most tokens of an answer")
	f.Uint64Var(&o.Seed, "seed", 1, "seed of the requests")
	f.BoolVar(&o.NoPrefixCache, "no-prefix-cache", false, "disable prefix caching")
	f.BoolVar(&o.Kernels, "kernels", false, "also time each kernel of some steps, on a GPU")
	f.StringVar(&o.Peer, "peer", "", "Python interpreter with torch and transformers to compare with")
	f.StringArrayVar(&set, "set", nil, "override a key of the shape: table.key=value; may be repeated")
	return c
}

func benchRanksCommand() *cobra.Command {
	o := bench.RanksOptions{Prompt: bench.Span{Low: 64, High: 512}, New: bench.Span{Low: 64, High: 512}, Out: os.Stdout}
	var set []string
	var ranks ranksFlag
	c := &cobra.Command{
		Use:   "ranks SHAPE.toml",
		Short: "Training steps and rollouts on several ranks, relative to one rank in the same run",
		Long: "Trains some steps of a shape on random tokens, run.packs packs a rank, and answers random requests\n" +
			"by what was trained, first on one rank, then on --ranks as [parallel] divides the model. Prints\n" +
			"tokens/s of both, the ratio and the memory of the fullest device, and fails where trained weights\n" +
			"or answers differ in a bit. The learning rate is 1e-6: packs are random and the same in every step,\n" +
			"and by a usual one routers that are trained soon send nearly all tokens to a few experts. With experts\n" +
			"on several ranks, random routers (no model.path) get rows that are the same on each: a token's experts\n" +
			"are then copies, one at each rank, and shares of rows are even, as a balanced mixture's are. With\n" +
			"--peer, transformers trains as many packs, on one rank and on all with FSDP2. With --kernels, a table\n" +
			"says how much longer each kernel of a step takes than for as many packs of one rank.\n\n" +
			"Of a shape with [rl] it times whole steps of reinforcement learning, as a run takes them behind its\n" +
			"warm start: of the step that takes the median, seconds of sampling, of the update and of the rest,\n" +
			"and the longest step, on one rank and on --ranks; with --kernels, tables of sampling and update.",
		Example: "  lockstep bench ranks configs/moe-1b.toml --ranks 2 --set parallel.experts=2\n" +
			"  lockstep bench ranks configs/countdown-sft.toml --ranks 2 --prompt 8..40 --new 8..40 --peer python3\n" +
			"  lockstep bench ranks configs/validation/countdown-1b.toml --ranks 2 --steps 30",
		Args: one("SHAPE.toml"),
		RunE: func(c *cobra.Command, args []string) error {
			s, err := configs.Load(args[0], append(set, ranks.settings()...))
			if err != nil {
				return err
			}
			if s.RL.Objective == "" {
				return bench.Ranks(c.Context(), s, o)
			}
			for _, flag := range []string{"alone", "peer", "requests", "prompt", "new", "seed"} {
				if c.Flags().Changed(flag) {
					return fmt.Errorf("--%s: does nothing for a shape with [rl], whose own steps are timed: remove it",
						flag)
				}
			}
			return train.TimeSteps(c.Context(), s, train.TimeOptions{Steps: o.Steps, Kernels: o.Kernels,
				Out: os.Stdout, Log: os.Stderr})
		},
	}
	f := c.Flags()
	ranks.flag(c)
	f.BoolVar(&o.Alone, "alone", false, "measure the ranks alone, next to the plan of the machine: for models that "+
		"one rank does not hold")
	f.BoolVar(&o.Kernels, "kernels", false, "also time each kernel of one more step, on GPUs")
	f.IntVar(&o.Steps, "steps", 5, "optimizer steps to time")
	f.IntVar(&o.Requests, "requests", 256, "answers of each rank; 0: it trains alone")
	f.Var(&o.Prompt, "prompt", "least and most tokens of a prompt")
	f.Var(&o.New, "new", "least and most tokens of an answer")
	f.Uint64Var(&o.Seed, "seed", 1, "seed of the requests")
	f.StringVar(&o.Peer, "peer", "", "Python interpreter with torch and transformers to compare training with")
	f.StringArrayVar(&set, "set", nil, "override a key of the shape: table.key=value; may be repeated")
	return c
}

func benchExchangeCommand() *cobra.Command {
	o := bench.ExchangeOptions{Out: os.Stdout}
	c := &cobra.Command{
		Use:   "exchange",
		Short: "Exchanges between ranks, relative to a copy from another rank",
		Long: "All-gather, all-to-all and messages around a ring, between GPUs or ranks that share this machine's\n" +
			"cores: GB/s that each rank receives from others, relative to a copy of as many bytes from\n" +
			"another rank by all at once, and what an exchange of one row takes, of it the host's part.\n" +
			"With --peer, torch does the same all-gather and all-to-all by NCCL, on the CPU by gloo.",
		Example: "  lockstep bench exchange --device cuda --ranks 2 --peer python3",
		Args:    cobra.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return bench.Exchange(c.Context(), o) },
	}
	f := c.Flags()
	f.StringVar(&o.Device, "device", devices.CPU, "devices of the ranks: cpu or cuda")
	f.IntVar(&o.Ranks, "ranks", 2, "ranks")
	f.BoolVar(&o.Share, "share", false, "ranks may share a GPU, where there are fewer")
	f.IntSliceVar(&o.MiB, "mib", []int{1, 4, 16, 64, 256}, "MiB that each rank receives from others")
	f.StringVar(&o.Peer, "peer", "", "Python interpreter with torch to compare with")
	f.DurationVar(&o.Each, "each", 300*time.Millisecond, "time to spend on each line")
	return c
}

func benchUpdateCommand() *cobra.Command {
	o := bench.UpdateOptions{Out: os.Stdout}
	c := &cobra.Command{
		Use:   "update",
		Short: "Optimizer steps of states in the host's memory, in parameters a second",
		Long: "G parameters/s of AdamW whose states lie in the host's memory: those that pass through the devices,\n" +
			"those that the host's cores update (offload.host_update), and both at once, by all ranks together.\n" +
			"With --peer, torch's fused AdamW runs on the same cores.",
		Example: "  lockstep bench update --device cuda --ranks 2 --peer python3",
		Args:    cobra.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return bench.Update(c.Context(), o) },
	}
	f := c.Flags()
	f.StringVar(&o.Device, "device", devices.CPU, "devices of the ranks: cpu or cuda")
	f.IntVar(&o.Ranks, "ranks", 1, "ranks")
	f.BoolVar(&o.Share, "share", false, "ranks may share a GPU, where there are fewer")
	f.IntVar(&o.Parameters, "parameters", 256, "millions of each rank; the host has 18 bytes for each")
	f.IntSliceVar(&o.Host, "host", []int{0, 100, 25, 50, 75}, "percent that the host's cores update")
	f.StringVar(&o.Peer, "peer", "", "Python interpreter with torch to compare with")
	f.DurationVar(&o.Each, "each", 2*time.Second, "time to spend on each line")
	return c
}

func benchMachineCommand() *cobra.Command {
	o := bench.MachineOptions{Log: os.Stderr}
	var set []string
	c := &cobra.Command{
		Use:   "machine [SHAPE.toml]",
		Short: "Measure this machine and write its file, for plans",
		Long: "Times operations one by one (a copy, operations that do nothing, products, attention and its\n" +
			"gradients, a recurrence), then training, forward and decoding of a shape, whose speed is a share of\n" +
			"what those rates make, and copies between cards. Without a shape it is a mixture of 1.3 billion\n" +
			"parameters on a GPU, of 4 million on a CPU. What cannot be measured is listed as assumed.",
		Example: "  lockstep bench machine --out cpu.toml\n" +
			"  lockstep plan configs/countdown-sft.toml --machine cpu.toml",
		Args: atMostOne,
		RunE: func(c *cobra.Command, args []string) (err error) {
			if o.Device != devices.CPU && o.Device != devices.CUDA {
				return fmt.Errorf("--device %q: want cpu or cuda", o.Device)
			}
			set := append([]string{"device.kind=" + o.Device}, set...)
			if len(args) == 1 {
				o.Shape, err = configs.Load(args[0], set)
			} else {
				o.Shape, err = configs.Parse("", []byte(bench.MachineShape(o.Device)), set)
			}
			if err != nil {
				return err
			}
			return bench.Machine(c.Context(), o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.Device, "device", devices.CPU, "devices of the machine: cpu or cuda")
	f.IntVar(&o.Cards, "cards", 0, "cards of the machine; 0: all")
	f.StringVar(&o.Name, "name", "", "of the machine (default: such as 2xH200, or cpu)")
	f.StringVar(&o.Out, "out", "", "file to write (default: it is printed)")
	f.IntVar(&o.Steps, "steps", 5, "optimizer steps to time")
	f.DurationVar(&o.Each, "each", 500*time.Millisecond, "time to spend on each rate")
	f.StringArrayVar(&set, "set", nil, "override a key of the shape: table.key=value; may be repeated")
	return c
}

func benchRecomputeCommand() *cobra.Command {
	o := bench.Options{Each: time.Second, Out: os.Stdout}
	var set []string
	c := &cobra.Command{
		Use:   "recompute SHAPE.toml",
		Short: "Training steps by each run.recompute: tokens/s and memory",
		Long: "Trains some steps of a shape on random tokens with those of run.recompute \"auto\", \"full\" and\n" +
			"\"none\" that fit into memory. Prints tokens/s, planned memory, and what blocks keep for the\n" +
			"backward pass. It first checks that all give the same gradients on every bit.",
		Example: "  lockstep bench recompute configs/qwen3-30b-a3b.toml --steps 5",
		Args:    one("SHAPE.toml"),
		RunE: func(c *cobra.Command, args []string) error {
			s, err := configs.Load(args[0], set)
			if err != nil {
				return err
			}
			return bench.Recompute(c.Context(), s, o)
		},
	}
	c.Flags().IntVar(&o.Steps, "steps", 5, "optimizer steps to time")
	c.Flags().StringArrayVar(&set, "set", nil, "override a key of the shape: table.key=value; may be repeated")
	return c
}

func benchRLCommand() *cobra.Command {
	o := bench.RLOptions{Prompt: bench.Span{Low: 64, High: 512}, New: bench.Span{Low: 64, High: 1024}, Out: os.Stdout}
	var set []string
	c := &cobra.Command{
		Use:   "rl SHAPE.toml",
		Short: "Updates by each objective, fused and with the separate passes of other stacks",
		Long: "Times updates of a shape's model on random answers in three ways: fused (one forward and one\n" +
			"backward); with a separate forward for log-probabilities; and with another forward for those of\n" +
			"the old policy. It first checks that all give the same gradients on every bit.",
		Example: "  lockstep bench rl configs/countdown-sft.toml --prompt 20..60 --new 8..40 --objective grpo " +
			"--objective dpo",
		Args: one("SHAPE.toml"),
		RunE: func(c *cobra.Command, args []string) error {
			if o.Answers < 2 || o.Updates < 1 {
				return fmt.Errorf("--answers %d --updates %d: --answers must be at least 2, --updates 1", o.Answers,
					o.Updates)
			}
			s, err := configs.Load(args[0], set)
			if err != nil {
				return err
			}
			return bench.RL(c.Context(), s, o)
		},
	}
	f := c.Flags()
	f.StringArrayVar(&o.Objectives, "objective", nil, "loss to time; may be repeated (default: all)")
	f.IntVar(&o.Answers, "answers", 64, "answers of an update")
	f.Var(&o.Prompt, "prompt", "least and most tokens of a prompt")
	f.Var(&o.New, "new", "least and most tokens of an answer")
	f.Uint64Var(&o.Seed, "seed", 1, "seed of the answers")
	f.IntVar(&o.Updates, "updates", 5, "updates to time for each objective and each way")
	f.StringArrayVar(&set, "set", nil, "override a key of the shape: table.key=value; may be repeated")
	return c
}

"""Adapters from end to end against transformers, PEFT and TRL, by hand: adapters.py LOCKSTEP (after setup.sh, and .venv/bin/pip install trl==1.16.0 datasets==5.2.0)

stages    SFT, DPO and RL one after the other on one adapter, merged: transformers on the merged folder and PEFT on the adapter have lockstep's log-probabilities within 1e-5
exports   an adapter on every projection of every golden, trained one step: PEFT loads it without a missing or unexpected key, each delta changes its weight, and the merge has W + delta
template  the assistant mask of a saved chat template is what lockstep learns
losses    TRL's SFT, DPO and IPO losses, step by step, within 1e-5 relative
grpo      TRL's GRPO loss on the answers that a run recorded, update by update, within 1e-5
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
import peft
import safetensors.torch
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2]
TESTDATA = ROOT / "model" / "testdata"
GOLDENS = os.environ.get("GOLDENS", "").split() or sorted(p.parent.name for p in TESTDATA.glob("*/model*.safetensors") if p.parent.name != "toy")
failures = 0


def report(name, difference, bound):
    global failures
    bad = not difference <= bound
    failures += bad
    print(f"{'FAILED' if bad else 'ok':6}  {difference:<10.3g} of at most {bound:<8.3g} {name}", flush=True)


def run(binary, *args):
    done = subprocess.run([binary, *map(str, args)], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"lockstep {' '.join(map(str, args))}: {done.stderr[-2000:]}")
    return done.stdout


def train(binary, shape, out, *settings):
    run(binary, "train", shape, "--out", out, *(f"--set={s}" for s in settings))
    return out


def load(folder):
    kind = json.loads((pathlib.Path(folder) / "config.json").read_text()).get("architectures", [""])[0]  # what a vision checkpoint says
    auto = transformers.AutoModelForImageTextToText if kind.endswith("ForConditionalGeneration") else transformers.AutoModelForCausalLM
    model, info = auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    left = {k: v for k, v in info.items() if v}
    report(f"{pathlib.Path(folder).name}: keys missing or unexpected {left or ''}", len(left), 0)
    return model.eval()


def theirs(model, sequences):
    out = []
    with torch.no_grad():
        for s in sequences:
            logits = model(torch.tensor([s]), use_cache=False).logits[0].double().log_softmax(-1)
            out.append(logits[torch.arange(len(s) - 1), torch.tensor(s[1:])])
    return out


def ours(binary, scratch, sequences, *args):
    (scratch / "in.jsonl").write_text("".join(json.dumps({"ids": s}) + "\n" for s in sequences))
    run(binary, "score", "--in", scratch / "in.jsonl", "--out", scratch / "scores", *args)
    out = safetensors.torch.load_file(scratch / "scores")
    return [out[f"logprobs.{i}"].double() for i in range(len(sequences))]


def largest(a, b):
    return max((x - y).abs().max().item() for x, y in zip(a, b))


def random_ids(vocab, n=4, length=60):  # none of an image
    rng = torch.Generator().manual_seed(5)
    return torch.randint(3, vocab, (n, length), generator=rng).tolist()


def chats(path):
    lines = [{"messages": [{"role": "user", "content": f"{n} and {n}?"}, {"role": "assistant", "content": str(2 * n)}]} for n in range(60)]
    path.write_text("".join(json.dumps(x) + "\n" for x in lines))
    return path


def pairs(path):
    lines = [{"prompt": [{"role": "user", "content": f"{n} and {n}?"}], "chosen": [{"role": "assistant", "content": str(2 * n)}],
              "rejected": [{"role": "assistant", "content": f"it is {2 * n + 1}"}]} for n in range(40)]
    path.write_text("".join(json.dumps(x) + "\n" for x in lines))
    return path


SMALL = ["run.save_every=0", "run.verify_tokens=64", "optim.warmup_ratio=0", "optim.schedule=constant", "model.dtype=fp32"]


def base(binary, scratch):
    sizes = ["model.config.hidden_size=64", "model.config.num_hidden_layers=2", "data.countdown.train=300", "data.countdown.test=8", "data.eval_samples=4", "run.steps=20"]
    return train(binary, "configs/countdown-sft.toml", scratch / "base", *sizes) / "model"


def stages(binary, scratch, folder):
    lora = ["lora.rank=4", "lora.targets=all-linear", "lora.use_rslora=true", "lora.alpha_pattern=o_proj=8", f"model.path={folder}", "optim.lr=5e-3", *SMALL]
    sft = train(binary, "configs/qwen3-lora.toml", scratch / "sft", *lora, f"data.path={chats(scratch / 'chats.jsonl')}", "data.pack_rows=256", "run.epochs=0", "run.steps=4", "run.packs=2")
    more = [f"model.path={folder}", "lora.rank=0", *SMALL]
    dpo = train(binary, "configs/dpo-lora.toml", scratch / "dpo", *more, f"lora.path={sft}/adapter", f"data.preferences={pairs(scratch / 'pairs.jsonl')}", "data.pack_rows=256",
                "run.epochs=0", "run.steps=4", "run.packs=2", "optim.lr=1e-3")
    shape = scratch / "rl.toml"
    shape.write_text(f'[model]\npath = "{folder}"\ndtype = "fp32"\n[data]\ntask = "countdown"\npack_rows = 256\neval_samples = 4\n[data.countdown]\nstyle = "meet"\ntrain = 100\ntest = 8\n'
                     '[lora]\n[rl]\nobjective = "dapo"\nprompts = 4\ngroup = 4\nkl_coef = 0.05\noverlong_rows = 12\n[rollout]\nmax_tokens = 16\n[optim]\nlr = 1e-3\n[run]\nname = "rl"\nsteps = 4\n')
    rl = train(binary, shape, scratch / "rl", f"lora.path={dpo}/adapter", "run.verify_tokens=256", "run.save_every=0")
    adapter, merged = rl / "adapter", scratch / "merged"
    moved = [largest([safetensors.torch.load_file(a / "adapter" / "adapter_model.safetensors")[k].flatten() for k in sorted(safetensors.torch.load_file(a / "adapter" / "adapter_model.safetensors"))],
                     [safetensors.torch.load_file(b / "adapter" / "adapter_model.safetensors")[k].flatten() for k in sorted(safetensors.torch.load_file(b / "adapter" / "adapter_model.safetensors"))])
             for a, b in ((sft, dpo), (dpo, rl))]
    report(f"stages: DPO and RL moved the adapter by {moved[0]:.2g} and {moved[1]:.2g}", int(min(moved) == 0), 0)
    print(run(binary, "merge", "--model", folder, "--adapter", adapter, "--out", merged).strip())
    model = load(merged)
    ids = random_ids(model.config.vocab_size)
    with_adapter, alone = ours(binary, scratch, ids, "--model", folder, "--adapter", adapter), ours(binary, scratch, ids, "--model", merged)
    report("stages: merged by transformers against lockstep on the merged folder", largest(theirs(model, ids), alone), 1e-5)
    report("stages: merged by transformers against lockstep on base and adapter", largest(theirs(model, ids), with_adapter), 1e-5)
    with_peft = peft.PeftModel.from_pretrained(load(folder), adapter).eval()
    report("stages: adapter by PEFT against lockstep on base and adapter", largest(theirs(with_peft, ids), with_adapter), 1e-5)
    report("stages: the adapter does something", int(largest(alone, ours(binary, scratch, ids, "--model", folder)) < 1e-2), 0)
    transformers.AutoTokenizer.from_pretrained(merged)


def deltas(model):
    """Every delta that PEFT applies, by the parameter that it changes."""
    for name, module in model.named_modules():
        if hasattr(module, "lora_A") and "default" in getattr(module, "lora_A", {}):
            with torch.no_grad():
                yield name, getattr(module, "parameter_name", "weight"), module.get_delta_weight("default")


def exports(binary, scratch):
    for golden in GOLDENS:
        export(binary, scratch, golden)
    for golden in sorted({"deepseek_v3_grouped", "gpt_oss", "nemotron_h_latent", "qwen3_moe"} & set(GOLDENS)):
        export(binary, scratch, golden, "lora.experts=shared")


def export(binary, scratch, golden, *more):
    folder = TESTDATA / golden
    vocab = json.loads((folder / "config.json").read_text())
    vocab = min([vocab.get("vocab_size") or vocab["text_config"]["vocab_size"]] + [v for k, v in vocab.items() if re.fullmatch("(image|video|vision_start|vision_end)_token_id", k) and v > 64])
    lines = scratch / "ids.jsonl"
    lines.write_text("".join(json.dumps({"ids": s, "labels": s}) + "\n" for s in random_ids(vocab, 8, 30)))
    out = scratch / golden
    train(binary, "configs/qwen3-lora.toml", out, f"model.path={folder}", f"data.path={lines}", "lora.rank=2", "lora.targets=all-linear", "data.pack_rows=128", "run.epochs=0", "run.steps=2",
          "run.packs=2", "optim.lr=0.02", *more, *SMALL, *(["model.time_step_floor=reference"] if golden.startswith("nemotron") else []))
    floor = ["--time-step-floor", "reference"] if golden.startswith("nemotron") else []
    merged = scratch / f"{golden}-merged"
    run(binary, "merge", "--model", folder, "--adapter", out / "adapter", "--out", merged)
    ids = random_ids(vocab)
    plain, whole = load(folder), load(merged)
    # deltas before the adapter is put on: PEFT wraps the very modules of plain
    before = {n: p.detach().clone() for n, p in plain.named_parameters()}
    stored = safetensors.torch.load_file(out / "adapter" / "adapter_model.safetensors")
    model = peft.PeftModel.from_pretrained(plain, out / "adapter").eval()
    loaded = {k: v for k, v in model.state_dict().items() if ".lora_" in k}
    if more:  # the tensor of PEFT has one expert after the other
        config = json.loads((out / "adapter" / "adapter_config.json").read_text())
        experts = {n: v for n, v in loaded.items() if ".experts." in n}
        e = next(m.num_experts for m in model.modules() if hasattr(m, "num_experts") and hasattr(m, "down_proj"))
        one = sum(torch.equal(x, y.expand_as(x)) for x in (v.reshape(e, -1, v.shape[1]) if "lora_A" in n else v.reshape(v.shape[0], -1, e).permute(2, 0, 1) for n, v in experts.items()) for y in [x[:1]])
        report(f"{golden}: {more[0]}: {one} of {len(experts)} factors of experts are one, half of them are to be; {config['lockstep']}", abs(2 * one - len(experts)), 0)
    differ = sum(not any(v.shape == w.shape and torch.equal(v, w) for w in loaded.values()) for v in stored.values())
    report(f"{golden}: {len(stored)} tensors of the adapter, {len(loaded)} in PEFT, of which differ", differ + abs(len(stored) - len(loaded)), 0)
    after = dict(whole.named_parameters())
    count, zero, off, touched = 0, 0, 0.0, set()
    for name, parameter, delta in deltas(model):
        key = re.sub(r"(^base_model\.model\.)|(\.base_layer)", "", name) + "." + parameter
        count, zero = count + 1, zero + int(delta.abs().max().item() == 0)
        touched.add(key)
        off = max(off, (before[key].double() + delta.double() - after[key].double()).abs().max().item() / before[key].abs().max().item())
    report(f"{golden}: {count} deltas, of which zero", zero, 0)
    report(f"{golden}: merged weights against W + delta of PEFT, relative", off, 1e-6)
    others = sum(not torch.equal(p, after[n]) for n, p in before.items() if n not in touched and n in after)
    report(f"{golden}: other weights that the merge changed", others, 0)
    with_adapter, alone = ours(binary, scratch, ids, "--model", folder, "--adapter", out / "adapter", *floor), ours(binary, scratch, ids, "--model", merged, *floor)
    report(f"{golden}: log-probs, merged by transformers", largest(theirs(whole, ids), alone), 1e-4)
    report(f"{golden}: log-probs, adapter by PEFT", largest(theirs(model, ids), with_adapter), 1e-4)
    for d in (out, merged):
        shutil.rmtree(d)


def template(binary, scratch, folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    wrong = 0
    lines = [json.loads(x) for x in chats(scratch / "chats.jsonl").read_text().splitlines()]
    for i, line in enumerate(lines[:20]):
        made = tokenizer.apply_chat_template(line["messages"], return_dict=True, return_assistant_tokens_mask=True)
        learned = tokenizer.decode([t for t, m in zip(made["input_ids"], made["assistant_masks"]) if m])
        shown = run(binary, "tokenize", "--model", folder, "--in", scratch / "chats.jsonl", "--chat", "--line", i + 1)
        wrong += "".join(re.findall("⟦(.*?)⟧", shown, re.S)) != learned
    report("template: 20 chats whose assistant mask by transformers is not what lockstep learns", wrong, 0)


def losses(binary, scratch, folder):
    import datasets
    import trl

    steps, lr = 5, 1e-3
    common = dict(output_dir=str(scratch / "trl"), learning_rate=lr, lr_scheduler_type="constant", warmup_steps=0, max_grad_norm=0, weight_decay=0.0, adam_beta1=0.9, adam_beta2=0.95,
                  adam_epsilon=1e-8, num_train_epochs=steps, report_to=[], save_strategy="no", logging_steps=1, disable_tqdm=True, use_cpu=True, bf16=False, gradient_checkpointing=False, seed=1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def record(trainer_class):
        class Recorder(trainer_class):
            seen = []

            def compute_loss(self, *args, **kwargs):
                out = super().compute_loss(*args, **kwargs)
                self.seen.append((out[0] if isinstance(out, tuple) else out).item())
                return out
        Recorder.seen = []
        return Recorder

    def metric(out):
        lines = [json.loads(x) for x in (out / "metrics.jsonl").read_text().splitlines()]
        return [x["loss"] for x in lines if "loss" in x]

    def compare(name, out, seen):
        mine = metric(out)
        report(f"losses: {name}, {len(mine)} steps from {mine[0]:.5f} to {mine[-1]:.5f}, {trl.__name__} {trl.__version__}",
               max(abs(a - b) / max(1, abs(b)) for a, b in zip(mine, seen)) if len(mine) == len(seen) == steps else 1.0, 1e-5)

    same = [f"optim.lr={lr}", "optim.schedule=constant", "optim.clip=0", "optim.beta2=0.95", "run.save_every=0", "run.verify_tokens=0", "model.dtype=fp32", f"model.path={folder}", "lora.rank=0",
            "optim.warmup_ratio=0", "run.epochs=0", f"run.steps={steps}", "run.packs=1", "data.pack_rows=4096"]

    def model():  # without the load-balancing loss, which TRL adds for a mixture
        made = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        made.router_aux_loss_coef = made.config.router_aux_loss_coef = 0.0
        return made

    # texts: of messages TRL learns the newline that ChatML has behind an answer's end too
    few = [dict(prompt=f"{n} and {n}?", chosen=str(2 * n), rejected=f"it is {2 * n + 1}") for n in range(12)]
    (scratch / "few.jsonl").write_text("".join(json.dumps(x) + "\n" for x in few))
    for kind in ("sigmoid", "ipo"):
        out = train(binary, "configs/dpo-lora.toml", scratch / f"loss-{kind}", *same, f"dpo.kind={kind}", "dpo.beta=0.1", f"data.preferences={scratch / 'few.jsonl'}")
        cls = record(trl.DPOTrainer)
        args = trl.DPOConfig(**common, per_device_train_batch_size=len(few), loss_type=[kind], beta=0.1, disable_dropout=True, router_aux_loss_coef=0.0)
        cls(model=model(), ref_model=model(), args=args, train_dataset=datasets.Dataset.from_list(few), processing_class=tokenizer).train()
        compare(kind, out, cls.seen)
    lines = [json.loads(x) for x in chats(scratch / "chats.jsonl").read_text().splitlines()][:12]
    (scratch / "fewchats.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    out = train(binary, "configs/qwen3-lora.toml", scratch / "loss-sft", *same, f"data.path={scratch / 'fewchats.jsonl'}")
    cls = record(trl.SFTTrainer)
    args = trl.SFTConfig(**common, per_device_train_batch_size=len(lines), assistant_only_loss=True, packing=False, router_aux_loss_coef=0.0)
    cls(model=model(), args=args, train_dataset=datasets.Dataset.from_list(lines), processing_class=tokenizer).train()
    compare("sft with assistant_only_loss by the saved template", out, cls.seen)


def grpo(binary, scratch, folder):
    """Four updates on the answers of each step, so that ratios leave 1 and clip, with a KL to the model at the start."""
    import datasets
    import trl

    steps, prompts, group, epochs, lr = 4, 3, 8, 4, 2e-3
    judge = scratch / "judge.py"  # the share of odd bytes: what a small network earns by chance
    judge.write_text('import json, sys\nfor line in sys.stdin:\n    text = json.loads(line)["text"].encode()\n    print(json.dumps({"reward": sum(b % 2 for b in text) / max(1, len(text))}))\n')
    shape = scratch / "grpo.toml"
    shape.write_text(f'[model]\npath = "{folder}"\ndtype = "fp32"\n[data]\ntask = "countdown"\npack_rows = 4096\neval_samples = 0\n[data.countdown]\nstyle = "meet"\ntrain = 100\ntest = 8\n'
                     f'[rl]\nobjective = "grpo"\nprompts = {prompts}\ngroup = {group}\nepochs = {epochs}\nkl_coef = 0.04\nreward = "command"\ncommand = ["{sys.executable}", "{judge}"]\n'
                     f'[rollout]\nmax_tokens = 16\n[optim]\nlr = {lr}\nschedule = "constant"\nclip = 0.0\nbeta2 = 0.95\n[run]\nname = "grpo"\nsteps = {steps}\nsave_every = 0\nverify_tokens = 0\n')
    out = train(binary, shape, scratch / "grpo")
    answers = [json.loads(x) for x in (out / "rollouts.jsonl").read_text().splitlines()]
    assert len(answers) == steps * prompts * group
    updates = [u for x in (out / "metrics.jsonl").read_text().splitlines() for u in json.loads(x).get("by_update", [])]

    class Recorder(trl.GRPOTrainer):
        seen, advantages = [], []

        def _compute_loss(self, model, inputs):
            loss = super()._compute_loss(model, inputs)
            self.seen.append(loss.item())
            self.advantages.append(inputs["advantages"].tolist())
            return loss

    def rollout(asked, trainer):  # prompts are the numbers of answers
        of = [answers[int(a)] for a in asked]
        return {"prompt_ids": [a["prompt_ids"] for a in of], "completion_ids": [a["ids"] for a in of], "logprobs": [a["logprobs"] for a in of], "reward": [a["reward"] for a in of]}

    args = trl.GRPOConfig(output_dir=str(scratch / "trl-grpo"), learning_rate=lr, lr_scheduler_type="constant", warmup_steps=0, max_grad_norm=0, weight_decay=0.0, adam_beta1=0.9, adam_beta2=0.95,
                          adam_epsilon=1e-8, max_steps=steps * epochs, report_to=[], save_strategy="no", disable_tqdm=True, use_cpu=True, bf16=False, gradient_checkpointing=False, seed=1,
                          per_device_train_batch_size=prompts * group, num_generations=group, num_iterations=epochs, steps_per_generation=1, beta=0.04, epsilon=0.2, loss_type="grpo", use_bias_correction_kl=False,
                          scale_rewards="group", shuffle_dataset=False, max_completion_length=16, disable_dropout=True)
    # one line for each group: TRL repeats it for the group, and the recorder deals the answers out
    groups = datasets.Dataset.from_list([{"prompt": str(i)} for i in range(0, len(answers), group)])

    def dealt(asked, trainer):
        return rollout([int(a) + i % group for i, a in enumerate(asked)], trainer)

    made = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    made.router_aux_loss_coef = made.config.router_aux_loss_coef = 0.0
    made.config.output_router_logits = False
    trainer = Recorder(model=made, args=args, train_dataset=groups, processing_class=transformers.AutoTokenizer.from_pretrained(folder), rollout_func=dealt,
                       reward_funcs=lambda completions, reward, **_: reward)
    trainer.train()
    mine, seen = [u["loss"] for u in updates], Recorder.seen
    advantages = [sorted(a["advantage"] for a in answers[i:i + prompts * group]) for i in range(0, len(answers), prompts * group)]  # TRL shuffles those of a step
    report(f"grpo: {len(answers)} advantages", max(abs(a - b) for x, y in zip(Recorder.advantages[::epochs], advantages) for a, b in zip(sorted(x), y)), 1e-5)
    clipped = max(u["clip_fraction"] for u in updates)
    report(f"grpo: {len(mine)} updates from {mine[0]:.5f} to {mine[-1]:.5f}, up to {clipped:.2f} of ratios clipped, trl {trl.__version__}",
           max(abs(a - b) / max(1, abs(b)) for a, b in zip(mine, seen)) if len(mine) == len(seen) == steps * epochs and clipped > 0 else 1.0, 1e-5)


def main():
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    binary, only = str(pathlib.Path(sys.argv[1]).resolve()), sys.argv[2:]
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        folder = base(binary, scratch)
        for part in (stages, exports, template, losses, grpo):
            if not only or part.__name__ in only:
                part(binary, scratch, *([folder] if part is not exports else []))
    print(f"{failures} failures; transformers {transformers.__version__}, peft {peft.__version__}, torch {torch.__version__}")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()

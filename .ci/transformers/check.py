"""Holds what lockstep writes against transformers and PEFT: folders, tokenizers, templates, log-probabilities, greedy text and adapters, both ways.

usage: check.py LOCKSTEP [FAMILY...]      (after setup.sh: .venv/bin/python .ci/transformers/check.py ./lockstep)
Run by hand; prints the largest difference of every case and exits 1 if one is too large.
"""
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import peft
import safetensors.torch
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2]


def settings(family, **config):
    config = dict(num_hidden_layers=2, hidden_size=64) | config
    return [f"model.family={family}"] + [f"model.config.{k}={json.dumps(v)}" for k, v in config.items()]


DELTA = dict(layer_types=["linear_attention", "full_attention"], linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16)
LATENT = dict(q_lora_rank=48, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16, num_experts=4, n_routed_experts=4, n_group=1, topk_group=1,
              moe_intermediate_size=48, intermediate_size=160, first_k_dense_replace=1, num_key_value_heads=4, head_dim=8, tie_word_embeddings=False)
FAMILIES = {
    "qwen3": settings("qwen3", num_hidden_layers=3, intermediate_size=160),
    "qwen3_moe": settings("qwen3_moe", num_experts=4, moe_intermediate_size=48),
    "llama": settings("llama", intermediate_size=160, attention_bias=True, mlp_bias=True),
    "glm4_moe": settings("glm4_moe", n_routed_experts=4, n_group=2, topk_group=1, moe_intermediate_size=48, attention_bias=True, use_qk_norm=True),
    "minimax_m2": settings("minimax_m2", num_experts=4, num_local_experts=4, intermediate_size=48),
    "gpt_oss": settings("gpt_oss", num_experts=4, num_local_experts=4, intermediate_size=48, attention_bias=True, sliding_window=16),
    "qwen3_5_text": settings("qwen3_5_text", intermediate_size=160, **DELTA),
    "qwen3_5_moe_text": settings("qwen3_5_moe_text", num_experts=4, moe_intermediate_size=48, shared_expert_intermediate_size=48, **DELTA),
    "qwen3_next": settings("qwen3_next", num_experts=4, moe_intermediate_size=48, shared_expert_intermediate_size=48, norm_topk_prob=True, **DELTA),
    "deepseek_v3": settings("deepseek_v3", **LATENT),
    "glm4_moe_lite": settings("glm4_moe_lite", mlp_layer_types=["dense", "sparse"], **LATENT),
    "glm_moe_dsa": settings("glm_moe_dsa", index_n_heads=16, index_head_dim=16, index_topk=16, indexer_types=["full", "shared"], mlp_layer_types=["dense", "sparse"], **LATENT),
    # The reference clamps steps below at time_step_min, which is 0.001, whatever the limit.
    "nemotron_h": settings("nemotron_h", layers_block_type=["mamba", "moe", "attention", "mlp"], mamba_num_heads=4, mamba_head_dim=16, ssm_state_size=16, n_groups=2,
                           n_routed_experts=4, moe_intermediate_size=48, moe_shared_expert_intermediate_size=48, intermediate_size=160, tie_word_embeddings=False,
                           time_step_limit=[0.001, 1000.5]),
}
MIXTURES = {"deepseek_v3", "glm4_moe_lite", "glm_moe_dsa", "qwen3_moe", "glm4_moe", "minimax_m2", "gpt_oss", "qwen3_5_moe_text", "qwen3_next"}
BOUND = {"fp32": 2e-4, "bf16": 0.1}  # bf16: transformers rounds in other places than the definition; a tenth of a nat is a few roundings of logits
DTYPE = {"fp32": torch.float32, "bf16": torch.bfloat16}
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
LATENTS = {"deepseek_v3", "glm4_moe_lite", "glm_moe_dsa"}
LATENT_ATTENTION = ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]
NAMES = ["gate_proj", "up_proj", "down_proj"]  # as people write them: experts too
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]

failures = 0


def report(name, difference, bound=0.0):
    global failures
    bad = not difference <= bound
    failures += bad
    print(f"{'FAILED' if bad else 'ok':6}  {difference:<12.3g} of at most {bound:<8.3g} {name}", flush=True)


class Lockstep:
    def __init__(self, binary, scratch):
        self.binary, self.scratch = str(pathlib.Path(binary).resolve()), scratch

    def run(self, *args):
        done = subprocess.run([self.binary, *map(str, args)], cwd=self.scratch, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"lockstep {' '.join(map(str, args))}: {done.stderr}")

    def train(self, name, shape, *settings):
        settings = ["run.steps=3", "run.save_every=0", "optim.warmup_steps=0", "optim.warmup_ratio=0", "run.verify_tokens=0", *settings]
        self.run("train", ROOT / "configs" / shape, "--out", self.scratch / name, *(f"--set={s}" for s in settings))
        return self.scratch / name

    def lines(self, command, inputs, *args):
        (self.scratch / "in.jsonl").write_text("".join(json.dumps(x) + "\n" for x in inputs))
        self.run(command, "--in", "in.jsonl", "--out", "out", *args)
        return self.scratch / "out"

    def score(self, sequences, *args):
        out = safetensors.torch.load_file(self.lines("score", [{"ids": s} for s in sequences], *args))
        return [out[f"logprobs.{i}"] for i in range(len(sequences))]

    def jsonl(self, command, inputs, *args):
        return [json.loads(line) for line in self.lines(command, inputs, *args).read_text().splitlines()]


def theirs(model, sequences):
    with torch.no_grad():
        for s in sequences:
            logits = model(torch.tensor([s])).logits[0].float().log_softmax(-1)
            yield logits[torch.arange(len(s) - 1), torch.tensor(s[1:])]


def largest(ours, other):
    return max((a - b).abs().max().item() for a, b in zip(ours, other))


def most(ours, other):
    """Of nine tokens in ten: in bf16 a flipped expert moves the others by half a nat, theirs against their own fp32 too (the goldens hold both)."""
    return torch.cat([(a - b).abs() for a, b in zip(ours, other)]).quantile(0.9).item()


def load(folder, dtype):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPE[dtype], output_loading_info=True, attn_implementation="eager")
    left = {k: v for k, v in info.items() if v}
    report(f"{folder.parent.name}: keys missing or unexpected {left or ''}", len(left))
    return model.eval()


def texts(rng):
    pool = "abc XYZ 012 345\n\t(){}+-*/=<>|_éßλ中文🙂 <|im_start|> <|im_end|>"
    return ["", " ", "12 + 7 = 19", "numbers 3 14 25 target 99"] + ["".join(rng.choices(pool, k=rng.randint(1, 60))) for _ in range(300)]


def check_text(lockstep, folder, rng):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = texts(rng)
    ours = lockstep.jsonl("tokenize", [{"text": t} for t in inputs], "--model", folder)
    wrong = sum(o["ids"] != tokenizer(t, add_special_tokens=False)["input_ids"] for o, t in zip(ours, inputs))
    report(f"{folder.parent.name}: tokenizer, {len(inputs)} texts", wrong)
    back = lockstep.jsonl("tokenize", [{"ids": o["ids"]} for o in ours], "--model", folder, "--decode")
    report(f"{folder.parent.name}: and back", sum(b["text"] != tokenizer.decode(o["ids"]) for b, o in zip(back, ours)))
    return tokenizer


def check_template(lockstep, folder, tokenizer, model):
    chats = [[{"role": "user", "content": "Reach 24 from 2, 3 and 4."}],
             [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}, {"role": "user", "content": "3"}]]
    ours = lockstep.jsonl("generate", [{"messages": c} for c in chats], "--model", folder, "--max-tokens", 12, "--ignore-eos")
    wrong = 0
    for o, chat in zip(ours, chats):
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)["input_ids"]
        made = model.generate(ids, max_new_tokens=12, min_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0)
        wrong += made[0, ids.shape[1]:].tolist() != o["ids"]
    report(f"{folder.parent.name}: chat template and greedy text", wrong)


def check_full(lockstep, family, dtype, rng):
    folder = lockstep.train(f"{family}-{dtype}", "countdown-sft.toml", f"model.dtype={dtype}", "run.eval_every=0", "data.eval_samples=2", *FAMILIES[family]) / "model"
    model = load(folder, dtype)
    written = safetensors.torch.load_file(folder / "model.safetensors")
    written = next(w for name, w in written.items() if "embed" in name).dtype
    report(f"{folder.parent.name}: storage is {dtype}", int(written != DTYPE[dtype]))
    sequences = [[rng.randrange(model.config.vocab_size) for _ in range(n)] for n in (2, 17, 64, 200)]
    apart = most if dtype == "bf16" and family in LATENTS else largest
    report(f"{folder.parent.name}: log-probs", apart(lockstep.score(sequences, "--model", folder, "--dtype", dtype), theirs(model, sequences)), BOUND[dtype])
    if dtype == "fp32":
        tokenizer = check_text(lockstep, folder, rng)
        check_template(lockstep, folder, tokenizer, model)
        shards = lockstep.scratch / f"{family}-shards"
        model.save_pretrained(shards, max_shard_size="100KB")
        count = len(list(shards.glob("*.safetensors")))
        report(f"{folder.parent.name}: saved again by transformers in {count} shards", largest(lockstep.score(sequences, "--model", shards), theirs(model, sequences)), BOUND[dtype])
    return folder, sequences


def check_adapter(lockstep, base, sequences, name, lora):
    """An adapter that lockstep trains, loaded by PEFT."""
    chats = [{"messages": [{"role": "user", "content": f"{n} and {n}?"}, {"role": "assistant", "content": str(2 * n)}]} for n in range(50)]
    (lockstep.scratch / "chats.jsonl").write_text("".join(json.dumps(c) + "\n" for c in chats))
    settings = [f"model.path={base}", "model.dtype=fp32", f"data.path={lockstep.scratch / 'chats.jsonl'}", "data.pack_rows=128", "run.epochs=0", "run.packs=2", "optim.lr=0.01"]
    made = lockstep.train(name, "qwen3-lora.toml", *settings, *lora) / "adapter"
    model = peft.PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager"), made).eval()
    plain = lockstep.score(sequences, "--model", base)
    ours = lockstep.score(sequences, "--model", base, "--adapter", made)
    report(f"{name}: log-probs by PEFT", largest(ours, theirs(model, sequences)), BOUND["fp32"])
    report(f"{name}: the adapter does something", int(largest(ours, plain) < 1e-3))


def check_foreign(lockstep, base, sequences, name, config):
    """An adapter that PEFT writes, with B drawn at random, loaded by lockstep."""
    torch.manual_seed(3)
    model = peft.get_peft_model(transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager"), config).eval()
    with torch.no_grad():
        for n, p in model.named_parameters():
            if "lora_" in n:
                p.normal_(0, 0.1)
    model.save_pretrained(lockstep.scratch / name)
    ours = lockstep.score(sequences, "--model", base, "--adapter", lockstep.scratch / name)
    report(f"{name}: log-probs", largest(ours, theirs(model, sequences)), BOUND["fp32"])
    report(f"{name}: the adapter does something", int(largest(ours, lockstep.score(sequences, "--model", base)) < 1e-3))


def main():
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    rng = random.Random(1)
    with tempfile.TemporaryDirectory() as scratch:
        lockstep = Lockstep(sys.argv[1], pathlib.Path(scratch))
        for family in sys.argv[2:] or FAMILIES:
            check_full(lockstep, family, "bf16", rng)
            base, sequences = check_full(lockstep, family, "fp32", rng)
            targets = LATENT_ATTENTION if family in LATENTS else ATTENTION
            check_adapter(lockstep, base, sequences, f"{family}-lora", [f"lora.targets={json.dumps(targets)}"])
            check_foreign(lockstep, base, sequences, f"{family}-peft", peft.LoraConfig(r=3, lora_alpha=7, target_modules=targets, task_type="CAUSAL_LM"))
            check_adapter(lockstep, base, sequences, f"{family}-lora-all-linear", ["lora.targets=all-linear"])
            if family in MIXTURES:
                check_adapter(lockstep, base, sequences, f"{family}-lora-names", [f"lora.targets={json.dumps(NAMES)}"])
                check_adapter(lockstep, base, sequences, f"{family}-lora-experts", [f"lora.targets={json.dumps(targets)}", f"lora.target_parameters={EXPERTS}"])
                config = peft.LoraConfig(r=3, lora_alpha=7, target_modules=targets[:1], target_parameters=EXPERTS, task_type="CAUSAL_LM")
                check_foreign(lockstep, base, sequences, f"{family}-peft-experts", config)
    print(f"{failures} failures; transformers {transformers.__version__}, peft {peft.__version__}, torch {torch.__version__}")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()

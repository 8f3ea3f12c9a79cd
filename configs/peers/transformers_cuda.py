"""The workloads of `lockstep bench cuda` with transformers on a GPU: fine-tuning in bf16 with fused AdamW, full or with PEFT's LoRA, forward only, greedy generation.

usage: transformers_cuda.py FOLDER PACKS ROWS STEPS SEQUENCES PROMPT TOKENS RANK TARGETS RECOMPUTE WEIGHTS     FOLDER holds config.json; weights are random; rank 0: full;
TARGETS are modules with commas between; RECOMPUTE is "full", "none", or "auto": activations are checkpointed where a step fails without; WEIGHTS are "bf16", or "nf4" for QLoRA: projections by Linear4bit of bitsandbytes, experts by its parametrization. What cannot run is a line with the problem. Names that transformers has not for a network that it has: see CLASSES.
"""
import json
import sys
import time

import peft
import torch
import transformers


CLASSES = {"kimi_k2": "deepseek_v3"}


def read_config(folder):
    with open(folder + "/config.json") as f:
        fields = json.load(f)
    kind = fields.pop("model_type")
    return transformers.AutoConfig.for_model(CLASSES.get(kind, kind), **fields)


def rate(turns, turn):
    turn()
    torch.cuda.synchronize()
    start, tokens = time.perf_counter(), 0
    for _ in range(turns):
        tokens += turn()
    torch.cuda.synchronize()
    return tokens / (time.perf_counter() - start)


def report(name, workload):
    torch.cuda.reset_peak_memory_stats()
    try:
        said = dict(tokens_per_second=workload())
    except (RuntimeError, ImportError, NotImplementedError) as e:
        said = dict(problem=f"{type(e).__name__}: {e}".splitlines()[0][:160])
    print(json.dumps(dict(name=name, memory=torch.cuda.max_memory_allocated()) | said), flush=True)


def quantize(model):
    """Puts projections and experts into NF4, one after the other; the head, routers and norms stay."""
    import bitsandbytes
    from bitsandbytes.nn.parametrize import replace_parameter_4bit

    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, torch.nn.Linear) and name != "lm_head":
                with torch.device("meta"):
                    linear = bitsandbytes.nn.Linear4bit(child.in_features, child.out_features, bias=child.bias is not None, compute_dtype=torch.bfloat16, compress_statistics=False, quant_type="nf4")
                linear.weight = bitsandbytes.nn.Params4bit(child.weight.data, requires_grad=False, compress_statistics=False, quant_type="nf4", module=linear).to(child.weight.device)
                linear.bias = child.bias
                setattr(module, name, linear)
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter.ndim == 3:
                replace_parameter_4bit(module, name, quant_type="nf4")
    model.is_loaded_in_4bit = True  # what PEFT asks for
    torch.cuda.empty_cache()


def main():
    folder, (packs, rows, steps, sequences, prompt, new, rank) = sys.argv[1], map(int, sys.argv[2:9])
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    config = read_config(folder)
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa", experts_implementation="grouped_mm")
    if sys.argv[11] == "nf4":
        try:
            quantize(model)
        except (RuntimeError, ImportError, NotImplementedError) as e:
            for name in ("train", "forward", "decode"):
                print(json.dumps(dict(name=name, problem=f"{type(e).__name__}: {e}".splitlines()[0][:160])), flush=True)
            return
    if rank:
        config_of_adapter = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=sys.argv[9].split(","), task_type="CAUSAL_LM")
        model = peft.get_peft_model(model, config_of_adapter)

    def recompute():
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=dict(use_reentrant=False))
        if rank:
            model.enable_input_require_grads()

    if sys.argv[10] == "full":
        recompute()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, fused=True)
    ids = torch.randint(config.vocab_size, (packs, rows), device="cuda")

    def train():
        model.train()
        model(ids, labels=ids, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return ids.numel()

    def forward():
        with torch.no_grad():
            for row in ids:
                model(row[None], labels=row[None], use_cache=False).loss.item()
        return ids.numel()

    def generate():
        with torch.no_grad():
            model.generate(ids[0, :prompt].repeat(sequences, 1), max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=0)
        return sequences * new

    def fits():
        try:
            train()
            return True
        except torch.cuda.OutOfMemoryError:
            optimizer.zero_grad()
            return False

    if sys.argv[10] == "auto" and not fits():
        torch.cuda.empty_cache()
        recompute()
    report("train", lambda: rate(steps, train))
    model.eval()
    report("forward", lambda: rate(steps, forward))
    report("decode", lambda: rate(1, generate))


if __name__ == "__main__":
    main()

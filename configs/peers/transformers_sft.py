"""Trains the batches of `lockstep bench cpu` with transformers and torch's AdamW, for comparison.

usage: transformers_sft.py FOLDER DTYPE THREADS WARMUP
FOLDER holds the initial model (Hugging Face layout) and batches.jsonl, an optimizer step a line. Every way of laying out a batch and of computing
experts that this transformers offers is tried; each prints a line of JSON: tokens of samples a second (padding not counted), the last loss, peak memory.
"""
import itertools
import json
import multiprocessing
import pathlib
import resource
import sys
import time

ATTENTION = ["sdpa", "eager"]
EXPERTS = ["grouped_mm", "eager"]  # batched_mm copies the weights for each token: tens of gigabytes here
LAYOUTS = ["packed", "padded", "padded by length"]
PACK = 1024  # rows of a packed line at most
PARTS = 4  # of a step, when samples are sorted by length


def packed(samples):
    """Samples end to end in lines of PACK rows; attention within each sample only."""
    import torch

    lines, line = [], []
    for ids, targets in samples:
        if line and sum(len(i) for i, _ in line) + len(ids) > PACK:
            lines, line = lines + [line], []
        line.append((ids, targets))
    lines.append(line)
    rows = max(sum(len(i) for i, _ in line) for line in lines)
    ids = torch.zeros(len(lines), rows, dtype=torch.long)
    targets = torch.full((len(lines), rows), -1)
    positions = torch.zeros(len(lines), rows, dtype=torch.long)
    owner = torch.full((len(lines), rows), -1)
    for b, line in enumerate(lines):
        at = 0
        for n, (i, t) in enumerate(line):
            end = at + len(i)
            ids[b, at:end], targets[b, at:end] = torch.tensor(i), torch.tensor(t)
            positions[b, at:end], owner[b, at:end] = torch.arange(len(i)), n
            at = end
    mask = (owner[:, None, :, None] == owner[:, None, None, :]) & torch.ones(rows, rows, dtype=torch.bool).tril()
    return [dict(input_ids=ids, position_ids=positions, attention_mask=mask, targets=targets)]


def padded(samples):
    """One sample a line, filled up to the longest."""
    import torch

    rows = max(len(i) for i, _ in samples)
    ids = torch.zeros(len(samples), rows, dtype=torch.long)
    targets = torch.full((len(samples), rows), -1)
    mask = torch.zeros(len(samples), rows, dtype=torch.long)
    for b, (i, t) in enumerate(samples):
        ids[b, : len(i)], targets[b, : len(i)], mask[b, : len(i)] = torch.tensor(i), torch.tensor(t), 1
    return [dict(input_ids=ids, attention_mask=mask, targets=targets)]


def by_length(samples):
    """Padded, in parts of samples of like lengths."""
    ordered = sorted(samples, key=lambda s: len(s[0]))
    size = -(-len(ordered) // PARTS)
    return [part for at in range(0, len(ordered), size) for part in padded(ordered[at : at + size])]


def train(folder, dtype, threads, warmup, attention, experts, layout):
    import torch
    import transformers

    torch.set_num_threads(threads)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    options = dict(attn_implementation=attention, dtype={"fp32": torch.float32, "bf16": torch.bfloat16}[dtype])
    if experts:
        options["experts_implementation"] = experts
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, **options)
    model.train()
    steps = [json.loads(line) for line in open(pathlib.Path(folder) / "batches.jsonl")]
    adam = steps[0]["adam"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, betas=adam["betas"], eps=adam["eps"], weight_decay=adam["weight_decay"], fused=True)
    lay = {"packed": packed, "padded": padded, "padded by length": by_length}[layout]
    parts = [lay(step["samples"]) for step in steps]  # not in the time, as a loader's workers would
    tokens = 0
    for n, (step, batch) in enumerate(zip(steps, parts)):
        if n == warmup:
            began = time.perf_counter()
        wanted = sum((part["targets"] >= 0).sum().item() for part in batch)
        loss = 0.0
        for part in batch:
            inputs = {k: v for k, v in part.items() if k != "targets"}
            if layout == "packed" and attention == "eager":
                inputs["attention_mask"] = torch.zeros(inputs["attention_mask"].shape, dtype=model.dtype).masked_fill(~inputs["attention_mask"], torch.finfo(model.dtype).min)
            logits = model(**inputs, use_cache=False).logits.float()
            l = torch.nn.functional.cross_entropy(logits.flatten(0, 1), part["targets"].flatten(), ignore_index=-1, reduction="sum") / wanted
            l.backward()
            loss += l.item()
        if adam["clip"]:
            torch.nn.utils.clip_grad_norm_(model.parameters(), adam["clip"])
        for group in optimizer.param_groups:
            group["lr"] = step["lr"]
        optimizer.step()
        optimizer.zero_grad()
        if n >= warmup:
            tokens += sum(len(ids) for ids, _ in step["samples"])
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    name = f"transformers {transformers.__version__}, torch {torch.__version__}: {layout}, {attention}" + (f", experts {experts}" if experts else "")
    return dict(name=name, tokens_per_second=tokens / seconds, loss=loss, peak_bytes=peak)


def attempt(pipe, *args):
    try:
        pipe.send(train(*args))
    except Exception as e:  # this way is not offered for this model on this device
        pipe.send(f"{type(e).__name__}: {e}")


def main():
    folder, dtype, threads, warmup = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    config = json.load(open(pathlib.Path(folder) / "config.json"))
    experts = EXPERTS if "num_experts" in config else [None]
    shown, problems = 0, []
    context = multiprocessing.get_context("fork")  # a process each: peaks of memory of their own
    for way in itertools.product(ATTENTION, experts, LAYOUTS):
        ours, theirs = context.Pipe()
        process = context.Process(target=attempt, args=(theirs, folder, dtype, threads, warmup, *way))
        process.start()
        theirs.close()  # the child's alone now: if it dies, recv ends
        try:
            result = ours.recv()
        except EOFError:
            result = "it died"
        process.join()
        if isinstance(result, dict):
            print(json.dumps(result), flush=True)
            shown += 1
        else:
            problems.append(f"{way}: {result}")
    print("\n".join(problems), file=sys.stderr)
    if not shown:
        sys.exit("no way of training worked: " + problems[-1])


if __name__ == "__main__":
    main()

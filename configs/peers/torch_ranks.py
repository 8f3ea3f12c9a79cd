"""What torch does on several ranks, a process each: exchanges by NCCL (gloo on the CPU), and training steps of transformers with FSDP2.

usage: torch_ranks.py exchange cpu|cuda RANKS SECONDS MIB,...
           prints a JSON object for each size and exchange: name, mib that each rank receives from others, bytes a second that it does
       torch_ranks.py train cpu|cuda RANKS FOLDER fp32|bf16 PACKS ROWS STEPS RANK TARGETS RECOMPUTE
           prints a JSON object for one rank and one for RANKS: ranks, tokens a second of all, the way that was taken, or the problem of the last one tried. FOLDER holds
           config.json; weights are random; PACKS of a step, which the ranks share; RANK 0: full, else of PEFT's LoRA on TARGETS; RECOMPUTE is "full", "none" or "auto"
"""
import itertools
import json
import multiprocessing
import multiprocessing.connection
import os
import sys
import tempfile
import threading
import time

import torch
import torch.distributed

CLASSES = {"kimi_k2": "deepseek_v3"}  # names that transformers has not for a network that it has
DTYPES = dict(fp32=torch.float32, bf16=torch.bfloat16)


def report(**fields):
    print(json.dumps(fields), flush=True)


def follow(parent):
    """Ends this process with the one that started it."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


def member(pipe, folder, device, rank, ranks, run, args):
    threading.Thread(target=follow, args=(multiprocessing.parent_process().pid,), daemon=True).start()
    try:
        if device == "cuda":
            torch.cuda.set_device(rank)
        torch.set_num_threads(max(1, os.cpu_count() // ranks))
        if ranks > 1:
            backend, own = dict(cpu=("gloo", None), cuda=("nccl", torch.device("cuda", rank)))[device]
            torch.distributed.init_process_group(backend, f"file://{folder}/store", rank=rank, world_size=ranks, device_id=own)
        pipe.send((run(device, rank, ranks, *args), None))
    except Exception as e:
        lines = str(e).strip().split("\n")
        pipe.send((None, f"{type(e).__name__}: {lines[0]}"))
    threading.Event().wait()  # for launch to end this process: other ranks may still need it


def launch(device, ranks, run, *args):
    """Runs run(device, rank, ranks, *args) in a process each and returns what that of rank 0 returns, and the problem of the first that failed."""
    context = multiprocessing.get_context("fork")  # the script is standard input: a spawned process could not read it
    result, problem = None, None
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = {}, []
        for rank in range(ranks):
            ours, theirs = context.Pipe()
            processes.append(context.Process(target=member, args=(theirs, folder, device, rank, ranks, run, args)))
            processes[-1].start()
            theirs.close()
            pipes[ours] = rank
        while pipes and not problem:
            for pipe in multiprocessing.connection.wait(list(pipes)):
                rank = pipes.pop(pipe)
                try:
                    value, wrong = pipe.recv()
                except EOFError:
                    value, wrong = None, f"rank {rank} died"
                problem = problem or wrong
                if rank == 0:
                    result = value
        for p in processes:
            p.kill()
            p.join()
    return result, problem


def wait(device, ranks):
    if device == "cuda":
        torch.cuda.synchronize()
    if ranks > 1:
        torch.distributed.barrier()


def exchanges(device, rank, ranks, seconds, sizes):
    rows = []
    for mib in sizes:
        block = (mib << 20) // (ranks - 1) // 4  # numbers that a rank sends to each
        part, full = torch.zeros(block, device=device), torch.zeros(ranks * block, device=device)
        blocks = torch.zeros_like(full)
        for name, call in (
            ("all-gather", lambda: torch.distributed.all_gather_into_tensor(full, part)),
            ("all-to-all", lambda: torch.distributed.all_to_all_single(full, blocks)),
        ):
            rows.append(dict(name=name, mib=mib, bytes_per_second=(mib << 20) / time_call(device, ranks, call, seconds)))
    return rows


def time_call(device, ranks, call, seconds):
    """Seconds of a call, of so many that they take the time given."""
    call()
    calls = 1
    while True:
        wait(device, ranks)
        start = time.perf_counter()
        for _ in range(calls):
            call()
        wait(device, ranks)
        took = torch.tensor(time.perf_counter() - start, device=device)
        torch.distributed.broadcast(took, 0)  # all must agree whether it was enough
        if took.item() >= seconds:
            return took.item() / calls
        calls *= 2


def build(device, folder, dtype, lora, targets):
    import transformers

    transformers.logging.set_verbosity_error()
    with open(folder + "/config.json") as f:
        fields = json.load(f)
    kind = fields.pop("model_type")
    config = transformers.AutoConfig.for_model(CLASSES.get(kind, kind), **fields)
    options = dict(experts_implementation="grouped_mm") if any("experts" in key for key in fields) else {}
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=DTYPES[dtype], attn_implementation="sdpa", **options)
    blocks = set(model._no_split_modules)
    if lora:
        import peft

        model = peft.get_peft_model(model, peft.LoraConfig(r=lora, lora_alpha=2 * lora, target_modules=targets.split(","), task_type="CAUSAL_LM"))
    return model, config, blocks


def shard(model, blocks, reshard):
    """Cuts the weights of each block, and those outside of blocks, over all ranks."""
    from torch.distributed.fsdp import fully_shard

    for module in model.modules():
        if type(module).__name__ in blocks:
            fully_shard(module, reshard_after_forward=reshard)
    fully_shard(model, reshard_after_forward=reshard)


def steps_a_second(device, rank, ranks, folder, dtype, packs, rows, steps, lora, targets, micro, recompute, reshard):
    """Optimizer steps a second. A rank takes its packs of a step in micro-batches of so many."""
    torch.manual_seed(rank)
    model, config, blocks = build(device, folder, dtype, lora, targets)
    if recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=dict(use_reentrant=False))
        if lora:
            model.enable_input_require_grads()
    if ranks > 1:
        shard(model, blocks, reshard)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-6, fused=True)
    ids = torch.randint(config.vocab_size, (packs // ranks, rows), device=device)
    model.train()

    def step():
        parts = ids.split(micro)
        for part in parts:
            (model(part, labels=part, use_cache=False).loss / len(parts)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    step()
    wait(device, ranks)
    start = time.perf_counter()
    for _ in range(steps):
        step()
    wait(device, ranks)
    return steps / (time.perf_counter() - start)


def train(device, most, folder, dtype, packs, rows, steps, lora, targets, recompute):
    """The first way that works is taken, those that take the least time before others."""
    checkpoints = dict(full=[True], none=[False], auto=[False, True])[recompute]
    for ranks in (1, most):
        for checkpoint, micro, reshard in itertools.product(checkpoints, sorted({packs // most, 1}, reverse=True), [False, True] if ranks > 1 else [False]):
            speed, problem = launch(device, ranks, steps_a_second, folder, dtype, packs, rows, steps, lora, targets, micro, checkpoint, reshard)
            if not problem:
                break
        way = [f"micro-batches of {micro}"] + ["activations checkpointed"] * checkpoint + ["resharded after forward"] * reshard
        if problem:
            report(ranks=ranks, problem=problem)
        else:
            report(ranks=ranks, tokens_per_second=speed * packs * rows, way=", ".join(way))


def main():
    what, device, ranks = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if what == "exchange":
        rows, problem = launch(device, ranks, exchanges, float(sys.argv[4]), [int(n) for n in sys.argv[5].split(",")])
        if problem:
            sys.exit(problem)
        for row in rows:
            report(**row)
    else:
        folder, dtype, (packs, rows, steps, lora) = sys.argv[4], sys.argv[5], map(int, sys.argv[6:10])
        train(device, ranks, folder, dtype, packs, rows, steps, lora, sys.argv[10], sys.argv[11])


if __name__ == "__main__":
    main()

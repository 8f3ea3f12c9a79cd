"""The requests of `lockstep bench rollout` with transformers' generate: static batches of as many sequences as the engine has slots, those of like length together, padded on
the left. Tokens beyond what a request asked for do not count.

usage: transformers_rollout.py FOLDER fp32|bf16 cpu|cuda THREADS SLOTS     FOLDER holds config.json and requests.jsonl; weights are random; 0 threads: all cores
"""
import json
import os
import sys
import time

import torch
import transformers


def main():
    folder, dtype, device, threads, slots = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
    torch.set_num_threads(threads or os.cpu_count())
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(folder)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dict(fp32=torch.float32, bf16=torch.bfloat16)[dtype], attn_implementation="sdpa")
    model.eval()
    with open(f"{folder}/requests.jsonl") as f:
        requests = sorted((json.loads(line) for line in f), key=lambda q: q["new"])

    def generate(batch, new):
        longest = max(len(q["ids"]) for q in batch)
        pad = [[0] * (longest - len(q["ids"])) for q in batch]
        ids = torch.tensor([p + q["ids"] for p, q in zip(pad, batch)], device=device)
        mask = torch.tensor([p + [1] * len(q["ids"]) for p, q in zip(pad, batch)], device=device)
        with torch.no_grad():
            out = model.generate(ids, attention_mask=mask, max_new_tokens=new, min_new_tokens=new, do_sample=True, top_k=0, pad_token_id=0)
        return out[:, -1].tolist()  # waits

    generate(requests[:slots], 4)
    start = time.perf_counter()
    for at in range(0, len(requests), slots):
        batch = requests[at : at + slots]
        generate(batch, batch[-1]["new"])
    seconds = time.perf_counter() - start
    print(json.dumps(dict(name=f"transformers generate, batches of {slots}", tokens_per_second=sum(q["new"] for q in requests) / seconds)))


if __name__ == "__main__":
    main()

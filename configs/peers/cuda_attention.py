"""Times torch's scaled_dot_product_attention on the shapes of kernels/cuda/bench/attention.go: causal forward, forward + backward, and decoding.

usage: cuda_attention.py        prints a JSON object for each case: name, seconds
"""
import json
import statistics

import torch
import torch.nn.functional as F

SECONDS, SAMPLES = 0.3, 7
CAUSAL = [(32, 32, 128, 8192), (32, 32, 64, 8192), (32, 8, 128, 8192), (16, 2, 256, 8192), (16, 2, 256, 32768)]  # heads, heads of keys, width, rows
DECODE = [(32, 8, 128, 256, 4096), (32, 8, 64, 256, 4096), (32, 8, 128, 8, 4096)]  # and sequences, keys


def seconds(run):
    """Median seconds of run over samples of many runs each."""

    def sample(reps):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(reps):
            run()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / reps

    sample(3)
    reps = max(1, int(SECONDS / SAMPLES / sample(1)))
    return statistics.median(sample(reps) for _ in range(SAMPLES))


def report(name, seconds):
    print(json.dumps(dict(name=name, seconds=seconds)), flush=True)


def random(*shape, grad=False):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16, requires_grad=grad)


def attention(q, k, v, causal):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])


def causal(heads, kv_heads, width, rows):
    q, k, v = random(1, heads, rows, width, grad=True), random(1, kv_heads, rows, width, grad=True), random(1, kv_heads, rows, width, grad=True)
    grad = random(1, heads, rows, width)
    with torch.no_grad():
        forward = seconds(lambda: attention(q, k, v, True))
    both = seconds(lambda: torch.autograd.grad(attention(q, k, v, True), (q, k, v), grad))
    name = f"attention, {heads} heads of {width} on {kv_heads}, {rows} rows"
    report(name + ", forward", forward)
    report(name + ", forward and backward", both)


@torch.no_grad()
def decode(heads, kv_heads, width, sequences, keys):
    q, k, v = random(sequences, heads, 1, width), random(sequences, kv_heads, keys, width), random(sequences, kv_heads, keys, width)
    t = seconds(lambda: attention(q, k, v, False))
    report(f"attention, {heads} heads of {width} on {kv_heads}, decoding {sequences} sequences of {keys} keys", t)


for case in CAUSAL:
    causal(*case)
for case in DECODE:
    decode(*case)

"""Times products of codes with PyTorch and bitsandbytes.

The cases of kernels/cuda/bench/codes.go: torch._scaled_mm with scales of 1 x 128 and 128 x 128, which is cuBLAS's, and for groups torch._scaled_grouped_mm, which has one scale for each row alone. Dense ones also with one scale for each tensor and with one for each row, which are other products. Those of kernels/cuda/bench/quantized.go: NF4 of bitsandbytes, dequantised, then torch._grouped_mm.

Before that it prints SHA-256 of the fp32 outputs of one product, 64 rows each, on the operands that codes.go draws.

usage: cuda_codes.py        prints a JSON object for the digests, and one for each case: name, and seconds or the problem
"""
import hashlib
import json
import statistics

import torch

CASES = [
    # groups (0: dense), rows, cols, depth
    (0, 4096, 4096, 4096),
    (0, 8192, 8192, 8192),
    (0, 8192, 4096, 7168),
    (0, 64, 4096, 7168),
    (32, 32864, 7168, 4096),
    (32, 32864, 2048, 7168),
    (128, 33216, 1536, 2048),
    (128, 1024, 1536, 2048),
]
QUANTIZED = [
    # op, groups, rows, cols, depth
    ("MatMul", 32, 32864, 7168, 4096),
    ("MatMul", 32, 32864, 2048, 7168),
    ("MatMulT", 32, 32864, 4096, 7168),
    ("MatMulT", 32, 32864, 7168, 2048),
    ("MatMul", 128, 33216, 1536, 2048),
    ("MatMul", 128, 33216, 2048, 768),
    ("MatMulT", 128, 33216, 2048, 1536),
    ("MatMulT", 128, 33216, 768, 2048),
    ("MatMul", 128, 1024, 1536, 2048),
    ("MatMul", 128, 2048, 1536, 2048),
    ("MatMul", 128, 8192, 1536, 2048),
]
DEQUANTIZED = (32, 4096, 2048)
BITS = (4096, 4096, 2048, 64)  # rows, cols, depth, rows of a digest: 16,777,216 outputs
CACHE = 256 << 20  # bytes of weights that no cache holds


def hashed(n, seed):
    v = (torch.arange(n, device="cuda") * 2654435761 + seed) & 0xFFFFFFFF
    v = (v ^ v >> 15) * 2246822519 & 0xFFFFFFFF
    return v ^ v >> 13


def codes(rows, cols, seed):
    """E4M3 numbers, none of them NaN."""
    c = hashed(min(rows * cols, 64 << 20), seed) >> 24
    c = torch.where(c & 0x7F == 0x7F, c - 1, c).to(torch.uint8)
    c = c.repeat(-(-rows * cols // len(c)))[: rows * cols]
    return c.view(torch.float8_e4m3fn).reshape(rows, cols)


def scales(rows, blocks, seed):
    return (0x3C000000 + (hashed(rows * blocks, seed) >> 6)).to(torch.int32).view(torch.float32).reshape(rows, blocks)


def operands(rows, cols, depth):
    """x, weight, and their scales as cuBLAS wants them: those of a block of k side by side."""
    xs, ws = scales(rows, depth // 128, 2), scales(cols // 128, depth // 128, 3)
    return codes(rows, depth, 1), codes(cols, depth, 2).t(), xs.t().contiguous().t(), ws.t()


def product(x, w, xs, ws, out):
    return torch._scaled_mm(x, w, scale_a=xs, scale_b=ws, out_dtype=out)


def offsets(groups, rows):
    """Ends of groups of uneven sizes, those of the Go benchmark."""
    share = torch.tensor([40 + g * 7919 % 61 for g in range(groups)], dtype=torch.int64).cumsum(0)
    return (rows * share // share[-1]).to(torch.int32).cuda()


def prepare(groups, rows, cols, depth):
    copies = -(-CACHE // (max(groups, 1) * cols * depth))
    if groups == 0:
        x, w, xs, ws = operands(rows, cols, depth)
        weights = [w] + [w.t().clone().t() for _ in range(copies - 1)]
        return lambda i: product(x, weights[i % copies], xs, ws, torch.bfloat16)
    x, ends = codes(rows, depth, 1), offsets(groups, rows)
    weights = [codes(groups * cols, depth, 2).reshape(groups, cols, depth).transpose(1, 2) for _ in range(copies)]
    xs, ws = torch.ones(rows, device="cuda"), torch.ones(groups, cols, device="cuda")
    return lambda i: torch._scaled_grouped_mm(
        x, weights[i % copies], xs, ws, offs=ends, out_dtype=torch.bfloat16, use_fast_accum=True
    )


def prepare_scaled(rows, cols, depth, each_row):
    """A product with one scale for each tensor, or for each row of both."""
    x, w = codes(rows, depth, 1), codes(cols, depth, 2)
    xs, ws = (torch.ones(rows, 1), torch.ones(1, cols)) if each_row else (torch.ones(()), torch.ones(()))
    copies = -(-CACHE // (cols * depth))
    weights, xs, ws = [w.clone() for _ in range(copies)], xs.cuda(), ws.cuda()
    return lambda i: product(x, weights[i % copies].t(), xs, ws, torch.bfloat16)


def nf4(*shape):
    """Random weights in NF4, and what dequantises them."""
    import bitsandbytes.functional as bnb

    packed, state = bnb.quantize_4bit(torch.randn(shape, device="cuda", dtype=torch.bfloat16), quant_type="nf4")
    return lambda: bnb.dequantize_4bit(packed, state)


def prepare_nf4(op, groups, rows, cols, depth):
    copies = -(-CACHE // (groups * cols * depth // 2))
    height, width = (cols, depth) if op == "MatMul" else (depth, cols)
    weights = [nf4(groups, height, width) for _ in range(copies)]
    x, ends = torch.randn(rows, depth, device="cuda", dtype=torch.bfloat16), offsets(groups, rows)

    def run(i):
        w = weights[i % copies]()
        return torch._grouped_mm(x, w.transpose(1, 2) if op == "MatMul" else w, offs=ends)

    return run


def seconds(run):
    def sample(reps):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for i in range(reps):
            run(i)
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / reps

    sample(3)
    reps = max(int(0.03 / sample(3)), 3)
    return statistics.median(sample(reps) for _ in range(5))


def digests(rows, cols, depth, band):
    y = product(*operands(rows, cols, depth), torch.float32).cpu().numpy()
    return [hashlib.sha256(y[i : i + band].tobytes()).hexdigest() for i in range(0, rows, band)]


def cases():
    """Names, and what prepares each."""
    for case in CASES:
        groups, rows, cols, depth = case
        name = f"MatMul {rows} x {cols} x {depth}" + (f", {groups} groups" if groups else "")
        yield name + ", FP8 codes", lambda: prepare(*case)
        if not groups:
            yield name + ", FP8 codes, one scale", lambda: prepare_scaled(rows, cols, depth, False)
            yield name + ", FP8 codes, a scale for each row", lambda: prepare_scaled(rows, cols, depth, True)

    def dequantize():
        run = nf4(*DEQUANTIZED)
        return lambda i: run()

    yield "Dequantize, NF4 of bitsandbytes", dequantize
    for case in QUANTIZED:
        op, groups, rows, cols, depth = case
        yield f"{op} {rows} x {cols} x {depth}, {groups} groups, NF4 of bitsandbytes", lambda: prepare_nf4(*case)


def attempt(name, run):
    """Prints what run returns, or what this machine's packages lack for it."""
    try:
        print(json.dumps(dict(name=name) | run()), flush=True)
    except Exception as e:
        print(json.dumps(dict(name=name, problem=f"{type(e).__name__}: {e}".splitlines()[0][:160])), flush=True)
    torch.cuda.empty_cache()


def main():
    attempt("bits", lambda: dict(digests=digests(*BITS)))
    for name, prepare_case in cases():
        attempt(name, lambda: dict(seconds=seconds(prepare_case())))


if __name__ == "__main__":
    main()

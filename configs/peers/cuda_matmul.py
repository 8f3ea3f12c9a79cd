"""Times the matrix products of kernels/cuda/bench/matmul.go with PyTorch: torch.mm, torch._grouped_mm, and torch.matmul for heads, bf16, random normal values.

WeightGrad's peer is mm, grouped_mm or matmul into bf16, which neither reads nor writes fp32 sums.

usage: cuda_matmul.py        prints a JSON object for each case: name, seconds
"""
import json
import statistics

import torch

CASES = [
    # op, groups (0: dense; below 0: heads), rows, cols, depth
    ("MatMul", 0, 4096, 4096, 4096),
    ("MatMul", 0, 8192, 8192, 8192),
    ("MatMulT", 0, 8192, 8192, 8192),
    ("WeightGrad", 0, 8192, 8192, 8192),
    ("MatMul", 32, 32864, 7168, 4096),
    ("MatMul", 32, 32864, 2048, 7168),
    ("MatMul", 128, 33216, 2048, 1536),
    ("MatMul", 128, 33216, 768, 2048),
    ("MatMulT", 32, 32864, 4096, 7168),
    ("MatMulT", 128, 33216, 1536, 2048),
    ("WeightGrad", 32, 7168, 4096, 32864),
    ("WeightGrad", 32, 2048, 7168, 32864),
    ("WeightGrad", 128, 2048, 1536, 33216),
    ("WeightGrad", 128, 768, 2048, 33216),
    ("MatMul", -64, 524288, 256, 512),
    ("MatMulT", -64, 524288, 512, 192),
    ("WeightGrad", -64, 256, 512, 524288),
    ("MatMul", 0, 1, 4096, 2048),
    ("MatMul", 0, 32, 48, 2048),
    ("MatMul", 0, 32, 16, 4096),
    ("MatMul", 0, 32, 5120, 2048),
    ("MatMul", 0, 32, 2048, 4096),
    ("MatMul", 0, 32, 151936, 2048),
    ("MatMul", 0, 64, 14336, 4096),
    ("MatMul", 128, 256, 1536, 2048),
]
CACHE = 256 << 20  # bytes of weights that no cache holds


def random(*shape):
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def offsets(groups, rows):
    """Ends of groups of uneven sizes, those of the Go benchmark."""
    share = torch.tensor([40 + g * 7919 % 61 for g in range(groups)], dtype=torch.int64).cumsum(0)
    return (rows * share // share[-1]).to(torch.int32).cuda()


def prepare_heads(op, heads, rows, cols, depth):
    """Products of each head, of tensors [tokens, heads, columns]."""
    if op == "WeightGrad":
        dy, x = random(depth // heads, heads, rows), random(depth // heads, heads, cols)
        return lambda i: torch.matmul(dy.permute(1, 2, 0), x.transpose(0, 1))
    x = random(rows // heads, heads, depth).transpose(0, 1)
    w = random(heads, cols, depth).transpose(1, 2) if op == "MatMul" else random(heads, depth, cols)
    return lambda i: torch.matmul(x, w)


def prepare(op, groups, rows, cols, depth):
    if groups < 0:
        return prepare_heads(op, -groups, rows, cols, depth)
    if op == "WeightGrad":
        dy, x = random(depth, rows), random(depth, cols)
        if groups == 0:
            return lambda i: torch.mm(dy.t(), x)
        ends = offsets(groups, depth)
        return lambda i: torch._grouped_mm(dy.t(), x, offs=ends)
    x = random(rows, depth)
    shape = (cols, depth) if op == "MatMul" else (depth, cols)
    copies = -(-CACHE // (2 * max(groups, 1) * cols * depth))
    weights = [random(*((groups,) if groups else ()), *shape) for _ in range(copies)]
    if op == "MatMul":
        weights = [w.transpose(-1, -2) for w in weights]
    if groups == 0:
        return lambda i: torch.mm(x, weights[i % copies])
    ends = offsets(groups, rows)
    return lambda i: torch._grouped_mm(x, weights[i % copies], offs=ends)


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


def main():
    for op, groups, rows, cols, depth in CASES:
        case = f"{op} {rows} x {cols} x {depth}" + (f", {-groups} heads" if groups < 0 else f", {groups} groups" if groups else "")
        print(json.dumps(dict(name=case, seconds=seconds(prepare(op, groups, rows, cols, depth)))), flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

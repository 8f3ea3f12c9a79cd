"""Writes golden.safetensors: weights in NF4 as bitsandbytes saves them, each with what it dequantizes them to.

    pip install torch==2.15.0 bitsandbytes==0.50.2 safetensors==0.8.0 numpy==2.4.6 && python make_golden.py

X.weight and the tensors next to it are those of a checkpoint; X.fp32 and X.bf16 are the numbers, by the operation that
bitsandbytes has for any device. Its kernel for CPUs with AVX-512 has others in the case `cut`, where a row is longer
than a block and not a multiple of it: main prints which cases it computes alike.
"""
import bitsandbytes.functional as bnb
import torch
from bitsandbytes.backends.default.ops import _dequantize_4bit_compute
from safetensors.torch import save_file

CASES = {  # name: shape, block, nested
    "plain": ((24, 40), 64, False), "nested": ((96, 96), 32, True), "odd": ((7, 9), 64, False),
    "short": ((6, 100), 128, True), "cut": ((20, 144), 64, True),
}


def main():
    torch.manual_seed(18)
    out = {}
    for name, (shape, block, nested) in CASES.items():
        w = torch.randn(shape) * torch.exp(torch.randn(shape[0], 1))
        packed, state = bnb.quantize_4bit(w, blocksize=block, compress_statistics=nested, quant_type="nf4")
        out[f"{name}.weight"] = packed
        for key, value in state.as_dict(packed=True).items():
            out[f"{name}.weight.{key}"] = value.clone()
        absmax = state.absmax
        if nested:
            absmax = bnb.dequantize_blockwise(absmax, state.state2) + state.offset
        for kind, dtype in ("fp32", torch.float32), ("bf16", torch.bfloat16):
            state.dtype = dtype
            numbers = _dequantize_4bit_compute(packed.reshape(-1), absmax, state.code, block, shape, dtype)
            same = torch.equal(numbers, bnb.dequantize_4bit(packed, state))
            print(f"{name} {kind}: the CPU kernel's numbers are {'the same' if same else 'others'}")
            out[f"{name}.{kind}"] = numbers.contiguous()
    save_file(out, "golden.safetensors", metadata={"format": "pt"})


main()

"""Holds what lockstep opens of NF4 that transformers has saved against bitsandbytes' own dequantisation: every weight,
by value, in bf16.

usage: nf4.py LOCKSTEP      (after setup.sh: .venv/bin/python .ci/transformers/nf4.py ./lockstep)

transformers puts checkpoints of model/testdata into NF4 on the CPU and saves them, and `lockstep export --weights open`
opens them. Weights in codes are dequantised by bitsandbytes' operation for any device: its kernel for CPUs with AVX-512
has other numbers where rows are longer than a block and not whole blocks. Run by hand; exits 1 if a weight differs.
"""
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ.setdefault("TQDM_DISABLE", "1")
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
import bitsandbytes
import safetensors.torch
import torch
import transformers
from bitsandbytes.backends.default.ops import _dequantize_4bit_compute
from bitsandbytes.functional import QuantState, dequantize_blockwise

ROOT = pathlib.Path(__file__).resolve().parents[2]
FAMILIES = ["llama3", "qwen3", "qwen3_moe", "qwen3_5", "glm4_moe"]


def tensors(folder):
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        found |= safetensors.torch.load_file(file)
    return found


def save(family, nested, out):
    asked = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4",
                                            bnb_4bit_use_double_quant=nested, bnb_4bit_compute_dtype=torch.bfloat16)
    model = transformers.AutoModelForCausalLM.from_pretrained(ROOT / "model/testdata" / family, dtype=torch.bfloat16,
                                                              quantization_config=asked, device_map="cpu")
    model.save_pretrained(out)


def dequantised(stored):
    """The numbers of all weights, and how many were in codes."""
    coded = [n for n in stored if n + ".absmax" in stored]
    out = {n: w for n, w in stored.items() if not any(n.startswith(c + ".") for c in coded)}
    for name in coded:
        parts = {n.removeprefix(name + "."): w for n, w in stored.items() if n.startswith(name + ".")}
        state = QuantState.from_dict(parts, torch.device("cpu"))
        absmax = state.absmax
        if state.nested:
            absmax = dequantize_blockwise(absmax, state.state2) + state.offset
        out[name] = _dequantize_4bit_compute(stored[name].reshape(-1), absmax, state.code, state.blocksize, state.shape,
                                             torch.bfloat16)
    return out, len(coded)


def main():
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    lockstep, wrong = str(pathlib.Path(sys.argv[1]).resolve()), 0
    for family in FAMILIES:
        for nested in (False, True):
            with tempfile.TemporaryDirectory() as scratch:
                codes, plain = pathlib.Path(scratch) / "codes", pathlib.Path(scratch) / "open"
                save(family, nested, codes)
                done = subprocess.run([lockstep, "export", "--model", codes, "--weights", "open", "--out", plain],
                                      capture_output=True, text=True)
                if done.returncode:
                    sys.exit(f"{family}: lockstep export: {done.stderr}")
                (want, coded), got = dequantised(tensors(codes)), tensors(plain)
                apart = [n for n, w in want.items() if n not in got or not torch.equal(w.float(), got[n].float())]
                wrong += len(apart) + (not coded)
                print(f"{'FAILED' if apart or not coded else 'ok':6}  {family}{', nested' if nested else ''}: "
                      f"{len(apart)} of {len(want)} tensors differ, {coded} in codes {apart[:3] or ''}", flush=True)
    print(f"{wrong} tensors differ; transformers {transformers.__version__}, bitsandbytes {bitsandbytes.__version__}, "
          f"torch {torch.__version__}")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()

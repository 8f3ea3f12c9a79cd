"""Holds what lockstep opens of quantised releases against transformers' own dequantisation: every weight, by value.

usage: quantised.py LOCKSTEP      (after setup.sh: .venv/bin/python .ci/transformers/quantised.py ./lockstep)

A release is made from a tiny checkpoint of model/testdata: weights become random codes and scales. transformers opens it in bf16; lockstep trains it for a step at a
learning rate that fp32 has no number for, and saves (adding 0 takes the sign of a minus zero, which is all that a comparison by value leaves out). Run by hand; exits 1 if a
weight differs.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import safetensors.torch
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROJECTIONS = ("_proj.weight", "_proj_with_mqa.weight", ".wq_b.weight", ".wk.weight", ".w1.weight", ".w2.weight", ".w3.weight")


def e4m3(shape):
    codes = torch.randint(0, 256, shape, dtype=torch.uint8)
    codes[codes & 0x7f == 0x7f] = 0x80  # no NaN; minus zero is a number
    return codes.view(torch.float8_e4m3fn)


def fp8(name, w, out, block, scale):
    rows, cols = (n // block for n in w.shape)
    out[name] = e4m3(w.shape)
    if scale == torch.float8_e8m0fnu:
        out[name + "_scale_inv"] = torch.randint(112, 120, (rows, cols), dtype=torch.uint8).view(scale)
    else:
        out[name + "_scale_inv"] = (torch.rand(rows, cols) * 1e-3).to(scale)


def scaled(name, w, out, shape, beside):
    """FP8 of compressed-tensors, with scales of a shape."""
    out[name] = e4m3(w.shape)
    out[name + "_scale"] = (torch.rand(shape(*w.shape)) * 1e-3).bfloat16()
    if beside:
        out[name.removesuffix("weight") + "input_scale"] = torch.rand(1).bfloat16()


def mxfp4_packed(name, w, out):
    rows, cols = w.shape
    out[name + "_packed"] = torch.randint(0, 256, (rows, cols // 2), dtype=torch.uint8)
    out[name + "_scale"] = torch.randint(112, 122, (rows, cols // 32), dtype=torch.uint8)


def mxfp4(name, w, out):
    experts, cols, rows = w.shape
    out[name + "_blocks"] = torch.randint(0, 256, (experts, rows, cols // 32, 16), dtype=torch.uint8)
    out[name + "_scales"] = torch.randint(112, 122, (experts, rows, cols // 32), dtype=torch.uint8)


def int4(name, w, out, group=32):
    rows, cols = w.shape
    out[name + "_packed"] = torch.randint(-2**31, 2**31, (rows, cols // 8), dtype=torch.int64).to(torch.int32)
    out[name + "_scale"] = (torch.rand(rows, cols // group) * 1e-2).bfloat16()
    out[name + "_shape"] = torch.tensor([rows, cols])


INT4_IGNORE = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"]


def compressed(format, ignore=("lm_head", "re:.*mlp\\.gate$"), activations=None, **weights):
    group = dict(targets=["Linear"], weights=dict(symmetric=True, dynamic=False, **weights), input_activations=activations)
    return dict(quant_method="compressed-tensors", format=format, quantization_status="compressed", config_groups=dict(group_0=group), ignore=list(ignore))


def floats(n, strategy, shape, activations, **more):
    config = compressed("float-quantized", activations=dict(num_bits=8, type="float", symmetric=True, **activations), num_bits=8, type="float", strategy=strategy, **more)
    return n, config, lambda n: n.endswith(PROJECTIONS), lambda *a: scaled(*a, shape, not activations["dynamic"])


BY_TOKEN, STATIC = dict(strategy="token", dynamic=True), dict(strategy="tensor", dynamic=False)


def in_blocks(n, block=16, scale=torch.float32):
    """transformers wants blocks that divide every matrix."""
    config = dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[block, block], modules_to_not_convert=["lm_head"])
    return n, config, lambda n: n.endswith(PROJECTIONS), lambda *a: fp8(*a, block, scale)


RELEASES = {
    "FP8, scales F32": in_blocks("qwen3_moe"),
    "FP8, scales BF16": in_blocks("qwen3", scale=torch.bfloat16),
    "FP8, other names": in_blocks("minimax_m2"),
    "FP8, latent attention": in_blocks("kimi_k2", 8),
    "FP8, an indexer": in_blocks("glm5", 8),
    "FP8, scales E8M0": in_blocks("qwen3_moe", scale=torch.float8_e8m0fnu),
    "FP8, a scale for each row": floats("glm4_moe", "channel", lambda rows, cols: (rows, 1), BY_TOKEN),
    "FP8, a scale for each row, dense": floats("llama3", "channel", lambda rows, cols: (rows, 1), BY_TOKEN),
    "FP8, one scale for a tensor": floats("qwen3", "tensor", lambda rows, cols: (1,), STATIC),
    "FP8, compressed-tensors' blocks": floats("qwen3", "block", lambda rows, cols: (rows // 16, cols // 16), BY_TOKEN, block_structure=[16, 16]),
    "MXFP4": ("gpt_oss", dict(quant_method="mxfp4"), lambda n: n.endswith(("experts.gate_up_proj", "experts.down_proj")), mxfp4),
    "MXFP4, packed": ("qwen3", compressed("mxfp4-pack-quantized", num_bits=4, type="float", strategy="group", group_size=32), lambda n: n.endswith(PROJECTIONS), mxfp4_packed),
    "INT4": ("kimi_k2", compressed("pack-quantized", INT4_IGNORE, num_bits=4, type="int", strategy="group", group_size=32), lambda n: ".mlp.experts." in n, int4),
}


def release(folder, family, quantization, chosen, encode):
    folder.mkdir()
    source = ROOT / "model/testdata" / family
    out = {}
    for name, w in safetensors.torch.load_file(source / "model.safetensors").items():
        if chosen(name) and "weights_proj" not in name:
            encode(name, w, out)
        else:
            out[name] = w if "correction_bias" in name else w.bfloat16()
    safetensors.torch.save_file(out, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text()) | dict(quantization_config=quantization, dtype="bfloat16")
    (folder / "config.json").write_text(json.dumps(config))


def ours(lockstep, folder, scratch):
    (scratch / "ids.jsonl").write_text(json.dumps(dict(ids=list(range(3, 20)))) + "\n")
    keys = [f"model.path={folder}", f"data.path={scratch / 'ids.jsonl'}", "data.pack_rows=32", "optim.lr=1e-60", "run.epochs=0", "run.steps=1", "run.packs=1", "run.save_every=0",
            "run.verify_tokens=0", "optim.warmup_ratio=0", "lora.rank=0"]
    made = folder.with_name(folder.name + "-opened")
    done = subprocess.run([lockstep, "train", ROOT / "configs/qwen3-lora.toml", "--out", made, *(f"--set={k}" for k in keys)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"lockstep train: {done.stderr}")
    if "quantization_config" in json.loads((made / "model/config.json").read_text()):
        sys.exit("the saved config.json still says quantization_config")
    return made / "model", next(line for line in done.stderr.splitlines() if line.startswith("weights:"))


def main():
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(5)
    lockstep, wrong = str(pathlib.Path(sys.argv[1]).resolve()), 0
    with tempfile.TemporaryDirectory() as scratch:
        for i, (name, (family, quantization, *how)) in enumerate(RELEASES.items()):
            folder = pathlib.Path(scratch) / str(i)
            release(folder, family, quantization, *how)
            asked = dict(quantization_config=transformers.CompressedTensorsConfig(dequantize=True)) if "config_groups" in quantization else {}
            theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, **asked)
            made, said = ours(lockstep, folder, pathlib.Path(scratch))
            plain = transformers.AutoModelForCausalLM.from_pretrained(made, dtype=torch.bfloat16)
            want = {n: w for n, w in theirs.state_dict().items() if not n.endswith(("weight_scale", "input_scale"))}  # decompressed weights keep them
            got = plain.state_dict()
            # A router's correction bias is fp32 in the release and in what lockstep saves; transformers rounds it to bf16 in the second alone.
            apart = [n for n in want.keys() | got.keys() if n not in want or n not in got or not torch.equal(want[n].bfloat16(), got[n].bfloat16())]
            wrong += len(apart)
            print(f"{'FAILED' if apart else 'ok':6}  {name}, {family}: {len(apart)} of {len(want)} tensors differ {apart[:3] or ''} ({said})", flush=True)
    print(f"{wrong} tensors differ; transformers {transformers.__version__}, torch {torch.__version__}")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()

"""Holds what `lockstep export` writes in codes against the tools that read it: every weight, by value, next to
`lockstep export --weights open` of the same folder.

usage: formats.py LOCKSTEP [FAMILY...]      (after setup.sh: .venv/bin/python .ci/transformers/formats.py ./lockstep)

compressed-tensors decompresses each weight by itself (pack-quantized, mxfp4-pack-quantized, mxfp8-quantized);
transformers opens the folder dequantised (all of them, blocks of FP8, MXFP4 of gpt-oss). Either computes numbers in the
type of its scales, fp32 or bf16, to which ours are rounded. Run by hand; exits 1 if a weight differs, or if a folder is
not read that is not known to be (UNREAD).
"""
import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ.setdefault("TQDM_DISABLE", "1")
import compressed_tensors
import safetensors.torch
import torch
import transformers
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationScheme

ROOT = pathlib.Path(__file__).resolve().parents[2]
FAMILIES = sys.argv[2:] or ["qwen3", "qwen3_moe", "qwen3_5_moe", "minimax_m2", "glm4_moe", "glm5", "llama3", "kimi_k2",
                            "gpt_oss"]
FORMATS = ["int4", "mxfp4", "mxfp8", "fp8"]
# Codes of these are whole weights of a name, by what belongs to them.
PARTS = ("weight_packed", "weight_scale", "weight_shape")
# transformers 5.17 takes the scales of MXFP8 blocks of expert modules for scales of rows.
UNREAD = ("transformers", "mxfp8", "We encountered some issues during automatic conversion")
totals = dict(comparisons=0, weights=0, differ=0, unread=0, unexpected=0)


def export(lockstep, model, weights, out, *more):
    """The reason why there is no such folder, or nothing."""
    done = subprocess.run([lockstep, "export", "--model", model, "--weights", weights, "--out", out, *more],
                          capture_output=True, text=True)
    return done.stderr.strip().removeprefix("lockstep: ") if done.returncode else None


def tensors(folder):
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        found |= safetensors.torch.load_file(file)
    return found


def decompressed(folder, quantization):
    """The weights in codes, each decompressed by compressed-tensors from its own tensors."""
    scheme = QuantizationScheme.model_validate(quantization["config_groups"]["group_0"])
    compressor = BaseCompressor.get_value_from_registry(quantization["format"])
    stored, out = tensors(folder), {}
    for name in stored:
        module, _, ending = name.rpartition(".")
        if ending != "weight_scale":
            continue
        own = {p: stored[f"{module}.{p}"] for p in (*PARTS, "weight") if f"{module}.{p}" in stored}
        out[f"{module}.weight"] = compressor.decompress(own, scheme)["weight"]
    return out


def opened(folder, quantization=None):
    """The weights of the model that transformers opens, dequantised."""
    asked = {}
    if quantization:
        kind = {"fp8": transformers.FineGrainedFP8Config, "mxfp4": transformers.Mxfp4Config,
                "compressed-tensors": transformers.CompressedTensorsConfig}
        asked = dict(quantization_config=kind[quantization["quant_method"]](dequantize=True))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **asked)
    others = ("weight_scale", "weight_shape", "input_scale")
    return {n: w for n, w in model.state_dict().items() if not n.endswith(others)}


def compare(name, tool, theirs, ours):
    """Wants the same numbers. theirs and ours give name to tensor; ours may have more where theirs are codes alone."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            want = theirs()
    except Exception as e:  # of whatever kind: another tool's
        known = tool == UNREAD[0] and f" {UNREAD[1]} " in name and str(e).startswith(UNREAD[2])
        totals["unread" if known else "unexpected"] += 1
        why = " ".join(str(e).split())[:160]
        print(f"{'unread' if known else 'FAILED'}  {name}: {tool}: {type(e).__name__}: {why}", flush=True)
        return
    got = ours()
    apart = [n for n, w in want.items() if n not in got or not torch.equal(w, got[n].to(w.dtype))]
    totals["comparisons"] += 1
    totals["weights"] += sum(w.numel() for w in want.values())
    totals["differ"] += len(apart) or not want
    print(f"{'FAILED' if apart or not want else 'ok':6}  {name}: {tool}: {len(apart)} of {len(want)} tensors differ "
          f"{apart[:3] or ''}", flush=True)


def main():
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    transformers.utils.logging.disable_progress_bar()
    lockstep = str(pathlib.Path(sys.argv[1]).resolve())
    for family in FAMILIES:
        for format in FORMATS:
            for coded in ("experts", "projections"):
                name = f"{family} {format} {coded}"
                with tempfile.TemporaryDirectory() as scratch:
                    codes, plain = pathlib.Path(scratch) / "codes", pathlib.Path(scratch) / "open"
                    if refused := export(lockstep, ROOT / "model/testdata" / family, format, codes, "--coded", coded):
                        print(f"        {name}: not written: {refused[:160]}", flush=True)
                        continue
                    if failed := export(lockstep, codes, "open", plain):
                        sys.exit(f"{name}: lockstep export --weights open: {failed}")
                    quantization = json.loads((codes / "config.json").read_text())["quantization_config"]
                    if "config_groups" in quantization:
                        compare(name, "compressed-tensors", lambda: decompressed(codes, quantization),
                                lambda: tensors(plain))
                    compare(name, "transformers", lambda: opened(codes, quantization), lambda: opened(plain))
    versions = ", ".join(f"{m.__name__} {m.__version__}" for m in (compressed_tensors, transformers, torch))
    print(", ".join(f"{n} {what}" for what, n in totals.items()) + f"; {versions}")
    sys.exit(totals["differ"] + totals["unexpected"] > 0 or not totals["comparisons"])


if __name__ == "__main__":
    main()

"""Makes goldens of adapters whose settings change more than B and A: what PEFT computes with them in fp32 (eager) on a golden checkpoint, for model/testdata/adapters.

usage: golden_adapters.py TESTDATA CASE...        TESTDATA is model/testdata; CASE is one of CASES below, by default all

An adapter is made and drawn at random, saved, loaded again by PeftModel.from_pretrained on a fresh base (which changes the base where PEFT does so), and run.
"""
import os
import sys

import peft
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import save_file

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
CASES = {
    "pissa": ("qwen3", dict(r=3, lora_alpha=6, target_modules=ATTENTION + ["down_proj"], init_lora_weights="pissa")),
    "pissa_gpt_oss": ("gpt_oss", dict(r=4, lora_alpha=8, target_modules=ATTENTION, init_lora_weights="pissa", use_rslora=True)),
    "olora": ("qwen3", dict(r=3, lora_alpha=6, target_modules=ATTENTION + ["up_proj"], init_lora_weights="olora")),
    "patterns": ("qwen3", dict(r=3, lora_alpha=7, target_modules=["q_proj", "o_proj", "up_proj"], rank_pattern={"layers.0.self_attn.q_proj": 1, "q_proj": 5, "up_proj": 2},
                               alpha_pattern={"o_proj": 2.5, ".*layers.1.*": 4}, use_rslora=True)),
    "fused": ("qwen3_moe", dict(r=2, lora_alpha=6, target_modules=ATTENTION[:1] + ["gate_proj", "up_proj", "down_proj"])),  # PEFT writes patterns for gate_up_proj
    "layers": ("qwen3", dict(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"], layers_to_transform=[1], layers_pattern="layers")),
    "excluded": ("qwen3", dict(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"], exclude_modules=["layers.0.self_attn.v_proj"])),
    "modules_to_save": ("glm4_moe", dict(r=2, lora_alpha=4, target_modules=["q_proj"], modules_to_save=["lm_head", "model.norm", "embed_tokens"])),
}


def base(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager")


def make(testdata, case):
    family, settings = CASES[case]
    folder = os.path.join(testdata, "adapters", case)
    torch.manual_seed(11)
    model = peft.get_peft_model(base(os.path.join(testdata, family)), peft.LoraConfig(task_type="CAUSAL_LM", **settings))
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.requires_grad:
                p.add_(torch.randn_like(p) * 0.05)
    model.save_pretrained(folder)
    os.remove(os.path.join(folder, "README.md"))
    # PEFT itself has to load what it wrote: the golden is of that model, not of the one in memory.
    model = peft.PeftModel.from_pretrained(base(os.path.join(testdata, family)), folder).eval()
    ids = torch.randint(3, model.config.vocab_size, (29,))
    with torch.no_grad():
        logits = model(ids[None], use_cache=False).logits[0]
    loss = F.cross_entropy(logits[:-1], ids[1:])
    with torch.no_grad(), model.disable_adapter():
        plain = model(ids[None], use_cache=False).logits[0]
    original = base(os.path.join(testdata, family))(ids[None], use_cache=False).logits[0].detach()
    save_file(dict(ids=ids, logits=logits.contiguous(), loss=loss), os.path.join(folder, "golden.safetensors"))
    print(f"{case}: adapters change logits by {(logits - original).abs().max():.3g}, the base is off by {(plain - original).abs().max():.3g} without them")


for case in sys.argv[2:] or CASES:
    make(sys.argv[1], case)

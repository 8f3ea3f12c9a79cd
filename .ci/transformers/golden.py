"""Makes a golden of a family: a tiny random checkpoint, and what transformers computes from it in fp32 (eager), for model/testdata.

usage: golden.py CASE FOLDER        CASE is one of CASES below
"""
import os
import sys

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import save_file

LATENT = dict(
    vocab_size=320, hidden_size=64, intermediate_size=96, moe_intermediate_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4,
    max_position_embeddings=256, kv_lora_rank=32, q_lora_rank=48, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16, n_routed_experts=8, num_experts_per_tok=2,
    n_shared_experts=1, first_k_dense_replace=1, norm_topk_prob=True, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)
CASES = {
    "glm4_moe_lite": ("glm4_moe_lite", dict(LATENT, n_group=1, topk_group=1, routed_scaling_factor=1.8, mlp_layer_types=["dense", "sparse", "sparse"], rms_norm_eps=1e-5)),
    "glm5_shared": ("glm_moe_dsa", dict(LATENT, num_hidden_layers=4, n_group=1, topk_group=1, routed_scaling_factor=2.5, index_n_heads=16, index_head_dim=16, index_topk=8,
                                        indexer_types=["full", "shared", "full", "shared"], mlp_layer_types=["dense", "sparse", "sparse", "sparse"], rms_norm_eps=1e-5)),
    "deepseek_v3_grouped": ("deepseek_v3", dict(LATENT, q_lora_rank=None, n_group=4, topk_group=2, routed_scaling_factor=2.5, rope_interleave=False, v_head_dim=24)),
}


def main():
    kind, settings = CASES[sys.argv[1]]
    folder = sys.argv[2]
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(kind, **settings), dtype=torch.float32, attn_implementation="eager", experts_implementation="eager")
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(torch.randn_like(p) * 0.1 + (1 if "norm" in name else 0))
        for name, b in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                b.copy_(torch.randn_like(b) * 0.1)
    os.makedirs(folder, exist_ok=True)
    model.save_pretrained(folder)
    ids = [torch.randint(3, settings["vocab_size"], (n,)) for n in (37, 24)]
    out, loss, count = {}, 0, 0
    for s, x in enumerate(ids):
        y = model(x[None], output_hidden_states=True, use_cache=False)
        out[f"ids.{s}"], out[f"logits.{s}"] = x, y.logits[0].detach()
        for layer, h in enumerate(y.hidden_states):
            out[f"hidden.{s}.{layer}"] = h[0].detach()
        loss = loss + F.cross_entropy(y.logits[0, :-1], x[1:], reduction="sum")
        count += len(x) - 1
    loss = loss / count
    loss.backward()
    out["loss"] = loss.detach()
    for name, p in model.named_parameters():
        if p.grad is not None:  # an indexer has none
            out[f"grad.{name}"] = p.grad.clone()
    with torch.no_grad():
        out["greedy"] = model.generate(ids[1][None, :8], max_new_tokens=16, min_new_tokens=16, do_sample=False)[0, 8:]
    out["sft_loss"] = trajectory(model, ids, count)
    save_file({k: v.contiguous() for k, v in out.items()}, os.path.join(folder, "golden.safetensors"))


def trajectory(model, ids, count):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = sum(F.cross_entropy(model(x[None], use_cache=False).logits[0, :-1], x[1:], reduction="sum") for x in ids) / count
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses)


if __name__ == "__main__":
    main()

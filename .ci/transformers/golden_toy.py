"""Makes the golden of the toy family (model/toy_test.go) in plain torch: the example of README's "Adding a family".

usage: golden_toy.py FOLDER

A Llama with norms of whole query and key projections, a window on odd layers, and on even layers a mixture of experts by sigmoid scores with a shared expert; a tied head.
"""
import json
import os
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

C = dict(
    architectures=["ToyForCausalLM"], model_type="toy", hidden_size=48, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=12,
    vocab_size=96, rms_norm_eps=1e-5, max_position_embeddings=64, tie_word_embeddings=True, hidden_act="silu", rope_theta=10000.0, sliding_window=6,
    n_routed_experts=6, num_experts_per_tok=2, n_group=1, topk_group=1, norm_topk_prob=True, routed_scaling_factor=1.5, moe_intermediate_size=24, n_shared_experts=1,
    eos_token_id=2, dtype="float32",
)
H, D, HEADS, KV, EXPERTS, K = C["hidden_size"], C["head_dim"], C["num_attention_heads"], C["num_key_value_heads"], C["n_routed_experts"], C["num_experts_per_tok"]


def weights():
    torch.manual_seed(3)
    w = {}

    def matrix(name, *shape):
        w[name + ".weight"] = torch.randn(*shape) * 0.1

    def ones(name, n):
        w[name + ".weight"] = 1 + torch.randn(n) * 0.1

    def mlp(p, width):
        matrix(p + "gate_proj", width, H)
        matrix(p + "up_proj", width, H)
        matrix(p + "down_proj", H, width)

    matrix("model.embed_tokens", C["vocab_size"], H)
    for l in range(C["num_hidden_layers"]):
        p = f"model.layers.{l}."
        ones(p + "input_layernorm", H)
        matrix(p + "self_attn.q_proj", HEADS * D, H)
        matrix(p + "self_attn.k_proj", KV * D, H)
        matrix(p + "self_attn.v_proj", KV * D, H)
        ones(p + "self_attn.q_norm", HEADS * D)
        ones(p + "self_attn.k_norm", KV * D)
        matrix(p + "self_attn.o_proj", H, HEADS * D)
        ones(p + "post_attention_layernorm", H)
        if l % 2:
            mlp(p + "mlp.", C["intermediate_size"])
            continue
        matrix(p + "mlp.gate", EXPERTS, H)
        w[p + "mlp.gate.e_score_correction_bias"] = torch.randn(EXPERTS) * 0.1
        for e in range(EXPERTS):
            mlp(p + f"mlp.experts.{e}.", C["moe_intermediate_size"])
        mlp(p + "mlp.shared_experts.", C["moe_intermediate_size"])
    ones("model.norm", H)
    return w


def norm(x, g):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + C["rms_norm_eps"]) * g


def rope(x):
    t, half = x.shape[1], D // 2
    angle = torch.arange(t, dtype=torch.float64)[:, None] * C["rope_theta"] ** (-2 * torch.arange(half, dtype=torch.float64) / D)
    c, s = angle.cos().float(), angle.sin().float()
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * c - b * s, b * c + a * s], -1)


def attention(w, p, x, window):
    t = x.shape[0]
    heads = lambda y, n: y.view(t, n, D).transpose(0, 1)
    q = rope(heads(norm(x @ w[p + "q_proj.weight"].T, w[p + "q_norm.weight"]), HEADS))
    k = rope(heads(norm(x @ w[p + "k_proj.weight"].T, w[p + "k_norm.weight"]), KV)).repeat_interleave(HEADS // KV, 0)
    v = heads(x @ w[p + "v_proj.weight"].T, KV).repeat_interleave(HEADS // KV, 0)
    i, j = torch.arange(t)[:, None], torch.arange(t)[None]
    seen = (j <= i) & ((j > i - window) if window else True)
    score = (q @ k.transpose(1, 2) / D**0.5).masked_fill(~seen, float("-inf"))
    return (score.softmax(-1) @ v).transpose(0, 1).reshape(t, HEADS * D) @ w[p + "o_proj.weight"].T


def mlp(w, p, x):
    return (F.silu(x @ w[p + "gate_proj.weight"].T) * (x @ w[p + "up_proj.weight"].T)) @ w[p + "down_proj.weight"].T


def mixture(w, p, x):
    score = (x @ w[p + "gate.weight"].T).sigmoid()
    pick = (score + w[p + "gate.e_score_correction_bias"]).topk(K).indices
    share = score.gather(1, pick)
    share = share / share.sum(-1, keepdim=True) * C["routed_scaling_factor"]
    every = torch.stack([mlp(w, p + f"experts.{e}.", x) for e in range(EXPERTS)], 1)
    chosen = every.gather(1, pick[..., None].expand(-1, -1, H))
    return (chosen * share[..., None]).sum(1) + mlp(w, p + "shared_experts.", x)


def forward(w, ids):
    x = w["model.embed_tokens.weight"][ids]
    hidden = [x]
    for l in range(C["num_hidden_layers"]):
        p = f"model.layers.{l}."
        x = x + attention(w, p + "self_attn.", norm(x, w[p + "input_layernorm.weight"]), C["sliding_window"] if l % 2 else 0)
        y = norm(x, w[p + "post_attention_layernorm.weight"])
        x = x + (mlp if l % 2 else mixture)(w, p + "mlp.", y)
        hidden.append(x)
    hidden[-1] = norm(x, w["model.norm.weight"])
    return hidden[-1] @ w["model.embed_tokens.weight"].T, hidden


def loss_of(w, ids):
    total = sum(F.cross_entropy(forward(w, x)[0][:-1], x[1:], reduction="sum") for x in ids)
    return total / sum(len(x) - 1 for x in ids)


def main():
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    w = weights()
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(C, f, indent=2)
    save_file(w, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    trained = {n: p.requires_grad_() for n, p in w.items() if not n.endswith("correction_bias")}
    ids = [torch.randint(3, C["vocab_size"], (n,)) for n in (31, 18)]
    out = {}
    for s, x in enumerate(ids):
        logits, hidden = forward(w, x)
        out[f"ids.{s}"], out[f"logits.{s}"] = x, logits.detach()
        for l, h in enumerate(hidden):
            out[f"hidden.{s}.{l}"] = h.detach()
    loss = loss_of(w, ids)
    loss.backward()
    out["loss"] = loss.detach()
    for n, p in trained.items():
        at, _, rest = n.partition(".experts.")
        if not rest:
            out["grad." + n] = p.grad.clone()
    for l in range(0, C["num_hidden_layers"], 2):
        p = f"model.layers.{l}.mlp.experts."
        grads = lambda e, name: trained[f"{p}{e}.{name}_proj.weight"].grad
        out[f"grad.{p}gate_up_proj"] = torch.stack([torch.cat([grads(e, "gate"), grads(e, "up")]) for e in range(EXPERTS)])
        out[f"grad.{p}down_proj"] = torch.stack([grads(e, "down").clone() for e in range(EXPERTS)])
    text = ids[1][:8]
    with torch.no_grad():
        for _ in range(16):
            text = torch.cat([text, forward(w, text)[0][-1].argmax()[None]])
    out["greedy"] = text[8:]
    optimizer = torch.optim.AdamW(trained.values(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = loss_of(w, ids)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    out["sft_loss"] = torch.tensor(losses)
    save_file({k: v.contiguous() for k, v in out.items()}, os.path.join(folder, "golden.safetensors"))


if __name__ == "__main__":
    main()

"""Writes optim/testdata/objectives.json: losses and gradients of the alignment objectives by torch's autograd in float64, over padded batches as trainers have them.

usage: objectives.py > optim/testdata/objectives.json

Written from verl (trainer/ppo/core_algos.py) and TRL (trainer/grpo_trainer.py, dpo_trainer.py), not from Lockstep; keys of settings are those of a shape.
"""
import json
import sys

import torch
import torch.nn.functional as F

torch.manual_seed(11)
LENGTHS, PROMPTS, LONGEST = [9, 6, 1, 12, 5, 7], [3, 1, 0, 4, 2, 2], 16
REWARDS, GROUP = [1.0, 0.25, 0.625, 0.0, 3.0, -1.0], 3  # the third is its group's mean
SEQUENCES, LONG = len(LENGTHS), max(LENGTHS)

DEFAULTS = {
    "policy_gradient": dict(aggregate="token", advantage="group_mean"),
    "ppo": dict(clip_low=0.2, clip_high=0.2, aggregate="token", advantage="group_norm"),
    "grpo": dict(clip_low=0.2, clip_high=0.2, aggregate="sequence", advantage="group_norm"),
    "dr_grpo": dict(clip_low=0.2, clip_high=0.2, aggregate="constant", advantage="group_mean"),
    "dapo": dict(clip_low=0.2, clip_high=0.28, aggregate="token", advantage="group_norm"),
    "gspo": dict(clip_low=3e-4, clip_high=4e-4, aggregate="sequence", advantage="group_norm", gspo_gradient="token"),
    "cispo": dict(clip_low=1.0, clip_high=3.0, aggregate="token", advantage="group_norm"),
    "dro": dict(dro_beta=0.05, dro_quadratic="all", aggregate="token", advantage="group_mean"),
    "dpo": dict(dpo_beta=0.1, dpo_loss="sigmoid", label_smoothing=0.0),
}
CASES = [
    ("policy_gradient", {}), ("policy_gradient", dict(importance_cap=1.1)), ("policy_gradient", dict(band_low=0.9, band_high=1.2)),
    ("policy_gradient", dict(importance_cap=1.02, importance_level="sequence")), ("policy_gradient", dict(advantage="leave_one_out", aggregate="sum")),
    ("policy_gradient", dict(advantage="batch_norm", kl_coef=0.3, kl_estimator="k1")), ("policy_gradient", dict(advantage="none", kl_coef=0.3, kl_estimator="k2")),
    ("ppo", {}), ("ppo", dict(dual_clip=1.3)), ("ppo", dict(clip_bounds="absolute", clip_low=0.7, clip_high=1.1)),
    ("ppo", dict(dual_clip=3.0, importance_cap=1.05, kl_coef=0.1)),
    ("grpo", {}), ("grpo", dict(kl_coef=0.04)), ("dr_grpo", {}), ("dapo", {}),
    ("gspo", {}), ("gspo", dict(clip_low=0.1, clip_high=0.1)), ("gspo", dict(clip_low=0.1, clip_high=0.1, gspo_gradient="mean", importance_cap=1.05)),
    ("cispo", {}), ("cispo", dict(clip_low=0.2, clip_high=0.28)), ("cispo", dict(clip_bounds="absolute", clip_low=0.9, clip_high=1.05, importance_cap=1.05)),
    ("dro", {}), ("dro", dict(dro_quadratic="advantage", importance_cap=1.1, kl_coef=0.2)),
    ("dpo", {}), ("dpo", dict(dpo_beta=0.5, label_smoothing=0.2)), ("dpo", dict(dpo_loss="ipo")), ("dpo", dict(dpo_loss="ipo_sum")),
]


def padded(values):
    """[sequences, LONG] of numbers that fp32 holds."""
    out = torch.zeros(SEQUENCES, LONG, dtype=torch.float64)
    for s, n in enumerate(LENGTHS):
        out[s, :n] = values(n).float().double()
    return out


def sample(far):
    mask = torch.zeros(SEQUENCES, LONG, dtype=torch.float64)
    for s, n in enumerate(LENGTHS):
        mask[s, PROMPTS[s]:n] = 1
    logprob = padded(lambda n: -torch.empty(n).exponential_())
    near = lambda of, width: (of + width * torch.randn(SEQUENCES, LONG)).float().double()
    old = near(logprob, 0.2)
    rollout, reference = near(old, 0.15), near(logprob, 0.5)
    if far:  # beyond the cap on log-ratios, both ways, under advantages of either sign
        for s, t, by in [(0, 5, -25.0), (0, 7, 25.0), (1, 4, -25.0), (1, 5, 25.0)]:
            old[s, t], reference[s, t] = (logprob[s, t] + by).float(), (logprob[s, t] - by).float()
            rollout[s, t] = old[s, t]
    return dict(mask=mask, logprob=logprob, old=old, rollout=rollout, reference=reference)


def advantages(kind):
    r = torch.tensor(REWARDS, dtype=torch.float64).view(-1, GROUP)
    centred = r - r.mean(1, keepdim=True)
    return {
        "group_norm": centred / (r.std(1, keepdim=True) + 1e-4), "group_mean": centred, "leave_one_out": r - (r.sum(1, keepdim=True) - r) / (GROUP - 1),
        "batch_norm": centred / (centred.reshape(-1).std() + 1e-4), "none": r,
    }[kind].reshape(-1)


def aggregate(kind, loss, mask):
    if kind == "token":
        return (loss * mask).sum() / mask.sum()
    if kind == "sequence":
        return ((loss * mask).sum(1) / mask.sum(1)).mean()
    if kind == "constant":
        return ((loss * mask).sum(1) / LONGEST).mean()
    return (loss * mask).sum()


def masked_mean(x, mask):
    return ((x * mask).sum(1) / mask.sum(1)).unsqueeze(1)


def importance(s, d):
    log = d["old"] - d["rollout"]
    if s.get("importance_level") == "sequence":
        log = masked_mean(log, d["mask"]).expand_as(log)
    w = log.clamp(-20, 20).exp()
    if "band_high" in s:
        return w * ((w >= s["band_low"]) & (w <= s["band_high"]))
    return w.clamp(max=s["importance_cap"]) if "importance_cap" in s else torch.ones_like(w)


def policy_loss(name, s, d, lp):
    """The loss, and the rows [sequences, LONG] that bounds touched."""
    A = advantages(s["advantage"]).unsqueeze(1).expand_as(lp)
    w, mask = importance(s, d), d["mask"]
    low, high = (1 - s.get("clip_low", 0), 1 + s.get("clip_high", 0)) if s.get("clip_bounds") != "absolute" else (s["clip_low"], s["clip_high"])
    change = lp - d["old"]
    if name == "gspo":
        mean = masked_mean(change, mask).expand_as(lp)
        change = mean if s["gspo_gradient"] == "mean" else lp - lp.detach() + mean.detach()
    ratio = change.clamp(-20, 20).exp()
    beyond = (change.abs() > 20) & (A != 0)
    if name == "policy_gradient":
        loss, clipped = -ratio * A * w, beyond
    elif name == "cispo":
        weight = ratio.clamp(low, high).detach()
        loss, clipped = -weight * A * lp * w, ((weight != ratio) | beyond) & (A != 0)
    elif name == "dro":
        pull = 0.5 * s["dro_beta"] * (lp - d["old"]) ** 2
        loss, clipped = -(lp * A * w) + (pull if s["dro_quadratic"] == "all" else pull * (A != 0)), torch.zeros_like(beyond)
    else:
        first, second = -A * ratio, -A * ratio.clamp(low, high)
        loss = torch.maximum(first, second)
        clipped = (second > first) | beyond
        if "dual_clip" in s:
            third = -A * s["dual_clip"]
            clipped = clipped | (A < 0) & (third < loss)
            loss = torch.where(A < 0, torch.minimum(third, loss), loss)
        loss = loss * w
    if "kl_coef" in s:
        x = d["reference"] - lp
        held = x.clamp(-20, 20)
        loss = loss + s["kl_coef"] * {"k1": -x, "k2": 0.5 * x**2, "k3": held.exp() - held - 1}[s.get("kl_estimator", "k3")]
    return aggregate(s["aggregate"], loss, mask), clipped


def dpo_loss(s, d, lp):
    gain = ((lp - d["reference"]) * d["mask"]).sum(1)
    margin, beta, smooth = gain[0::2] - gain[1::2], s["dpo_beta"], s["label_smoothing"]
    if s["dpo_loss"] == "ipo":  # as TRL: means over the tokens of an answer
        gain = gain / d["mask"].sum(1).clamp(min=1)
        margin = gain[0::2] - gain[1::2]
    if s["dpo_loss"] in ("ipo", "ipo_sum"):
        return ((margin - 1 / (2 * beta)) ** 2).mean()
    return (-F.logsigmoid(beta * margin) * (1 - smooth) - F.logsigmoid(-beta * margin) * smooth).mean()


def flat(x):
    return [v for s, n in enumerate(LENGTHS) for v in x[s, :n].tolist()]


def case(name, settings, d):
    s = {**DEFAULTS[name], **settings}
    lp = d["logprob"].clone().requires_grad_()
    if name == "dpo":
        loss, clipped = dpo_loss(s, d, lp), torch.zeros_like(lp)
    else:
        loss, clipped = policy_loss(name, s, d, lp)
    loss.backward()
    out = dict(objective=name, settings=settings, loss=loss.item(), clipped=int((clipped * d["mask"]).sum()), gradient=[float(f"{g:.9g}") for g in flat(lp.grad)])
    if name != "dpo":
        out["advantage"] = advantages(s["advantage"]).tolist()
    return out


def main():
    out = dict(torch=torch.__version__.split("+")[0], lengths=LENGTHS, longest=LONGEST, rewards=REWARDS, group=GROUP, samples=[])
    for far in (False, True):
        d = sample(far)
        rows = {k: flat(v) for k, v in d.items()}
        out["samples"].append(dict(rows=rows, cases=[case(name, settings, d) for name, settings in CASES]))
    json.dump(out, sys.stdout, separators=(",", ":"))
    print()


main()

"""Writes train/testdata/preferences.json: runs of direct preference optimisation by transformers and torch's AdamW, with a second model as the reference.

usage: preferences.py FOLDER > train/testdata/preferences.json        FOLDER is model/testdata/qwen3_moe

Written from the papers (DPO, arXiv 2305.18290; IPO, arXiv 2310.12036), not from Lockstep. A step takes all pairs.
"""
import copy
import json
import sys

import torch
import torch.nn.functional as F
import transformers

STEPS, LR = 5, 2e-4
CASES = [dict(kind="sigmoid", beta=0.3, label_smoothing=0.0), dict(kind="sigmoid", beta=0.1, label_smoothing=0.2), dict(kind="ipo", beta=0.5, label_smoothing=0.0),
         dict(kind="ipo_sum", beta=0.5, label_smoothing=0.0)]


def logprob(model, prompt, answer):
    ids = torch.tensor([prompt + answer])
    rows = F.log_softmax(model(ids, use_cache=False).logits[0, len(prompt) - 1:-1].double(), -1)
    return rows.gather(1, torch.tensor(answer)[:, None]).sum()


def loss_of(margin, means, kind, beta, label_smoothing):
    if kind.startswith("ipo"):  # of means over the tokens of an answer, as in TRL, or of sums
        return ((means if kind == "ipo" else margin) - 1 / (2 * beta)) ** 2
    return -(1 - label_smoothing) * F.logsigmoid(beta * margin) - label_smoothing * F.logsigmoid(-beta * margin)


def run(folder, pairs, case):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager")
    reference = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=0)
    with torch.no_grad():
        before = [[logprob(reference, p["prompt_ids"], p[side]) for side in ("chosen_ids", "rejected_ids")] for p in pairs]
    steps = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        sums = dict(loss=0, chosen_logprob=0, rejected_logprob=0, chosen_reward=0, rejected_reward=0, preferred=0)
        for p, (chosen0, rejected0) in zip(pairs, before):
            chosen, rejected = logprob(model, p["prompt_ids"], p["chosen_ids"]), logprob(model, p["prompt_ids"], p["rejected_ids"])
            gained, lost = chosen - chosen0, rejected - rejected0
            loss = loss_of(gained - lost, gained / len(p["chosen_ids"]) - lost / len(p["rejected_ids"]), **case)
            (loss / len(pairs)).backward()
            for key, value in dict(loss=loss, chosen_logprob=chosen, rejected_logprob=rejected, chosen_reward=case["beta"] * gained, rejected_reward=case["beta"] * lost,
                                   preferred=(gained > lost).double()).items():
                sums[key] += value.item() / len(pairs)
        norm = torch.sqrt(sum((p.grad.double() ** 2).sum() for p in model.parameters() if p.grad is not None))
        steps.append(dict(sums, grad_norm=float(norm), margin=sums["chosen_reward"] - sums["rejected_reward"]))
        optimizer.step()
    return steps


def main():
    torch.manual_seed(5)
    torch.set_num_threads(1)
    vocab = json.load(open(sys.argv[1] + "/config.json"))["vocab_size"]
    ids = lambda n: torch.randint(3, vocab, (n,)).tolist()
    pairs = [dict(prompt_ids=ids(a), chosen_ids=ids(b), rejected_ids=ids(c)) for a, b, c in [(5, 9, 4), (1, 3, 12), (17, 1, 2), (8, 6, 6), (3, 20, 11)]]
    print(json.dumps(dict(lr=LR, pairs=pairs, runs=[dict(case, steps=run(sys.argv[1], pairs, case)) for case in CASES])))


main()

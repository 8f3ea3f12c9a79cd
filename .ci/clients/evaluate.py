"""Runs lm-eval's log-likelihood of a multiple-choice task against `lockstep serve`, and holds what it was told against
`lockstep score`, bit for bit. usage: evaluate.py LOCKSTEP MODEL URL (see README.md)

The task is a local file that this script makes: 40 questions of the countdown task with four answers each, which the
model has sampled; one drawn at random counts as right. lm-eval sends token ids with echo, max_tokens 1 and logprobs 1,
several at once. Its accuracy, and the log-likelihood of every one of the 160 answers, have to be those of score's
log-probabilities, added in the same order.
"""

import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import urllib.request

import numpy
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager
from transformers import PreTrainedTokenizerFast

lockstep, model, url = sys.argv[1:4]
tokenizer = PreTrainedTokenizerFast.from_pretrained(model)


def questions(path):
    draw = random.Random(7)
    with open(path, "w") as f:
        for seed in range(40):
            numbers = [draw.randint(2, 12) for _ in range(3)]
            question = f"make {numbers[0] * numbers[1] + numbers[2]} from {' '.join(map(str, numbers))}:"
            body = {"prompt": question, "n": 4, "max_tokens": 12, "temperature": 1.2, "seed": seed}
            ask = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
            choices = [c["text"] for c in json.load(urllib.request.urlopen(ask))["choices"]]
            print(json.dumps({"question": question, "choices": choices, "gold": draw.randrange(4)}), file=f)


def scores(rows, folder):
    """The log-probabilities of every next token of each row of ids."""
    given, out = folder / "ids.jsonl", folder / "scores.safetensors"
    given.write_text("".join(json.dumps({"ids": r}) + "\n" for r in rows))
    subprocess.run([lockstep, "score", "--model", model, "--in", given, "--out", out], check=True,
                   stdout=subprocess.DEVNULL)
    raw = out.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + size])
    found = []
    for i in range(len(rows)):
        begin, end = header[f"logprobs.{i}"]["data_offsets"]
        found.append(struct.unpack(f"<{(end - begin) // 4}f", raw[8 + size + begin:8 + size + end]))
    return found


with tempfile.TemporaryDirectory() as scratch:
    folder = pathlib.Path(scratch)
    questions(folder / "questions.jsonl")
    task = {"task": "countdown_choice", "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(folder / "questions.jsonl")}}, "test_split": "test",
            "output_type": "multiple_choice", "doc_to_text": "{{question}}", "doc_to_choice": "{{choices}}",
            "doc_to_target": "{{gold}}", "target_delimiter": "",
            "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}]}
    result = simple_evaluate(
        model="local-completions", tasks=[task], task_manager=TaskManager(include_defaults=False), log_samples=True,
        model_args={"model": pathlib.Path(model).name, "base_url": f"{url}/v1/completions", "tokenizer": model,
                    "tokenizer_backend": "huggingface", "num_concurrent": 8, "max_length": 256, "batch_size": 4})
    samples = result["samples"]["countdown_choice"]
    rows, where = [], []
    for s in samples:
        for context, answer in s["arguments"]:
            rows.append(tokenizer.encode(context + answer))
            where.append(len(tokenizer.encode(context)))
    of = iter(zip(scores(rows, folder), where))
    right = answers = 0
    for s in samples:
        told = [r[0] for r in s["filtered_resps"]]
        own = []
        for _ in told:
            logprobs, n = next(of)
            # JSON has the shortest decimal of an fp32 number, which Python reads as a double
            own.append(sum(float(str(numpy.float32(x))) for x in logprobs[n - 1:]))
        assert told == own, (told, own)
        answers += len(told)
        right += max(range(len(own)), key=own.__getitem__) == s["doc"]["gold"]
    got = result["results"]["countdown_choice"]
    assert got["acc,none"] == right / len(samples), (got, right)
    print(f"lm-eval: {len(samples)} questions, {answers} answers, accuracy {got['acc,none']:.3f}: "
          "as by lockstep score")

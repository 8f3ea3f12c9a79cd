"""Runs guidellm against `lockstep serve`, and holds what it counts against what the server counts. usage: load.py MODEL
URL (see README.md)

guidellm sends 200 chats, 16 at a time, as streams with `ignore_eos` and `stream_options.continuous_usage_stats`. Every
one has to end well with the 24 tokens that it asked for, by its usage, and the server's own counts of answers and of
tokens have to grow by as many.
"""

import importlib.metadata
import json
import pathlib
import subprocess
import sys
import tempfile
import urllib.request

model, url = sys.argv[1:3]
chats, tokens, at_once = 200, 24, 16


def counts():
    lines = urllib.request.urlopen(f"{url}/metrics").read().decode().splitlines()
    found = dict(x.rsplit(" ", 1) for x in lines if not x.startswith("#"))
    return [int(found[f"lockstep_{name}"]) for name in ("request_seconds_count", "generation_tokens_total")]


before = counts()
with tempfile.TemporaryDirectory() as scratch:
    out = pathlib.Path(scratch) / "report.json"
    subprocess.run([
        pathlib.Path(sys.executable).parent / "guidellm", "run", "--disable-console",
        "--backend", f"kind=openai_http,target={url}", "--profile", f"kind=concurrent,streams={at_once}",
        "--constraint", f"kind=max_requests,count={chats}", "--tokenizer", f"kind=huggingface_auto,model={model}",
        "--data", f"kind=synthetic_text,prompt_tokens=40,output_tokens={tokens}",
        "--output", f"kind=json,path={out}"], check=True)
    benchmark, = json.loads(out.read_text())["benchmarks"]
requests = benchmark["requests"]
assert not requests["errored"] and not requests["incomplete"], requests["errored"] + requests["incomplete"]
assert len(requests["successful"]) == chats, len(requests["successful"])
for r in requests["successful"]:
    assert '"continuous_usage_stats":true' in r["request_args"], r["request_args"]
    assert r["output_metrics"]["text_tokens"] == tokens and r["output"], r
grown = [b - a for a, b in zip(before, counts())]
assert grown == [chats, chats * tokens], grown
print(f"guidellm {importlib.metadata.version('guidellm')}: {chats} chats, {at_once} at a time, {grown[1]} tokens: "
      "as the server counts them")

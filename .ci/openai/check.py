"""Talks to `lockstep serve` with OpenAI's own client, by hand:

    lockstep serve --model runs/countdown-sft/model &
    python -m venv .venv && .venv/bin/pip install openai==2.8.1
    .venv/bin/python .ci/openai/check.py http://127.0.0.1:8000/v1
"""

import concurrent.futures
import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="none")
model = client.models.list().data[0]
print(f"{model.id}: {model.max_model_len} positions, definition {model.definition[:12]}")

ask = dict(model=model.id, prompt="make 28 from 7 9 12:", max_tokens=60, seed=7, n=3, logprobs=2, temperature=1.0)
whole = client.completions.create(**ask)
texts = [""] * 3
for chunk in client.completions.create(**ask, stream=True, stream_options={"include_usage": True}):
    for choice in chunk.choices:
        texts[choice.index] += choice.text
    usage = chunk.usage
assert texts == [c.text for c in whole.choices], (texts, whole)
assert usage == whole.usage, (usage, whole.usage)
for c in whole.choices:
    assert len(c.logprobs.tokens) == len(c.logprobs.token_logprobs) == len(c.logprobs.top_logprobs) == len(c.logprobs.text_offset)
print("completions:", texts, usage.completion_tokens, "tokens")

talk = dict(model=model.id, messages=[{"role": "user", "content": "make 28 from 7 9 12:"}], max_tokens=24, seed=7, logprobs=True, top_logprobs=2)
answer = client.chat.completions.create(**talk)
said = "".join(c.choices[0].delta.content or "" for c in client.chat.completions.create(**talk, stream=True))
assert said == answer.choices[0].message.content, (said, answer)
assert len(answer.choices[0].logprobs.content) == answer.usage.completion_tokens
print("chat:", repr(said), answer.choices[0].finish_reason, answer.system_fingerprint[:12])

# Tokens in and out, as a trainer asks; many clients at once, the same bits as alone.
rollout = lambda seed: client.completions.create(model=model.id, prompt=[55, 257, 258, 32, 61], max_tokens=20, seed=seed, logprobs=0, extra_body={"return_token_ids": True})
alone = [rollout(seed) for seed in range(32)]
with concurrent.futures.ThreadPoolExecutor(32) as pool:
    together = list(pool.map(rollout, range(32)))
for a, b in zip(alone, together):
    assert a.choices[0].token_ids == b.choices[0].token_ids and a.choices[0].logprobs == b.choices[0].logprobs, (a, b)
print("32 clients at once: every token and log-probability as alone")

for wrong in (dict(top_p=0), dict(best_of=5), dict(prompt=[10**6])):
    try:
        client.completions.create(**{**ask, **wrong})
        sys.exit(f"{wrong} was not refused")
    except openai.BadRequestError as e:
        print("refused:", e.body["message"])

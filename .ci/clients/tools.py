"""Tool calls by the openai client in eight families' formats, by hand. usage: tools.py LOCKSTEP [FAMILY ...]

For each family a small network learns by heart, in `lockstep train`, what a model of the family writes in three places:
one call, an answer to the tool's result, two calls (where the template has several). It is then served, and the client
asks for each, whole and in a stream: the calls, their arguments, the content and finish_reason have to be those that
were written, and the ids of the prompt those that transformers makes of the same messages. Templates are those that TRL
has of the published models; Kimi K2 and MiniMax M2, which it lacks, have short ones in the documented form.
"""

import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

os.environ["HF_HUB_OFFLINE"] = "1"
import numpy
import openai
from safetensors.numpy import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEMPLATES = pathlib.Path(importlib.util.find_spec("trl").submodule_search_locations[0]) / "chat_templates"
VOCAB = 512

KIMI = """{%- if tools -%}<|im_system|>tool_declare<|im_middle|>{{ tools | tojson }}<|im_end|>{%- endif -%}
{%- for m in messages -%}
{%- if m.role == 'assistant' -%}<|im_assistant|>assistant<|im_middle|>{{ m.content or '' }}
{%- if m.tool_calls -%}<|tool_calls_section_begin|>{%- for c in m.tool_calls -%}<|tool_call_begin|>{{ c.id }}
{%- if c.function.arguments is string -%}
<|tool_call_argument_begin|>{{ c.function.arguments }}<|tool_call_end|>
{%- else -%}<|tool_call_argument_begin|>{{ c.function.arguments | tojson }}<|tool_call_end|>{%- endif -%}
{%- endfor -%}<|tool_calls_section_end|>{%- endif -%}<|im_end|>
{%- elif m.role == 'tool' -%}<|im_system|>tool<|im_middle|>## Return of {{ m.tool_call_id }}
{{ m.content }}<|im_end|>
{%- else -%}<|im_user|>{{ m.role }}<|im_middle|>{{ m.content }}<|im_end|>{%- endif -%}
{%- endfor -%}{%- if add_generation_prompt -%}<|im_assistant|>assistant<|im_middle|>{%- endif -%}"""

MINIMAX = """{{ ']~!b[' }}{%- if tools -%}{{ ']~b]system\\n# Tools\\n<tools>\\n' }}
{%- for t in tools -%}<tool>{{ t.function | tojson }}</tool>{{ '\\n' }}{%- endfor -%}
{{ '</tools>\\n\\nCalls are written in <minimax:tool_call> blocks.[e~[\\n' }}{%- endif -%}
{%- for m in messages -%}
{%- if m.role == 'assistant' -%}{{ ']~b]ai\\n' + (m.content or '') }}
{%- if m.tool_calls -%}{{ '\\n<minimax:tool_call>\\n' }}{%- for c in m.tool_calls -%}
{{ '<invoke name="' + c.function.name + '">\\n' }}{%- for k, v in c.function.arguments.items() -%}
{{ '<parameter name="' + k + '">' }}{{ v | tojson if v is not string else v }}{{ '</parameter>\\n' }}
{%- endfor -%}{{ '</invoke>\\n' }}{%- endfor -%}{{ '</minimax:tool_call>' }}{%- endif -%}{{ '[e~[\\n' }}
{%- elif m.role == 'tool' -%}{{ ']~b]tool\\n<response>' + m.content + '</response>[e~[\\n' }}
{%- else -%}{{ ']~b]' + m.role + '\\n' + m.content + '[e~[\\n' }}{%- endif -%}
{%- endfor -%}{%- if add_generation_prompt -%}{{ ']~b]ai\\n<think>\\n' }}{%- endif -%}"""

THINKS = "<think>\nThe tool knows.\n</think>\n\n"
IM = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
# template; how thinking before an answer and a call to weather are written, and calls together; the end of an answer;
# marks that are tokens of their own: special ones and others
FAMILIES = {
    "hermes": ("qwen3.jinja", THINKS,
               lambda city, days: '<tool_call>\n{"name": "weather", "arguments": {"city": "%s", "days": %d}}\n</tool_call>' % (city, days),
               "\n".join, ("<|im_end|>",) * 2, IM, ["<tool_call>", "</tool_call>", "<think>", "</think>"]),
    "qwen3_5": ("qwen3_5_think.jinja", THINKS.removeprefix("<think>\n"),
                lambda city, days: "<tool_call>\n<function=weather>\n<parameter=city>\n%s\n</parameter>\n<parameter=days>\n%d\n</parameter>\n"
                                   "</function>\n</tool_call>" % (city, days),
                "\n".join, ("<|im_end|>",) * 2, IM, ["<tool_call>", "</tool_call>", "<think>", "</think>"]),
    "glm": ("glm4moe.jinja", "\n<think>The tool knows.</think>\n",
            lambda city, days: "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>%s</arg_value>\n<arg_key>days</arg_key>\n"
                               "<arg_value>%d</arg_value>\n</tool_call>" % (city, days),
            "\n".join, ("<|observation|>", "<|user|>"), ["[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"],
            ["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<think>", "</think>"]),
    "deepseek": ("deepseekv3.jinja", "The tool knows.\n</think>\n\n",
                 lambda city, days: '<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{"city": "%s", "days": %d}\n```<｜tool▁call▁end｜>' % (city, days),
                 lambda calls: "<｜tool▁calls▁begin｜>" + "\n".join(calls) + "<｜tool▁calls▁end｜>", ("<｜end▁of▁sentence｜>",) * 2,
                 ["<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"],
                 ["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<think>", "</think>"]),
    "gpt_oss": ("gptoss.jinja", "<|channel|>analysis<|message|>The tool knows.<|end|><|start|>assistant",
                lambda city, days: ' to=functions.weather<|channel|>commentary json<|message|>{"city": "%s", "days": %d}' % (city, days),
                None, ("<|call|>", "<|return|>"), ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>", "<|return|>"], []),
    "llama": ("llama3_1.jinja", "", lambda city, days: '{"name": "weather", "parameters": {"city": "%s", "days": %d}}' % (city, days),
              None, ("<|eot_id|>",) * 2, ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>"], []),
    "kimi": (KIMI, "", None, lambda calls: "<|tool_calls_section_begin|>" + "".join(calls) + "<|tool_calls_section_end|>", ("<|im_end|>",) * 2,
             ["<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>"],
             ["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_call_argument_begin|>"]),
    "minimax": (MINIMAX, "The tool knows.\n</think>\n\n",
                lambda city, days: '<invoke name="weather">\n<parameter name="city">%s</parameter>\n<parameter name="days">%d</parameter>\n</invoke>\n' % (city, days),
                lambda calls: "<minimax:tool_call>\n" + "".join(calls) + "</minimax:tool_call>", ("[e~[",) * 2, ["]~!b[", "]~b]", "[e~["],
                ["<minimax:tool_call>", "</minimax:tool_call>", "<think>", "</think>"]),
}

TOOLS = [{"type": "function", "function": {"name": "weather", "description": "The weather of the days to come.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city", "days"]}}}]
ONE = [{"role": "user", "content": "How will the weather in Bern be for two days?"}]
TWO = [{"role": "user", "content": 'Compare "Genève" of three days with Rome of one.'}]
ANSWER = "Bern stays dry: 7 °C, then 9 °C."
SAID = {"one": [("Bern", 2)], "two": [("Genève", 3), ("Rome", 1)]}


def written(family, name):
    """What the model writes at a place, without its end."""
    _, thinks, call, together, *_ = FAMILIES[family]
    if name == "answer":
        return thinks + ("<|channel|>final<|message|>" if family == "gpt_oss" else "") + ANSWER
    if family == "kimi":
        calls = ['<|tool_call_begin|>functions.weather:%d<|tool_call_argument_begin|>{"city": "%s", "days": %d}<|tool_call_end|>' % (i, *c)
                 for i, c in enumerate(SAID[name])]
    else:
        calls = [call(*c) for c in SAID[name]]
    return thinks + (together(calls) if together else calls[0])


def answered(calls):
    """The conversation after one call, as the client holds it, with the tool's result."""
    return ONE + [{"role": "assistant", "content": None, "tool_calls": calls},
                  {"role": "tool", "tool_call_id": calls[0]["id"], "content": '{"celsius": [7, 9], "rain": false}'}]


def make(family, folder):
    """A model folder with random weights, and a tokenizer that has the marks of the family."""
    template, _, _, _, ends, special, others = FAMILIES[family]
    text = (TEMPLATES / template).read_text() if template.endswith(".jinja") else template
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer, tok.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    marks = [AddedToken(m, special=True, normalized=False) for m in special] + [AddedToken(m, special=False, normalized=False) for m in others]
    trainer = trainers.BpeTrainer(vocab_size=VOCAB - len(marks), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tok.train_from_iterator([json.dumps(TOOLS, indent=4), ANSWER, text] + [m["content"] for m in ONE + TWO], trainer)
    tok.add_tokens(marks)
    fast = PreTrainedTokenizerFast(tokenizer_object=tok, eos_token=ends[-1], bos_token=special[0])
    fast.chat_template = text
    fast.save_pretrained(folder)
    base = ROOT / "model" / "testdata" / "qwen3"
    config = json.loads((base / "config.json").read_text())
    config.update(vocab_size=VOCAB, max_position_embeddings=2048, eos_token_id=sorted({fast.convert_tokens_to_ids(e) for e in ends}))
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(base / "model.safetensors")
    width = weights["model.embed_tokens.weight"].shape[1]
    weights["model.embed_tokens.weight"] = numpy.random.default_rng(1).normal(0, 0.05, (VOCAB, width)).astype("float32")
    save_file(weights, folder / "model.safetensors")
    return fast


def prompt_of(tok, messages):
    """The ids that transformers makes of a request, whose templates want "" for content and arguments as an object, but for DeepSeek's."""
    messages = json.loads(json.dumps(messages))
    for m in messages:
        m["content"] = m["content"] or ""
        for c in m.get("tool_calls") or []:
            if tok.family != "deepseek":
                c["function"]["arguments"] = json.loads(c["function"]["arguments"])
    return tok.apply_chat_template(messages, tools=TOOLS, add_generation_prompt=True, return_dict=False)


def call_of(family, i):
    name = f"functions.weather:{i}" if family == "kimi" else f"call_{i}"
    return {"id": name, "type": "function", "function": {"name": "weather", "arguments": '{"city": "%s", "days": %d}' % SAID["one"][i]}}


def learn(lockstep, family, tok, scratch):
    """Trains the three places by heart, and returns the prompt of each."""
    ends, several = FAMILIES[family][4], FAMILIES[family][3] is not None
    places = {"one": ONE, "answer": answered([call_of(family, 0)])} | ({"two": TWO} if several else {})
    lines = []
    for name, messages in places.items():
        prompt = prompt_of(tok, messages)
        reply = tok.encode(written(family, name) + ends[name == "answer"], add_special_tokens=False)
        lines.append({"ids": prompt + reply, "labels": [-100] * len(prompt) + reply})
    (scratch / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = max(len(line["ids"]) for line in lines)
    (scratch / "shape.toml").write_text(f"""
[model]
path = "{scratch}/start"
[data]
path = "{scratch}/train.jsonl"
pack_rows = {rows + 1}
[optim]
lr = 4e-3
warmup_steps = 10
weight_decay = 0.0
[run]
steps = 200
packs = {len(lines)}
micro_batch = {len(lines)}
eval_every = 0
verify_tokens = 0
""")
    done = subprocess.run([lockstep, "train", scratch / "shape.toml", "--out", scratch / "run"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    return places


class Streamed:
    """A message put together from the chunks of a stream, as clients do."""

    def __init__(self, chunks):
        self.content, self.tool_calls, self.finish, self.calls = "", [], None, {}
        for chunk in chunks:
            if not chunk.choices:
                continue
            choice = chunk.choices[0]
            self.finish = choice.finish_reason or self.finish
            self.content += choice.delta.content or ""
            for c in choice.delta.tool_calls or []:
                have = self.calls.setdefault(c.index, {"id": "", "name": "", "arguments": ""})
                have["id"] += c.id or ""
                have["name"] += c.function.name or ""
                have["arguments"] += c.function.arguments or ""


def said(message):
    return [(c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls or []]


def check(family, client, tok, name, messages):
    """Asks for what was learned at a place, whole, in a stream, and by the client's own helper for streams."""
    ask = dict(model="run", messages=messages, tools=TOOLS, temperature=0, max_tokens=200)
    whole = client.chat.completions.create(**ask, extra_body={"return_token_ids": True})
    ids = prompt_of(tok, messages)
    got = whole.model_extra["prompt_token_ids"]
    assert got == ids, (family, name, "prompt", tok.decode(got), tok.decode(ids))
    message, finish = whole.choices[0].message, whole.choices[0].finish_reason
    streamed = Streamed(client.chat.completions.create(**ask, stream=True))
    with client.chat.completions.stream(**ask) as stream:
        helped = stream.get_final_completion().choices[0]
    want = [("weather", {"city": city, "days": days}) for city, days in SAID.get(name, [])]
    content = (FAMILIES[family][1] if family != "gpt_oss" else "") + (ANSWER if name == "answer" else "")
    assert said(message) == want, (family, name, message)
    assert said(helped.message) == want, (family, name, helped)
    parts = [streamed.calls[i] for i in sorted(streamed.calls)]
    assert [(c["name"], json.loads(c["arguments"])) for c in parts] == want, (family, name, parts)
    assert finish == streamed.finish == helped.finish_reason == ("tool_calls" if want else "stop"), (family, name, finish, streamed.finish)
    assert (message.content or "").strip() == streamed.content.strip() == (helped.message.content or "").strip() == content.strip(), (
        family, name, message.content, streamed.content, content)
    assert all(c.id for c in message.tool_calls or []) and len({c["id"] for c in parts}) == len(parts), (family, name, message)
    if want:  # a client that forbids calls gets the text
        plain = client.chat.completions.create(**ask, tool_choice="none").choices[0]
        assert not plain.message.tool_calls and plain.finish_reason == "stop", (family, name, plain)
    return message


def serve(lockstep, folder, work):
    process = subprocess.Popen([lockstep, "serve", "--model", folder, "--name", "run", "--address", "127.0.0.1:0"], stderr=subprocess.PIPE, text=True)
    try:
        for line in process.stderr:
            if "http://" in line:
                url = "http://" + line.split("http://")[1].split(":", 2)[0] + ":" + line.split("http://")[1].split(":")[1].split("/")[0]
                return work(openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0))
        sys.exit("the server has ended")
    finally:
        process.terminate()
        process.wait()


def main():
    lockstep, *names = sys.argv[1:]
    for family in names or FAMILIES:
        began = time.time()
        with tempfile.TemporaryDirectory() as folder:
            scratch = pathlib.Path(folder)
            tok = make(family, scratch / "start")
            tok.family = family
            places = learn(lockstep, family, tok, scratch)

            def work(client):
                first = check(family, client, tok, "one", ONE)
                # what the client was given goes back to it, with a result: other ids than those learned
                again = answered([c.model_dump() for c in first.tool_calls])
                check(family, client, tok, "answer", again if family != "kimi" else places["answer"])
                if "two" in places:
                    check(family, client, tok, "two", TWO)

            serve(lockstep, scratch / "run" / "model", work)
        print(f"openai: {family}: {len(places)} places, whole and streamed, as written ({time.time() - began:.0f} s)", flush=True)


main()

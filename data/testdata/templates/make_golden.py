"""Writes golden.jsonl: every template here on every conversation, as transformers renders them (jinja2 3.1.6).

    pip install jinja2==3.1.6 && python make_golden.py > golden.jsonl
"""
import datetime
import json
import pathlib
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime.datetime(2026, 3, 7, 15, 4, 5)


class Generation(Extension):
    """Puts marks around what generation blocks make; the marks are taken out again below."""
    tags = {"generation"}

    def parse(self, parser):
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("mark"), [], [], body).set_lineno(lineno)

    def mark(self, caller):
        return "\ue000" + caller() + "\ue001"


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise ValueError(message)


env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
env.filters["tojson"] = tojson
env.globals["raise_exception"] = raise_exception
env.globals["strftime_now"] = lambda f: NOW.strftime(f)

here = pathlib.Path(__file__).parent
files = sorted(here.glob("*.jinja")) + [here / "../../template_chatml.jinja"]
for file in files:
    template = env.from_string(file.read_text())
    for i, c in enumerate(json.loads((here / "conversations.json").read_text())):
        for prompt in (False, True):
            row = {"template": file.name, "conversation": i, "prompt": prompt}
            try:
                text = template.render(messages=c["messages"], tools=c.get("tools"), documents=None, add_generation_prompt=prompt,
                                       bos_token="<s>", eos_token="<|im_end|>", **c.get("kwargs", {}))
                row["generated"] = [p.split("\ue001")[0] for p in text.split("\ue000")[1:]]
                row["text"] = text.replace("\ue000", "").replace("\ue001", "")
            except Exception as e:
                row["error"] = str(e)
            print(json.dumps(row, ensure_ascii=True))

"""Writes cases.jsonl: small templates with what jinja2 3.1.6 makes of them, configured as transformers does.

    pip install jinja2==3.1.6 && python make_cases.py > cases.jsonl
"""
import json
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise ValueError(message)


env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
env.filters["tojson"] = tojson
env.globals["raise_exception"] = raise_exception

VARS = {
    "a": 7, "b": -3, "f": 2.5, "g": 1e20, "h": 1e-7, "t": True, "n": None, "s": "Hello, World", "u": "héllo — 你好 😀", "e": "",
    "q": "it's \"q\"\n\t\\", "l": [3, 1, 2], "w": ["b", "A", "c", "a"], "two": ["x", "y"], "z": [], "one": [1],
    "d": {"zebra": 1, "apple": "x", "mango": [1, {"k": None}]}, "items_key": {"items": "own", "keys": 5},
    "people": [{"name": "Bob", "age": 30, "tags": {"x": 1}}, {"name": "alice", "age": 25}, {"name": "Carl", "age": 30}],
    "m": {"role": "user", "content": "<b> & 'x' \"y\" é"}, "lines": "one\ntwo\n\nthree", "sp": "  x y  z ", "ctl": "\x00\x1f\x7f\u2028",
}

EXPR = r"""
a + b | a - b | a * b | a / 2 | a // 2 | b // 2 | a % 3 | b % 2 | 2 ** 10 | 2 ** -1 | -a ** 2 | f * 2 | f // 1 | -f % 1 | 1 / 3 | 10 / 5 | g | h | 1.0 | 0.1 + 0.2 | 1e16 | 123456789012345680.0 | 1e15 | -0.0 | 1_000
t + 1 | t * 3 | not t | not n | n | t | false | none | True and None | 1 and 2 | 0 or 'x' | '' or [] | n or 5 | not a == 7 | a > 3 > 1 | 1 < 2 < 2 | 1 == 1.0 | true == 1 | 'a' < 'b' | [1,2] < [1,3] | 1 != '1' | none == false
s ~ a ~ n ~ t ~ f | 'a' 'b' | 'a' + 'b' | 'ab' * 3 | [1] * 2 + [3] | (1,) + (2, 3) | () | (1) | [1, 'a', none, true, 1.5, {'k': 'v'}, (1, 2)] | {'a': 1, 'b': [1]} | {1: 2, true: 3} | {} | "q\"'" | 'it\'s' | '\u00e9\x41\n' | '\q' | '\101'
s[0] | s[-1] | s[100] | s[1:4] | s[::-1] | s[:-2] | s[-3:] | u[1] | u[::-1] | u[9:] | l[0] | l[-3] | l[-4] | l[5] | l[::-1] | two[::-1] | l[1:] | l[:0] | l[::2] | l[-1:0:-1] | l[5:1] | d['zebra'] | d.zebra | d['nope'] | d.nope | d.mango[1].k | n.foo | n['x'] | a.foo | l.0 | l['0']
items_key.items() | items_key['items'] | items_key.keys | d.items() | d.keys() | d.values() | d.items() | list | d | list | d.get('zebra') | d.get('q') | d.get('q', 4) | d['get']('apple')
'World' in s | 'x' in s | 3 in l | 9 in l | 'zebra' in d | 'zebra' not in d | n in [none] | 1 in [true] | nope in [1] | 'x' in nope | nope == nope | nope == none | nope is defined | nope is not defined | nope is undefined | nope is none | nope or 'dflt' | nope ~ 'x' | nope if nope else 'e' | ('x' if false) | ('x' if false) is defined | nope | nope.foo | nope + 1 | nope() | nope['a'] | nope < 1
a is number | f is float | a is float | t is integer | t is number | t is boolean | a is integer | s is string | n is string | l is sequence | s is sequence | d is mapping | l is mapping | d is iterable | a is iterable | nope is iterable | t is true | a is true | 1 is true | t is sameas true | 1 is sameas true | n is none | a is odd | a is even | a is divisibleby 7 | a is divisibleby(2) | a is eq 7 | a is ne 7 | a is gt 3 | a is lt(3) | 3 is in l | 3 is in [1] | 'x' is not in ['x'] | s is lower | 'abc' is lower | 'ABC' is upper | range is callable | not a is number | a is not number or t | a + 1 is number | 'trim' is filter | a is ge 7 | a is le 6 | a is lessthan 8 | a is equalto 7
s | upper | s | lower | s | length | u | length | l | length | d | length | e | length | s | first | s | last | l | first | l | last | z | first | z | last | d | first | s | capitalize | 'hello wORLD-foo (bar' | title | s.title() | "they're bill's" | title | "they're bill's".title()
sp | trim | sp.strip() | 'xxabcxx' | trim('x') | 'xxabcxx'.strip('x') | sp.lstrip() | sp.rstrip() | 'abc'.lstrip('ba') | lines.split('\n') | sp.split() | 'a,b,c'.split(',', 1) | 'a,b,c'.rsplit(',', 1) | 'a b c'.split(none, 1) | 'a,b,,c'.split(',') | ''.split() | ''.split(',') | lines.splitlines() | lines.splitlines(true) | 'a</think>b</think>c'.split('</think>')[-1] | 'a</think>b'.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n')
s.startswith('Hell') | s.endswith('ld') | s.startswith(('x', 'He')) | s.replace('l', 'L') | s.replace('l', 'L', 1) | s.replace('', '-') | s | replace('l', 'L') | s | replace('l', 'L', 2) | a | replace(7, 8) | s.find('o') | s.rfind('o') | s.find('zz') | u.find('你') | s.count('l') | s.index('W') | s.index('zz') | 'abc'.isdigit() | '12'.isdigit() | 'ab'.isalpha() | ' '.isspace() | 'a1'.isalnum() | 'AB'.isupper() | 'a1'.islower() | ''.isupper() | 'ß'.upper() | 'ΑΣ'.lower() | 'éa'.capitalize() | 'a-b'.partition('-') | 'a-b-c'.rpartition('-') | 'ab'.partition('x') | 'ab'.rpartition('x') | 'pre-x'.removeprefix('pre-') | 'x.txt'.removesuffix('.txt') | ', '.join(w) | 'x'.join([1])
l | join(', ') | l | join | people | join(', ', attribute='name') | ['a', 1, none] | join('-') | l | sort | l | sort(reverse=true) | w | sort | w | sort(case_sensitive=true) | people | sort(attribute='age') | map(attribute='name') | list | people | sort(attribute='age', reverse=true) | map(attribute='name') | join(',') | [1, 'a'] | sort | d | dictsort | {'b': 1, 'A': 2} | dictsort | {'b': 1, 'A': 2} | dictsort(by='value', reverse=true) | l | reverse | list | two | reverse | list | s | reverse | [1, 1.0, 'a', 'A', true] | unique | list | w | unique | list
people | map(attribute='age') | sum | l | sum | people | sum(attribute='age') | l | sum(start=10) | z | sum | l | min | l | max | w | max | w | min | z | max | people | map(attribute='tags.x') | list | people | map(attribute='tags.x', default='-') | list | w | map('upper') | list | w | map('replace', 'a', 'b') | list | people | selectattr('age', 'equalto', 30) | map(attribute='name') | list | people | selectattr('tags') | list | length | people | selectattr('tags', 'defined') | list | length | people | rejectattr('name', 'eq', 'Bob') | map(attribute='name') | list | l | select('odd') | list | l | reject('gt', 1) | list | [0, 1, '', 'x'] | select | list | [1, none] | select('none') | list
n | default('x') | nope | default('x') | nope | default | (e) | default('x', true) | nope | d('y') | n | default('x', boolean=true) | '42' | int | '4.7' | int | 'x' | int | 'x' | int(5) | 3.9 | int | -3.9 | int | ' 12 ' | int | t | int | '1_0' | int | n | int | '1.5' | float | 'x' | float | 3 | float | 2.5 | round | 3.5 | round | 2.675 | round(2) | 2.1 | round(1, 'ceil') | 2.19 | round(1, 'floor') | 7 | round | b | abs | -2.5 | abs | a | string | n | string | l | string | s | list | lines | indent | lines | indent(2, true) | lines | indent(1, false, true) | lines | indent('> ') | 'a b_c, d' | wordcount | m | attr('role') | s | safe | d | items | list | nope | items | list
d | tojson | l | tojson | s | tojson | u | tojson | q | tojson | ctl | tojson | n | tojson | t | tojson | f | tojson | g | tojson | h | tojson | m | tojson | d | tojson(indent=2) | l | tojson(indent=4) | z | tojson(indent=2) | {} | tojson(indent=2) | d | tojson(separators=(',', ':')) | d | tojson(sort_keys=true) | u | tojson(ensure_ascii=true) | u | tojson(true) | {1: 2, none: 3, true: 4, 1.5: 5} | tojson | nope | tojson | (1, 2) | tojson | d | tojson(indent=2, separators=(',', ': ')) | d | tojson(indent='\t')
q | string | [q] | [u] | [ctl] | ["a'b"] | ['a"b'] | [g, h, 1.0] | range(5) | list | range(1, 4) | list | range(5, 0, -2) | list | range(0) | list | range(100001) | list | range(1.5) | dict(a=1, b=2) | dict({'a': 1}, b=2) | namespace(a=1).a | namespace(a=1).b | 1 if 2 else 3 if 4 else 5 | [1 if false else 2] | -1 | abs | - 3 + 1 | +a | --a | 2 ** 3 ** 2 | 2 * 3 ~ 4 | 1 + 2 ~ 3 | 'a' ~ 1 + 2 | 7 % 4 * 2 | not not 1 | l.append(4) | d.update({}) | d.pop('zebra') | l.index(1) | l.count(3) | l.index(99) | d.copy() | s.foo | s.foo() | s.__class__ | 1 // 0 | 1 / 0 | 'a' + 1 | 1 + 'a' | l + 'a' | 5 in 5 | n + 1 | -s | {'a': 1}['a'] | {'a': {}}.a | [[1, 2], [3]] [0] [1] | 'x' is in 'xyz' | 'a' in 'abc' in 'abc' | loop | varargs | l[none:2] | l[n] | l['x'] | l[t] | l[1.0] | d[n] | d[l] | raise_exception('no') | s % 1 | undefined_fn(1) | a.b.c | (a, b) | a, b | 1, | [a,] | {'x': 1,} | 'a'.join(['b', 'c']) | 'A' | lower ~ 'B' | - 'x' | length | 1.5 is float and 2 is integer | 010 | 00 | 0b11 | 0x1G | [] is defined | s.upper().lower().title() | "a" "b" | upper | 0x10 | 1e3 | 1.e3 | .5 | 5.
"""

TEXT = [
    "a{{ 1 }}b", "{{ 1 }}\nx", "{% if true %}\nx\n{% endif %}\ny\n", "  {% if true %}x{% endif %}  \n", "a  {%- if true -%}  b  {%- endif -%}  c",
    "x\n    {% set y = 1 %}\n{{ y }}", "x\n    {%+ set y = 1 %}\n{{ y }}", "{% set y = 1 +%}\nz", "{% set y = 1 -%}\n\n  z", "{# c #}\nx", "  {# c #}  x", "a {#- c -#} b", "{#+ c +#}\nx",
    "x {{- 1 -}} y", "x\n{{- 1 }}\n\n", "x\n\n", "\n", "", "{{ '}}' }}", "{{ '%}' }}", "{% if '%}' %}y{% endif %}", "{{ {'a': {'b': 1}}['a'] }}", "a\r\nb\rc\n", "{{ 'a\r\nb' }}",
    "{% raw %}{{ x }}{% y %}{% endraw %}z", "{% raw -%}  x  {%- endraw %}\nz", "  {% raw %}\n a {% endraw %}\n b", "{%raw%}{{{%endraw%}", "{{ 1 }}{{ 2 }}", "{{1}} {%if 1%} {%endif%} {{2}}", "  {{ 1 }}\n  {% if 1 %}\n  y\n  {% endif %}\n  z",
    "{% for x in l %}{{ x }},{% endfor %}", "{% for x in z %}{{ x }}{% else %}none{% endfor %}", "{% for x in l if x > 1 %}{{ loop.index }}{{ loop.length }}{{ x }} {% endfor %}", "{% for x in l if x > 9 %}x{% else %}e{% endfor %}",
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.previtem is defined }};{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in d %}{{ k }}{% endfor %}", "{% for c in u %}{{ c }}|{% endfor %}", "{% for a, b in [(1, 2), [3, 4]] %}{{ a + b }}{% endfor %}", "{% for a, b in [1] %}x{% endfor %}", "{% for a, b in ['xy'] %}{{ b }}{{ a }}{% endfor %}", "{% for (a, b) in [(1, 2)] %}{{ a }}{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% else %}E{% endfor %}", "{% for x in l %}{% for y in two %}{{ x }}{{ y }}{{ loop.index }}{% if y == 'x' %}{% continue %}{% endif %}!{% endfor %}{{ loop.index }}{% endfor %}", "{% break %}", "{% for x in nope %}x{% else %}u{% endfor %}", "{% for x in 5 %}{% endfor %}", "{% for x in n %}{% endfor %}",
    "{% set i = 0 %}{% for x in l %}{% set i = i + 1 %}{{ i }}{% endfor %}{{ i }}", "{% set ns = namespace(i=0) %}{% for x in l %}{% set ns.i = ns.i + x %}{% endfor %}{{ ns.i }}", "{% set ns.i = 1 %}", "{% set q = 1 %}{% set q.i = 1 %}", "{% if true %}{% set v = 1 %}{% endif %}{{ v }}", "{% for x in l %}{% set v = x %}{% endfor %}{{ v }}", "{% for x in l %}{% if loop.first %}{% set v = 5 %}{% endif %}{{ v }},{% endfor %}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a = 1, 2 %}{{ a }}", "{% set a, b = 1 %}", "{% set x %}abc{{ 1 }}{% endset %}[{{ x }}]", "{% set x | upper | replace('A', 'z') %}abc{% endset %}{{ x }}", "{% set x %}\n  y\n{% endset %}[{{ x }}]", "{% filter upper %}ab{{ 'c' }}{% endfilter %}", "{% filter replace('a', 'b') | upper %}aa{% endfilter %}", "{% set x = 1 %}{% filter upper %}{% set x = 2 %}{% endfilter %}{{ x }}",
    "{% with x = 1, y = 2 %}{{ x + y }}{% endwith %}{{ x }}", "{% with %}{% set x = 3 %}{{ x }}{% endwith %}{{ x }}", "{% set x = 1 %}{% with x = 2, y = x %}{{ x }}{{ y }}{% endwith %}",
    "{% macro m(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(1, c='z') }} {{ m(a=5, b=6) }} {{ m() }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}", "{% macro m() %}{{ v }}{% endmacro %}{% set v = 1 %}{{ m() }}", "{% macro m(x) %}{% if x > 0 %}{{ x }}{{ m(x - 1) }}{% endif %}{% endmacro %}{{ m(3) }}", "{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(4) }}", "{% set v = 1 %}{% macro m() %}{% set v = 2 %}{{ v }}{% endmacro %}{{ m() }}{{ v }}",
    "{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}body{% endcall %}", "{% macro m(x) %}[{{ caller(x) }}]{% endmacro %}{% call(y) m(3) %}b{{ y }}{% endcall %}", "{% macro m() %}x{% endmacro %}{% call m() %}b{% endcall %}", "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}", "{% macro m(x) %}\n  {{- x }}\n{% endmacro %}{{ m(1) | trim }}", "{{ m }}{% macro m() %}{% endmacro %}", "{% for x in l %}{% macro m(y) %}{{ x }}{{ y }}{% endmacro %}{{ m(1) }}{% endfor %}",
    "{% if nope %}a{% elif a == 7 %}b{% elif true %}c{% else %}d{% endif %}", "{% if 0 %}a{% else %}d{% endif %}", "{% if 0 %}a{% elif 0 %}b{% endif %}", "{% if %}{% endif %}", "{% if 1 %}", "{% endif %}", "{% else %}", "{% unknown %}", "{{ 1 + }}", "{{ (1 }}", "{{ 1 ) }}", "{{ 'a }}", "{{ a", "{% if a", "{# a", "{% raw %}", "{{ a | nofilter }}", "{{ a is notest }}", "{{ }}", "{% for x l %}{% endfor %}", "{% set true = 1 %}", "{{ a b }}", "{{ f(a=1, 2) }}", "{{ a..b }}", "{{ @ }}", "{{ a ? b }}",
    "{% for m in people %}{{ '<|im_start|>' + m.name + '\n' }}{%- if m.tags is defined and m.tags %}T{% endif -%}\n{% endfor %}", "{%- for x in l -%}\n  {{ x }}\n{%- endfor -%}\n", "{%- set ns = namespace(found=false) %}\n{%- for m in people[::-1] %}\n    {%- set index = (people|length - 1) - loop.index0 %}\n    {%- if not ns.found and m.age == 30 %}{% set ns.found = true %}{{ index }}{% endif %}\n{%- endfor %}",
    "{{ loop }}", "{% for x in l %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% for p in people %}{{ loop.changed(p.age) }}{% endfor %}", "{% for x in l %}{{ loop.nope }}{% endfor %}", "{{ raise_exception('bad') }}", "{% if false %}{{ a | nofilter }}{{ a is notest }}{% endif %}ok", "{{ -2 // h }} {{ 2.5 // -0.1 }} {{ -0.0 // 3 }} {{ 7.5 // 2 }}", "{{ nope | int }}", "{{ nope | float }}", "{{ n[1:] }}", "{{ u | indent }}{{ ctl | indent }}{{ 'a\\n' | indent }}", "{{ n | map('string') | list }}{{ nope is callable }}{{ 3.0 is odd }}{{ 4.0 is divisibleby 2 }}", "{% if false %}{{ raise_exception('bad') }}{% endif %}ok", "{{ '{{' }}", "{ { 1 }}", "{{ '\\n' }}x", "{{\n1\n}}\n", "{%\nif 1\n%}x{% endif %}", "{{- '' -}}  x", "  {{- 1 }}", "\n\n{%- if 1 %}\n\nx{% endif %}", "a\n\t {% if 1 %} b{% endif %}", "{% if 1 %}  {% if 1 %}x{% endif %}{% endif %}", "\u00a0{%- if 1 -%}\u00a0x{% endif %}", "{% for x in l recursive %}{% endfor %}",
]


def expressions():
    """Cuts EXPR at " | " that is not a filter: an entry ends where the next piece does not name a filter."""
    filters = set(env.filters)
    for line in EXPR.strip().splitlines():
        entry = None
        for piece in line.split(" | "):
            name = piece.split("(")[0].split(" ")[0].split(".")[0]
            if entry is not None and name in filters and not (name == "list" and entry == ""):
                entry += " | " + piece
                continue
            if entry is not None:
                yield entry
            entry = piece
        yield entry


def case(source):
    try:
        text = env.from_string(source).render(**VARS)
        text.encode("utf-8")
        return {"template": source, "text": text}
    except Exception as e:
        return {"template": source, "error": type(e).__name__ + ": " + str(e).split("\n")[0]}


print(json.dumps({"vars": VARS}, ensure_ascii=True))
seen = set()
for source in ["{{ " + x + " }}" for x in expressions()] + TEXT:
    if source not in seen:
        seen.add(source)
        print(json.dumps(case(source), ensure_ascii=True))

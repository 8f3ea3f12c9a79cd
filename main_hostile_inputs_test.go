package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// hostileValues are what stands in place of a value of JSON or TOML.
func hostileValues() []string {
	return []string{
		"0", "-1", "1", "65536", "16777217", "1000000000", "4611686018427387904", "9223372036854775807",
		"-9223372036854775808", "18446744073709551616", "1e308", "-1e308", "1e-320", "0.5", "nan", "inf", "null",
		"true",
		`""`, `"x"`, `"\u0000\u001b[31m"`, `"\ud800"`, `"` + strings.Repeat("x", 5000) + `"`, "[]", "{}", "[[]]",
		"[null]",
		`["a", 1]`, "[1, 2, 3]", `{"a": {"b": 1}}`, strings.Repeat("[", 2000) + strings.Repeat("]", 2000),
		strings.Repeat(`{"a":`, 2000) + "1" + strings.Repeat("}", 2000), `"../../../etc/passwd"`, `"(a*)*b"`,
		"[" + strings.Repeat("1,", 20000) + "1]",
	}
}

func drawn[E any](rng *rand.Rand, list []E) E { return list[rng.IntN(len(list))] }

// damagedText changes a text as a disk, an editor or an attacker might.
func damagedText(rng *rand.Rand, text []byte) []byte {
	text = append([]byte{}, text...)
	if len(text) == 0 {
		return text
	}
	at := rng.IntN(len(text))
	switch rng.IntN(6) {
	case 0:
		return text[:at]
	case 1:
		text[at] ^= 1 << rng.IntN(8)
		return text
	case 2:
		return append(text[:at:at], append([]byte(drawn(rng, hostileValues())), text[at:]...)...)
	case 3:
		end := min(len(text), at+1+rng.IntN(200))
		return append(text[:at:at], text[end:]...)
	case 4:
		end := min(len(text), at+1+rng.IntN(200))
		return append(text[:end:end], text[at:]...)
	}
	for range 1 + rng.IntN(20) {
		text[rng.IntN(len(text))] = byte(rng.IntN(256))
	}
	return text
}

// damagedJSON puts a hostile value in place of one of an object's, at any depth, or damages its text.
func damagedJSON(t *testing.T, rng *rand.Rand, text []byte) []byte {
	t.Helper()
	if rng.IntN(3) == 0 {
		return damagedText(rng, text)
	}
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	const mark = `"HOSTILE"`
	out, err := json.Marshal(marked(rng, v))
	if err != nil {
		t.Fatal(err)
	}
	return []byte(strings.Replace(string(out), mark, drawn(rng, hostileValues()), 1))
}

// marked is a value of JSON with HOSTILE in place of a part of it.
func marked(rng *rand.Rand, v any) any {
	switch v := v.(type) {
	case map[string]any:
		if keys := sortedKeys(v); len(keys) > 0 {
			k := drawn(rng, keys)
			v[k] = marked(rng, v[k])
			return v
		}
	case []any:
		if len(v) > 0 && rng.IntN(4) > 0 {
			i := rng.IntN(len(v))
			v[i] = marked(rng, v[i])
			return v
		}
	}
	return "HOSTILE"
}

func hostileShape(t *testing.T, rng *rand.Rand, dir string) []string {
	shapes, err := filepath.Glob("configs/*.toml")
	if err != nil {
		t.Fatal(err)
	}
	text := []byte(read(t, drawn(rng, shapes)))
	path := filepath.Join(dir, "shape.toml")
	lines := strings.Split(string(text), "\n")
	i := rng.IntN(len(lines))
	if key, _, ok := strings.Cut(lines[i], "="); ok && rng.IntN(3) > 0 {
		lines[i] = key + "= " + drawn(rng, hostileValues())
		text = []byte(strings.Join(lines, "\n"))
	} else {
		text = damagedText(rng, text)
	}
	write(t, path, string(text))
	return []string{"train", path, "--print-config"}
}

// hostileModel is a copy of a tiny model with other files in place of some.
func hostileModel(t *testing.T, dir, from string, others map[string][]byte) string {
	t.Helper()
	for _, name := range []string{"config.json", "model.safetensors", "adapter_config.json",
		"adapter_model.safetensors"} {
		text, err := os.ReadFile(filepath.Join(from, name))
		if other, ok := others[name]; ok {
			text, err = other, nil
		}
		if err == nil {
			write(t, filepath.Join(dir, name), string(text))
		}
	}
	return dir
}

func models(t *testing.T) (dirs []string) {
	t.Helper()
	files, err := filepath.Glob("model/testdata/*/model.safetensors")
	if err != nil || len(files) < 5 {
		t.Fatal(len(files), err)
	}
	for _, f := range files {
		dirs = append(dirs, filepath.Dir(f))
	}
	return dirs
}

func hostileConfig(t *testing.T, rng *rand.Rand, dir string) []string {
	from := drawn(rng, models(t))
	config := damagedJSON(t, rng, []byte(read(t, filepath.Join(from, "config.json"))))
	return []string{"inspect", hostileModel(t, dir, from, map[string][]byte{"config.json": config})}
}

// scored is the arguments of score for a folder that may hold the model and the adapter.
func scored(t *testing.T, dir, model string, more ...string) []string {
	t.Helper()
	in := filepath.Join(dir, "in.jsonl")
	write(t, in, "{\"ids\": [1, 2, 3, 4]}\n")
	out := filepath.Join(dir, "out.safetensors")
	return append([]string{"score", "--model", model, "--in", in, "--out", out}, more...)
}

// damagedTensors is a safetensors file with a damaged header, or data.
func damagedTensors(t *testing.T, rng *rand.Rand, file []byte) []byte {
	n := int(file[0]) | int(file[1])<<8 | int(file[2])<<16
	if rng.IntN(2) == 0 {
		return damagedText(rng, file)
	}
	header := damagedJSON(t, rng, file[8:8+n])
	size := uint64(len(header))
	if rng.IntN(8) == 0 {
		size = rng.Uint64()
	}
	out := make([]byte, 8)
	for i := range out {
		out[i] = byte(size >> (8 * i))
	}
	return append(append(out, header...), file[8+n:]...)
}

func hostileWeights(t *testing.T, rng *rand.Rand, dir string) []string {
	from := drawn(rng, models(t))
	file := damagedTensors(t, rng, []byte(read(t, filepath.Join(from, "model.safetensors"))))
	return scored(t, dir, hostileModel(t, dir, from, map[string][]byte{"model.safetensors": file}))
}

func hostileAdapter(t *testing.T, rng *rand.Rand, dir string) []string {
	name := drawn(rng, []string{"qwen3", "qwen3_moe", "llama3", "glm5"})
	from := "model/testdata/adapters/" + name
	others := map[string][]byte{}
	if rng.IntN(3) > 0 {
		others["adapter_config.json"] = damagedJSON(t, rng, []byte(read(t, from+"/adapter_config.json")))
	} else {
		others["adapter_model.safetensors"] = damagedTensors(t, rng, []byte(read(t, from+"/adapter_model.safetensors")))
	}
	return scored(t, dir, "model/testdata/"+name, "--adapter", hostileModel(t, dir, from, others))
}

// folderOfTexts is what tokenize needs of a model.
func folderOfTexts(t *testing.T, dir string) {
	t.Helper()
	config := read(t, "model/testdata/qwen3/config.json")
	write(t, filepath.Join(dir, "config.json"), strings.Replace(config, `_size": 320`, `_size": 200000`, 1))
	write(t, filepath.Join(dir, "tokenizer.json"), read(t, "data/tokenizer/testdata/qwen3/tokenizer.json"))
}

func hostileTokenizer(t *testing.T, rng *rand.Rand, dir string) []string {
	name := drawn(rng, []string{"qwen3", "gpt2", "unk", "flags", "o200k", "glm5", "prefix"})
	folderOfTexts(t, dir)
	file := []byte(read(t, "data/tokenizer/testdata/"+name+"/tokenizer.json"))
	write(t, filepath.Join(dir, "tokenizer.json"), string(damagedJSON(t, rng, file)))
	in := filepath.Join(dir, "text.jsonl")
	write(t, in, `{"text": "Hello, wörld 123 \n\n <|im_start|>`+strings.Repeat("ab", 5000)+`"}`+"\n")
	return []string{"tokenize", "--model", dir, "--in", in, "--out", filepath.Join(dir, "out.jsonl")}
}

// hostileRounds grow values in a loop, and work on them.
var hostileRounds = []string{
	"{% set ns.x = ns.x ~ ns.x %}", "{% set ns.l = [ns.l, ns.l] %}", "{% set ns.k = [ns.k, ns.k] %}",
	"{{ ns.l == ns.k }}", "{% set ns.l = ns.l + ns.l + [ns.x] %}", "{{ ns.x | upper }}", "{{ ns.l | tojson }}",
	"{% set ns.x = ns.x.replace('a', ns.x) %}", "{{ ns.l | sort }}", "{{ ns.l }}", "{{ messages | tojson }}",
	"{% for m in messages * 999 %}{{ m.content }}{% endfor %}", "{{ ns.x[::-1] }}", "{{ ns.k < ns.l }}", "{{ nope.x }}",
	"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{{ ns.x * 99999999 }}", "{{ range(99999) | list | sum }}",
	"{% for c in messages[0].content %}{% for d in ns.x %}{{ c ~ d }}{% endfor %}{% endfor %}",
	"{{ raise_exception(ns.x) }}", "{{ ns.l | map('upper') | join(ns.x) }}", "{{ 9 ** 99 }}", "{% if",
}

func hostileTemplate(t *testing.T, rng *rand.Rand, dir string) []string {
	var round strings.Builder
	for range 1 + rng.IntN(4) {
		round.WriteString(drawn(rng, hostileRounds))
	}
	source := "{% set ns = namespace(x='ab', l=[], k=[]) %}{% for i in range(" +
		drawn(rng, []string{"3", "60", "99999"}) + ") %}" + round.String() + "{% endfor %}" +
		"{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"
	if rng.IntN(4) == 0 {
		source = string(damagedText(rng, []byte(source)))
	}
	folderOfTexts(t, dir)
	write(t, filepath.Join(dir, "chat_template.jinja"), source)
	in := filepath.Join(dir, "chat.jsonl")
	write(t, in, `{"messages": [{"role": "user", "content": "`+strings.Repeat("hi ", rng.IntN(3000))+
		`"}, {"role": "assistant", "content": "yes"}]}`+"\n")
	return []string{"tokenize", "--model", dir, "--in", in, "--chat"}
}

func hostileLines(t *testing.T, rng *rand.Rand, dir string) []string {
	in, out := filepath.Join(dir, "in.jsonl"), filepath.Join(dir, "out")
	line := drawn(rng, []string{`{"ids": [1, 2, 3]}`, `{"prompt": "make 28 from 7 9 12:"}`, `{"text": "hello"}`,
		`{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes", "weight": 1}]}`,
		`{"ids": [1, 2], "labels": [-100, 2], "weights": [0, 1]}`})
	var text []byte
	for range 1 + rng.IntN(3) {
		text = fmt.Appendf(text, "%s\n", damagedJSON(t, rng, []byte(line)))
	}
	write(t, in, string(text))
	switch rng.IntN(3) {
	case 0:
		return []string{"score", "--model", "model/testdata/qwen3", "--in", in, "--out", out}
	case 1:
		return []string{"generate", "--model", "model/testdata/qwen3", "--in", in, "--out", out, "--max-tokens", "2"}
	}
	folderOfTexts(t, dir)
	return []string{"tokenize", "--model", dir, "--in", in, "--chat"}
}

func sortedKeys(m map[string]any) []string { return slices.Sorted(maps.Keys(m)) }

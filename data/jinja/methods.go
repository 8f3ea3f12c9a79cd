package jinja

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"lockstep/data/ordered"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

// attribute is a method or attribute of a value; ok is false if its type has none of that name (here).
func attribute(x any, name string) (any, bool) {
	switch x := x.(type) {
	case *namespace:
		v, ok := x.vars[name]
		return v, ok
	case *loop:
		v := x.attr(name)
		_, none := v.(undefined)
		return v, !none
	case *ordered.Dict:
		if m, ok := dictMethods[name]; ok {
			return function(func(r *run, c call) any { return m(r, x, c) }), true
		}
		if mutators[name] {
			return forbidden("dict", name), true
		}
	case string:
		if m, ok := strMethods[name]; ok {
			return function(func(r *run, c call) any { return m(r, x, c) }), true
		}
	case []any:
		if mutators[name] {
			return forbidden("list", name), true
		}
		return listMethod(x, name)
	case tuple:
		return listMethod(x, name)
	}
	return nil, false
}

// mutators are the methods that transformers' sandbox forbids.
var mutators = map[string]bool{
	"append": true, "clear": true, "extend": true, "insert": true, "pop": true, "popitem": true, "remove": true,
	"reverse": true, "setdefault": true, "sort": true, "update": true,
}

func forbidden(typ, name string) function {
	return func(*run, call) any {
		fail(0, "%s.%s changes a value, which a chat template may not do", typ, name)
		return nil
	}
}

var dictMethods = map[string]func(r *run, d *ordered.Dict, c call) any{
	"get": func(r *run, d *ordered.Dict, c call) any {
		a := c.bind("get", "key", "default?")
		if v, ok := d.Get(r.key(a[0])); ok {
			return v
		}
		return a.or(1, nil)
	},
	"items":  func(r *run, d *ordered.Dict, c call) any { c.bind("items"); return view{"dict_items", r.items(d)} },
	"keys":   func(r *run, d *ordered.Dict, c call) any { c.bind("keys"); return view{"dict_keys", r.elements(d)} },
	"values": func(r *run, d *ordered.Dict, c call) any { c.bind("values"); return view{"dict_values", r.values(d)} },
	"copy":   func(r *run, d *ordered.Dict, c call) any { c.bind("copy"); r.makeDict(d.Len()); return d.Clone() },
}

func listMethod(list []any, name string) (any, bool) {
	find := func(r *run, x any) (at, n int) {
		at = -1
		for i, y := range list {
			if r.equal(x, y) {
				n++
				if at < 0 {
					at = i
				}
			}
		}
		return at, n
	}
	switch name {
	case "index":
		return function(func(r *run, c call) any {
			at, _ := find(r, c.bind("index", "value")[0])
			if at < 0 {
				fail(0, "the value is not in the list")
			}
			return int64(at)
		}), true
	case "count":
		return function(func(r *run, c call) any {
			_, n := find(r, c.bind("count", "value")[0])
			return int64(n)
		}), true
	}
	return nil, false
}

// strMethods are Python's string methods. Positions and lengths are in code points.
var strMethods = map[string]func(r *run, s string, c call) any{
	"strip":  func(r *run, s string, c call) any { return r.stripped(s, c.bind("strip", "chars?"), true, true) },
	"lstrip": func(r *run, s string, c call) any { return r.stripped(s, c.bind("lstrip", "chars?"), true, false) },
	"rstrip": func(r *run, s string, c call) any { return r.stripped(s, c.bind("rstrip", "chars?"), false, true) },
	"split":  func(r *run, s string, c call) any { return r.split(s, c.bind("split", "sep?", "maxsplit?"), false) },
	"rsplit": func(r *run, s string, c call) any { return r.split(s, c.bind("rsplit", "sep?", "maxsplit?"), true) },
	"splitlines": func(r *run, s string, c call) any {
		return r.texts(r.splitLines(s, truth(c.bind("splitlines", "keepends?").or(0, false))))
	},
	"startswith": func(r *run, s string, c call) any {
		return r.affix(s, c.bind("startswith", "prefix")[0], strings.HasPrefix)
	},
	"endswith": func(r *run, s string, c call) any {
		return r.affix(s, c.bind("endswith", "suffix")[0], strings.HasSuffix)
	},
	"removeprefix": func(r *run, s string, c call) any {
		prefix := text(c.bind("removeprefix", "prefix")[0])
		r.read(min(len(s), len(prefix)))
		return strings.TrimPrefix(s, prefix)
	},
	"removesuffix": func(r *run, s string, c call) any {
		suffix := text(c.bind("removesuffix", "suffix")[0])
		r.read(min(len(s), len(suffix)))
		return strings.TrimSuffix(s, suffix)
	},
	"replace":    func(r *run, s string, c call) any { return r.replace(s, c.bind("replace", "old", "new", "count?")) },
	"upper":      func(r *run, s string, c call) any { c.bind("upper"); return r.upper(s) },
	"lower":      func(r *run, s string, c call) any { c.bind("lower"); return r.lower(s) },
	"title":      func(r *run, s string, c call) any { c.bind("title"); return r.titleWords(s) },
	"capitalize": func(r *run, s string, c call) any { c.bind("capitalize"); return r.capitalize(s) },
	"join": func(r *run, s string, c call) any {
		return r.joinText(r.elements(c.bind("join", "iterable")[0]), s, text)
	},
	"find": func(r *run, s string, c call) any { return r.find(s, text(c.bind("find", "sub")[0]), strings.Index) },
	"rfind": func(r *run, s string, c call) any {
		return r.find(s, text(c.bind("rfind", "sub")[0]), strings.LastIndex)
	},
	"index": func(r *run, s string, c call) any {
		at := r.find(s, text(c.bind("index", "sub")[0]), strings.Index)
		if at < 0 {
			fail(0, "substring not found")
		}
		return at
	},
	"count": func(r *run, s string, c call) any {
		r.read(len(s))
		return int64(strings.Count(s, text(c.bind("count", "sub")[0])))
	},
	"partition": func(r *run, s string, c call) any {
		return r.partition(s, text(c.bind("partition", "sep")[0]), strings.Index)
	},
	"rpartition": func(r *run, s string, c call) any {
		sep := text(c.bind("rpartition", "sep")[0])
		r.read(len(s))
		if sep != "" && !strings.Contains(s, sep) {
			return tuple{"", "", s}
		}
		return r.partition(s, sep, strings.LastIndex)
	},
	"isdigit": func(r *run, s string, c call) any { c.bind("isdigit"); return r.every(s, unicode.IsDigit) },
	"isalpha": func(r *run, s string, c call) any { c.bind("isalpha"); return r.every(s, unicode.IsLetter) },
	"isspace": func(r *run, s string, c call) any { c.bind("isspace"); return r.every(s, isSpace) },
	"isalnum": func(r *run, s string, c call) any {
		c.bind("isalnum")
		return r.every(s, isAlnum)
	},
	"isupper": func(r *run, s string, c call) any { c.bind("isupper"); return r.cased(s, unicode.IsUpper) },
	"islower": func(r *run, s string, c call) any { c.bind("islower"); return r.cased(s, unicode.IsLower) },
}

// text is an argument that must be a string.
func text(v any) string {
	s, ok := v.(string)
	if !ok {
		fail(0, "want a str, not a %s", typeName(v))
	}
	return s
}

func (r *run) stripped(s string, a bound, left, right bool) string {
	cut, whole := isSpace, len(s)
	if chars := a.or(0, nil); chars != nil {
		set := text(chars)
		cut = func(c rune) bool { r.read(len(set)); return strings.ContainsRune(set, c) }
	}
	if left {
		s = strings.TrimLeftFunc(s, cut)
	}
	if right {
		s = strings.TrimRightFunc(s, cut)
	}
	r.decode(whole - len(s))
	return s
}

// split is str.split and str.rsplit: at a separator, or at runs of blanks, at most so many times.
func (r *run) split(s string, a bound, fromRight bool) any {
	limit := integer(a.or(1, int64(-1)), "maxsplit")
	r.read(len(s))
	var parts []string
	switch sep := a.or(0, nil); {
	case sep == nil && (limit < 0 || !fromRight):
		parts = r.fields(s, limit)
	case sep == nil:
		fail(0, "rsplit at blanks with a maximum is not supported")
	case text(sep) == "":
		fail(0, "empty separator")
	default:
		r.makeList(strings.Count(s, text(sep)) + 1)
		parts = strings.Split(s, text(sep))
		if n := len(parts) - 1; limit >= 0 && limit < n {
			if fromRight {
				r.makeString(len(s))
				head := strings.Join(parts[:n-limit+1], text(sep))
				parts = append([]string{head}, parts[n-limit+1:]...)
			} else {
				parts = strings.SplitN(s, text(sep), limit+1)
			}
		}
	}
	return r.texts(parts)
}

// fields splits at runs of blanks; after limit splits the rest stays whole.
func (r *run) fields(s string, limit int) (parts []string) {
	r.decode(len(s))
	s = strings.TrimLeftFunc(s, isSpace)
	for s != "" {
		r.take(sizeElement)
		end := strings.IndexFunc(s, isSpace)
		if limit >= 0 && len(parts) == limit {
			return append(parts, strings.TrimRightFunc(s, isSpace))
		}
		if end < 0 {
			return append(parts, s)
		}
		parts = append(parts, s[:end])
		s = strings.TrimLeftFunc(s[end:], isSpace)
	}
	return parts
}

func (r *run) texts(parts []string) []any {
	r.makeList(len(parts))
	list := make([]any, len(parts))
	for i, p := range parts {
		list[i] = p
	}
	return list
}

// splitLines splits after Python's line ends.
func (r *run) splitLines(s string, keep bool) []string {
	r.decode(len(s))
	var parts []string
	for s != "" {
		r.take(sizeElement)
		i := strings.IndexAny(s, "\n\r\v\f\x1c\x1d\x1e\u0085\u2028\u2029")
		if i < 0 {
			parts = append(parts, s)
			break
		}
		_, n := utf8.DecodeRuneInString(s[i:])
		if strings.HasPrefix(s[i:], "\r\n") {
			n = 2
		}
		end := i
		if keep {
			end = i + n
		}
		parts = append(parts, s[:end])
		s = s[i+n:]
	}
	return parts
}

// affix tries one prefix (suffix), or each of a tuple.
func (r *run) affix(s string, v any, has func(s, part string) bool) bool {
	if list, ok := v.(tuple); ok {
		for _, p := range list {
			r.spend(1)
			r.read(min(len(s), len(text(p))))
			if has(s, text(p)) {
				return true
			}
		}
		return false
	}
	r.read(min(len(s), len(text(v))))
	return has(s, text(v))
}

func (r *run) replace(s string, a bound) string {
	old, with, n := text(a[0]), text(a[1]), integer(a.or(2, int64(-1)), "count")
	r.read(len(s))
	times := strings.Count(s, old)
	if n >= 0 {
		times = min(times, n)
	}
	r.spend(times)
	r.makeString(len(s) + times*(len(with)-len(old)))
	return strings.Replace(s, old, with, n)
}

func (r *run) joinText(list []any, sep string, read func(any) string) string {
	w := r.writer()
	for i, v := range list {
		if i > 0 {
			w.str(sep)
		}
		r.spend(1)
		w.str(read(v))
	}
	return w.String()
}

// find is the position of a substring in code points, or -1.
func (r *run) find(s, sub string, index func(s, sub string) int) int64 {
	r.read(len(s))
	at := index(s, sub)
	if at < 0 {
		return -1
	}
	return int64(utf8.RuneCountInString(s[:at]))
}

func (r *run) partition(s, sep string, index func(s, sub string) int) any {
	if sep == "" {
		fail(0, "empty separator")
	}
	r.read(len(s))
	at := index(s, sep)
	if at < 0 {
		return tuple{s, "", ""}
	}
	return tuple{s[:at], sep, s[at+len(sep):]}
}

func (r *run) every(s string, is func(rune) bool) bool {
	r.decode(len(s))
	return s != "" && strings.IndexFunc(s, func(r rune) bool { return !is(r) }) < 0
}

// cased: some character has case, and all that have it are as is says.
func (r *run) cased(s string, is func(rune) bool) bool {
	r.decode(len(s))
	found := false
	for _, c := range s {
		if unicode.IsUpper(c) || unicode.IsLower(c) || unicode.IsTitle(c) {
			if !is(c) {
				return false
			}
			found = true
		}
	}
	return found
}

// Case mappings are the full ones of Unicode, as in Python: one character may become several.
func (r *run) upper(s string) string { return r.mapped(s, cases.Upper(language.Und)) }
func (r *run) lower(s string) string { return r.mapped(s, cases.Lower(language.Und)) }

func (r *run) mapped(s string, to cases.Caser) string {
	r.take(sizeCased)
	r.decode(len(s))
	r.makeString(len(s))
	return to.String(s)
}

func (r *run) capitalize(s string) string {
	_, n := utf8.DecodeRuneInString(s)
	r.makeString(len(s))
	return r.titleCase(s[:n]) + r.lower(s[n:])
}

// titleCase is the title case of one character.
func (r *run) titleCase(s string) string { return r.mapped(s, cases.Title(language.Und)) }

// titleWords is str.title: a letter after a letter is lower case, any other is title case.
func (r *run) titleWords(s string) string {
	w := r.writer()
	inside := false
	for _, c := range s {
		r.spend(1)
		if inside {
			w.str(r.lower(string(c)))
		} else {
			w.str(r.titleCase(string(c)))
		}
		inside = unicode.IsUpper(c) || unicode.IsLower(c) || unicode.IsTitle(c)
	}
	return w.String()
}

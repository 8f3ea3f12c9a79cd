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
			return function(func(_ *run, c call) any { return m(x, c) }), true
		}
		if mutators[name] {
			return forbidden("dict", name), true
		}
	case string:
		if m, ok := strMethods[name]; ok {
			return function(func(_ *run, c call) any { return m(x, c) }), true
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

var dictMethods = map[string]func(d *ordered.Dict, c call) any{
	"get": func(d *ordered.Dict, c call) any {
		a := c.bind("get", "key", "default?")
		if v, ok := d.Get(key(a[0])); ok {
			return v
		}
		return a.or(1, nil)
	},
	"items":  func(d *ordered.Dict, c call) any { c.bind("items"); return view{"dict_items", items(d)} },
	"keys":   func(d *ordered.Dict, c call) any { c.bind("keys"); return view{"dict_keys", elements(d)} },
	"values": func(d *ordered.Dict, c call) any { c.bind("values"); return view{"dict_values", values(d)} },
	"copy":   func(d *ordered.Dict, c call) any { c.bind("copy"); return d.Clone() },
}

func listMethod(list []any, name string) (any, bool) {
	find := func(x any) (at, n int) {
		at = -1
		for i, y := range list {
			if equal(x, y) {
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
		return function(func(_ *run, c call) any {
			at, _ := find(c.bind("index", "value")[0])
			if at < 0 {
				fail(0, "the value is not in the list")
			}
			return int64(at)
		}), true
	case "count":
		return function(func(_ *run, c call) any {
			_, n := find(c.bind("count", "value")[0])
			return int64(n)
		}), true
	}
	return nil, false
}

// strMethods are Python's string methods. Positions and lengths are in code points.
var strMethods = map[string]func(s string, c call) any{
	"strip":  func(s string, c call) any { return stripped(s, c.bind("strip", "chars?"), true, true) },
	"lstrip": func(s string, c call) any { return stripped(s, c.bind("lstrip", "chars?"), true, false) },
	"rstrip": func(s string, c call) any { return stripped(s, c.bind("rstrip", "chars?"), false, true) },
	"split":  func(s string, c call) any { return split(s, c.bind("split", "sep?", "maxsplit?"), false) },
	"rsplit": func(s string, c call) any { return split(s, c.bind("rsplit", "sep?", "maxsplit?"), true) },
	"splitlines": func(s string, c call) any {
		return texts(splitLines(s, truth(c.bind("splitlines", "keepends?").or(0, false))))
	},
	"startswith": func(s string, c call) any { return affix(s, c.bind("startswith", "prefix")[0], strings.HasPrefix) },
	"endswith":   func(s string, c call) any { return affix(s, c.bind("endswith", "suffix")[0], strings.HasSuffix) },
	"removeprefix": func(s string, c call) any {
		return strings.TrimPrefix(s, text(c.bind("removeprefix", "prefix")[0]))
	},
	"removesuffix": func(s string, c call) any {
		return strings.TrimSuffix(s, text(c.bind("removesuffix", "suffix")[0]))
	},
	"replace":    func(s string, c call) any { return replace(s, c.bind("replace", "old", "new", "count?")) },
	"upper":      func(s string, c call) any { c.bind("upper"); return upper(s) },
	"lower":      func(s string, c call) any { c.bind("lower"); return lower(s) },
	"title":      func(s string, c call) any { c.bind("title"); return titleWords(s) },
	"capitalize": func(s string, c call) any { c.bind("capitalize"); return capitalize(s) },
	"join":       func(s string, c call) any { return joinText(elements(c.bind("join", "iterable")[0]), s, text) },
	"find":       func(s string, c call) any { return find(s, text(c.bind("find", "sub")[0]), strings.Index) },
	"rfind":      func(s string, c call) any { return find(s, text(c.bind("rfind", "sub")[0]), strings.LastIndex) },
	"index": func(s string, c call) any {
		at := find(s, text(c.bind("index", "sub")[0]), strings.Index)
		if at < 0 {
			fail(0, "substring not found")
		}
		return at
	},
	"count":     func(s string, c call) any { return int64(strings.Count(s, text(c.bind("count", "sub")[0]))) },
	"partition": func(s string, c call) any { return partition(s, text(c.bind("partition", "sep")[0]), strings.Index) },
	"rpartition": func(s string, c call) any {
		sep := text(c.bind("rpartition", "sep")[0])
		if sep != "" && !strings.Contains(s, sep) {
			return tuple{"", "", s}
		}
		return partition(s, sep, strings.LastIndex)
	},
	"isdigit": func(s string, c call) any { c.bind("isdigit"); return every(s, unicode.IsDigit) },
	"isalpha": func(s string, c call) any { c.bind("isalpha"); return every(s, unicode.IsLetter) },
	"isspace": func(s string, c call) any { c.bind("isspace"); return every(s, isSpace) },
	"isalnum": func(s string, c call) any {
		c.bind("isalnum")
		return every(s, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) })
	},
	"isupper": func(s string, c call) any { c.bind("isupper"); return cased(s, unicode.IsUpper) },
	"islower": func(s string, c call) any { c.bind("islower"); return cased(s, unicode.IsLower) },
}

// text is an argument that must be a string.
func text(v any) string {
	s, ok := v.(string)
	if !ok {
		fail(0, "want a str, not a %s", typeName(v))
	}
	return s
}

func stripped(s string, a bound, left, right bool) string {
	cut := isSpace
	if chars := a.or(0, nil); chars != nil {
		set := text(chars)
		cut = func(r rune) bool { return strings.ContainsRune(set, r) }
	}
	if left {
		s = strings.TrimLeftFunc(s, cut)
	}
	if right {
		s = strings.TrimRightFunc(s, cut)
	}
	return s
}

// split is str.split and str.rsplit: at a separator, or at runs of blanks, at most so many times.
func split(s string, a bound, fromRight bool) any {
	limit := integer(a.or(1, int64(-1)), "maxsplit")
	var parts []string
	switch sep := a.or(0, nil); {
	case sep == nil && (limit < 0 || !fromRight):
		parts = fields(s, limit)
	case sep == nil:
		fail(0, "rsplit at blanks with a maximum is not supported")
	case text(sep) == "":
		fail(0, "empty separator")
	default:
		parts = strings.Split(s, text(sep))
		if n := len(parts) - 1; limit >= 0 && limit < n {
			if fromRight {
				head := strings.Join(parts[:n-limit+1], text(sep))
				parts = append([]string{head}, parts[n-limit+1:]...)
			} else {
				parts = strings.SplitN(s, text(sep), limit+1)
			}
		}
	}
	return texts(parts)
}

// fields splits at runs of blanks; after limit splits the rest stays whole.
func fields(s string, limit int) (parts []string) {
	s = strings.TrimLeftFunc(s, isSpace)
	for s != "" {
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

func texts(parts []string) []any {
	list := make([]any, len(parts))
	for i, p := range parts {
		list[i] = p
	}
	return limited(list, len(list))
}

// splitLines splits after Python's line ends.
func splitLines(s string, keep bool) []string {
	var parts []string
	for s != "" {
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
func affix(s string, v any, has func(s, part string) bool) bool {
	if list, ok := v.(tuple); ok {
		for _, p := range list {
			if has(s, text(p)) {
				return true
			}
		}
		return false
	}
	return has(s, text(v))
}

func replace(s string, a bound) string {
	old, with, n := text(a[0]), text(a[1]), integer(a.or(2, int64(-1)), "count")
	if times := strings.Count(s, old); times > 0 && len(with) > len(old) {
		if n >= 0 {
			times = min(times, n)
		}
		if times > maxString/len(with) {
			bounded(maxString + 1)
		}
	}
	out := strings.Replace(s, old, with, n)
	bounded(len(out))
	return out
}

func joinText(list []any, sep string, read func(any) string) string {
	var b strings.Builder
	for i, v := range list {
		if i > 0 {
			b.WriteString(sep)
		}
		b.WriteString(read(v))
		bounded(b.Len())
	}
	return b.String()
}

// find is the position of a substring in code points, or -1.
func find(s, sub string, index func(s, sub string) int) int64 {
	at := index(s, sub)
	if at < 0 {
		return -1
	}
	return int64(utf8.RuneCountInString(s[:at]))
}

func partition(s, sep string, index func(s, sub string) int) any {
	if sep == "" {
		fail(0, "empty separator")
	}
	at := index(s, sep)
	if at < 0 {
		return tuple{s, "", ""}
	}
	return tuple{s[:at], sep, s[at+len(sep):]}
}

func every(s string, is func(rune) bool) bool {
	return s != "" && strings.IndexFunc(s, func(r rune) bool { return !is(r) }) < 0
}

// cased: some character has case, and all that have it are as is says.
func cased(s string, is func(rune) bool) bool {
	found := false
	for _, r := range s {
		if unicode.IsUpper(r) || unicode.IsLower(r) || unicode.IsTitle(r) {
			if !is(r) {
				return false
			}
			found = true
		}
	}
	return found
}

// Case mappings are the full ones of Unicode, as in Python: one character may become several.
func upper(s string) string { return cases.Upper(language.Und).String(s) }
func lower(s string) string { return cases.Lower(language.Und).String(s) }

func capitalize(s string) string {
	_, n := utf8.DecodeRuneInString(s)
	return titleCase(s[:n]) + lower(s[n:])
}

// titleCase is the title case of one character.
func titleCase(s string) string { return cases.Title(language.Und).String(s) }

// titleWords is str.title: a letter after a letter is lower case, any other is title case.
func titleWords(s string) string {
	var b strings.Builder
	inside := false
	for _, r := range s {
		if inside {
			b.WriteString(lower(string(r)))
		} else {
			b.WriteString(titleCase(string(r)))
		}
		inside = unicode.IsUpper(r) || unicode.IsLower(r) || unicode.IsTitle(r)
	}
	return b.String()
}

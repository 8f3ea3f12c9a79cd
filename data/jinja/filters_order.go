package jinja

import (
	"slices"
	"strings"

	"lockstep/data/ordered"
)

// fold makes text compare without regard to case, unless asked to.
func (r *run) fold(v any, caseSensitive bool) any {
	if s, ok := v.(string); ok && !caseSensitive {
		return r.lower(s)
	}
	return v
}

func sortFilter(r *run, x any, c call) any {
	a := c.bind("sort", "reverse?", "case_sensitive?", "attribute?")
	get, sensitive := r.getter(a.or(2, nil), nil), truth(a.or(1, false))
	list := r.cloned(x)
	sign := 1
	if truth(a.or(0, false)) {
		sign = -1 // equal elements keep their order, as in Python's sorted(reverse=True)
	}
	slices.SortStableFunc(list, func(v, w any) int {
		return sign * r.compare(r.fold(get(v), sensitive), r.fold(get(w), sensitive))
	})
	return list
}

func dictSort(r *run, x any, c call) any {
	a := c.bind("dictsort", "case_sensitive?", "by?", "reverse?")
	d, ok := x.(*ordered.Dict)
	if !ok {
		fail(0, "dictsort: a %s is not a dict", typeName(x))
	}
	at := map[string]int{"key": 0, "value": 1}
	by, ok := at[text(a.or(1, "key"))]
	if !ok {
		fail(0, "dictsort: by is key or value")
	}
	sign := 1
	if truth(a.or(2, false)) {
		sign = -1
	}
	list := r.items(d)
	slices.SortStableFunc(list, func(v, w any) int {
		sensitive := truth(a.or(0, false))
		return sign * r.compare(r.fold(v.(tuple)[by], sensitive), r.fold(w.(tuple)[by], sensitive))
	})
	return list
}

// unique keeps the first of equal elements.
func unique(r *run, x any, c call) any {
	a := c.bind("unique", "case_sensitive?", "attribute?")
	get := r.getter(a.or(1, nil), nil)
	list := r.elements(x)
	r.makeDict(len(list))
	seen, out := map[any]bool{}, []any{}
	for _, v := range list {
		r.spend(1)
		h, _ := ordered.Hash(r.key(r.fold(get(v), truth(a.or(0, false)))))
		if !seen[h] {
			seen[h] = true
			out = append(out, v)
		}
	}
	return out
}

// extreme is min (sign -1) or max (1).
func (r *run) extreme(x any, c call, sign int) any {
	a := c.bind("min or max", "case_sensitive?")
	list := r.elements(x)
	if len(list) == 0 {
		return undefined{"the extreme of nothing"}
	}
	best := list[0]
	for _, v := range list[1:] {
		if sign*r.compare(r.fold(v, truth(a.or(0, false))), r.fold(best, truth(a.or(0, false)))) > 0 {
			best = v
		}
	}
	return best
}

func sum(r *run, x any, c call) any {
	a := c.bind("sum", "attribute?", "start?")
	get, total := r.getter(a.or(0, nil), nil), a.or(1, int64(0))
	for _, v := range r.elements(x) {
		r.spend(1)
		v = get(v)
		mustBeDefined(v)
		total = arithmetic("+", total, v)
	}
	return total
}

// words are the runs of letters, digits and underscores (wordcount counts \w+).
func (r *run) words(s string) []string {
	r.decode(len(s))
	r.makeList(len(s) / 2)
	return strings.FieldsFunc(s, func(r rune) bool { return !(r == '_' || isAlnum(r)) })
}

// titleFilter is jinja2's title, which unlike str.title starts words only after blanks, hyphens and opening brackets.
func (r *run) titleFilter(s string) string {
	b := r.writer()
	r.decode(len(s))
	for s != "" {
		n := strings.IndexFunc(s, startsWord)
		if n < 0 {
			n = len(s)
		}
		b.str(r.capitalizeUpper(s[:n]))
		s = s[n:]
		m := strings.IndexFunc(s, func(r rune) bool { return !startsWord(r) })
		if m < 0 {
			m = len(s)
		}
		b.str(s[:m])
		s = s[m:]
	}
	return b.String()
}

func startsWord(r rune) bool { return isSpace(r) || strings.ContainsRune("-({[<", r) }

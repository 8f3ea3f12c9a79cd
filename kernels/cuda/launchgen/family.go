package main

import (
	"cmp"
	"slices"
	"strings"
)

// family is kernels with one parameter list, save for the element types of pointers to scalars.
type family struct {
	name    string
	prefix  string // of the kernels' names; what follows is the variant
	file    string
	kernels []kernel
}

// signature is what a kernel's parameters have in common with those of its family.
func (k *kernel) signature() string {
	var b strings.Builder
	for _, p := range k.params {
		kind := p.element
		switch {
		case p.pointer && p.record == nil:
			kind = "*"
		case p.pointer:
			kind += "*"
		}
		b.WriteString(kind + " " + p.name + ", ")
	}
	return b.String()
}

// group makes families of the kernels of a folder, and names them.
func group(units []*unit) (families []*family, err error) {
	declared := map[string]position{}
	for _, u := range units {
		var own []*family
		bySignature := map[string]*family{}
		for _, k := range u.kernels {
			if before, ok := declared[k.name]; ok {
				return nil, k.at.errorf("kernel %s is declared in %s:%d already", k.name, before.file, before.line)
			}
			declared[k.name] = k.at
			key := k.signature()
			if h := u.hint(k.name); h != nil {
				key = "family " + h.family + ": " + key
			}
			f := bySignature[key]
			if f == nil {
				f = &family{file: u.file}
				bySignature[key] = f
				own = append(own, f)
			}
			f.kernels = append(f.kernels, k)
		}
		for _, f := range own {
			if err := f.identify(u); err != nil {
				return nil, err
			}
		}
		for i, h := range u.hints {
			if !slices.ContainsFunc(u.kernels, func(k kernel) bool { return u.hint(k.name) == &u.hints[i] }) {
				return nil, h.at.errorf("no kernel begins with %s", strings.Join(h.prefixes, " or "))
			}
		}
		families = append(families, own...)
	}
	names := map[string]*family{}
	for _, f := range families {
		if g := names[f.name]; g != nil {
			return nil, f.kernels[0].at.errorf("kernels %s and %s (%s:%d) differ in their parameters, but not in the "+
				"prefix that names their launcher: name one by //launch:family NAME PREFIX...", f.kernels[0].name,
				g.kernels[0].name, g.kernels[0].at.file, g.kernels[0].at.line)
		}
		names[f.name] = f
	}
	slices.SortFunc(families, func(a, b *family) int { return cmp.Compare(a.name, b.name) })
	return families, nil
}

// hint is the comment that names the family of a kernel.
func (u *unit) hint(kernel string) *hint {
	for i, h := range u.hints {
		for _, p := range h.prefixes {
			if strings.HasPrefix(kernel, p) {
				return &u.hints[i]
			}
		}
	}
	return nil
}

// identify finds the name and the prefix of a family.
func (f *family) identify(u *unit) error {
	first := f.kernels[0]
	f.prefix = first.name
	for _, k := range f.kernels {
		for !strings.HasPrefix(k.name, f.prefix) {
			f.prefix = f.prefix[:len(f.prefix)-1]
		}
	}
	// Every name goes on by a number or by another word.
	for f.prefix != "" && slices.ContainsFunc(f.kernels, func(k kernel) bool {
		return !goesOn(k.name[len(f.prefix):])
	}) {
		f.prefix = f.prefix[:len(f.prefix)-1]
	}
	f.prefix = strings.TrimRight(f.prefix, "_")
	f.prefix = stem(f.prefix)
	f.name = f.prefix
	if h := u.hint(first.name); h != nil {
		f.name, f.prefix = h.family, ""
	}
	if f.name == "" {
		return first.at.errorf("kernels %s and %s have one parameter list and no prefix that names their launcher: "+
			"name it by //launch:family NAME PREFIX...", first.name, f.kernels[len(f.kernels)-1].name)
	}
	return nil
}

func goesOn(rest string) bool {
	return rest == "" || rest[0] == '_' || '0' <= rest[0] && rest[0] <= '9'
}

// stem is a name without the words that choose a variant: storage types and numbers.
func stem(name string) string {
	for {
		at := strings.LastIndexByte(name, '_')
		if at <= 0 {
			return name
		}
		word := name[at+1:]
		if word != "f32" && word != "bf16" && strings.Trim(word, "0123456789x") != "" {
			return name
		}
		name = name[:at]
	}
}

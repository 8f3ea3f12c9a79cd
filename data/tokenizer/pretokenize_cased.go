package tokenizer

// casedEnd is the end of a word of o200k_base at s[at], whose class is c and width n. With the classes
// U = [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] and W = [\p{Ll}\p{Lm}\p{Lo}\p{M}] it matches
//
//	[^\r\n\p{L}\p{N}]?U*W+  else  [^\r\n\p{L}\p{N}]?U+W*
//
// and, if attached, (?i:'s|'t|'re|'ve|'m|'ll|'d)? after either. Each alternative is tried with the optional character
// first; a mark may be that character and be in U and W too, so the order matters.
func (p *wordPattern) casedEnd(s string, at int, c class, n int) int {
	optional := c&(letter|number|newline) == 0
	for _, match := range []func(string, int) int{smallEnd, capitalEnd} {
		if optional {
			if end := match(s, at+n); end > at+n {
				return p.attach(s, end)
			}
		}
		if end := match(s, at); end > at {
			return p.attach(s, end)
		}
	}
	return at
}

// smallEnd is the end of U*W+. If no W follows the run of U, U* gives characters back until one is in W too.
func smallEnd(s string, at int) int {
	both := at // the end of the last character of the run that is in U and W
	for at < len(s) {
		c, n := classAt(s, at)
		if c&upper == 0 {
			break
		}
		at += n
		if c&lower != 0 {
			both = at
		}
	}
	if end := runOf(s, at, lower); end > at {
		return end
	}
	return both
}

// capitalEnd is the end of U+W*.
func capitalEnd(s string, at int) int {
	end := runOf(s, at, upper)
	if end == at {
		return at
	}
	return runOf(s, end, lower)
}

func (p *wordPattern) attach(s string, end int) int {
	if p.attached {
		end += contraction(s[end:])
	}
	return end
}

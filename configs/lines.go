package configs

import (
	"strings"
)

// keyLines finds the line (from 1) where each key and table of a valid TOML text first appears, by its dotted name.
func keyLines(text string) map[string]int {
	s := &scanner{text: strings.TrimPrefix(text, "\ufeff"), lines: map[string]int{}}
	var table []string
	for s.space("\n"); s.pos < len(s.text); s.space("\n") {
		if s.text[s.pos] != '[' {
			s.pair(table)
			continue
		}
		s.skip("[")
		table = s.key(nil)
		s.space("")
		s.skip("]")
	}
	return s.lines
}

// scanner walks over a TOML text that the parser has accepted.
type scanner struct {
	text  string
	pos   int
	seen  int // newlines before pos are counted up to here
	count int
	lines map[string]int
}

func (s *scanner) line() int {
	s.count += strings.Count(s.text[s.seen:s.pos], "\n")
	s.seen = s.pos
	return s.count + 1
}

// skip passes over any of the bytes.
func (s *scanner) skip(bytes string) {
	for s.pos < len(s.text) && strings.IndexByte(bytes, s.text[s.pos]) >= 0 {
		s.pos++
	}
}

// until passes over all but these bytes.
func (s *scanner) until(bytes string) {
	n := strings.IndexAny(s.text[s.pos:], bytes)
	if n < 0 {
		n = len(s.text) - s.pos
	}
	s.pos += n
}

// space passes over white space, more of it as given, and comments where lines may end.
func (s *scanner) space(more string) {
	for {
		s.skip(" \t\r" + more)
		if more == "" || !s.at("#") {
			return
		}
		s.until("\n")
	}
}

func (s *scanner) at(prefix string) bool { return strings.HasPrefix(s.text[s.pos:], prefix) }

// pair passes over `key = value`.
func (s *scanner) pair(table []string) {
	path := s.key(table)
	s.space("")
	s.pos++ // =
	s.value(path)
}

// key passes over a dotted key and notes the line of it and of the tables it implies.
func (s *scanner) key(table []string) []string {
	path := append([]string{}, table...)
	line := s.line()
	for {
		s.space("")
		path = append(path, s.part())
		if name := join(path); s.lines[name] == 0 {
			s.lines[name] = line
		}
		s.space("")
		if !s.at(".") {
			return path
		}
		s.pos++
	}
}

// part passes over one part of a key, bare or quoted.
func (s *scanner) part() string {
	start := s.pos
	if !s.at(`"`) && !s.at("'") {
		s.until(" \t.=]")
		return s.text[start:s.pos]
	}
	s.str()
	v, err := parseValue(s.text[start:s.pos])
	if err != nil {
		panic(err) // the parser accepted it
	}
	return v.(string)
}

func (s *scanner) value(path []string) {
	s.space("")
	switch {
	case s.at(`"`), s.at("'"):
		s.str()
	case s.at("["):
		s.pos++
		for s.space("\n,"); !s.at("]"); s.space("\n,") {
			s.value(path)
		}
		s.pos++
	case s.at("{"):
		s.pos++
		for s.space("\n,"); !s.at("}"); s.space("\n,") {
			s.pair(path)
		}
		s.pos++
	default:
		s.until(",]}#\n")
	}
	s.space("")
	if s.at("#") {
		s.until("\n")
	}
}

// str passes over a string of any of the four kinds.
func (s *scanner) str() {
	quote := s.text[s.pos : s.pos+1]
	escapes := quote == `"`
	if s.at(strings.Repeat(quote, 3)) {
		quote = strings.Repeat(quote, 3)
	}
	for s.pos += len(quote); !s.at(quote); s.pos++ {
		if escapes && s.at(`\`) {
			s.pos++
		}
	}
	s.pos += len(quote)
	if len(quote) == 3 {
		s.skip(quote[:1]) // a long string may end with one or two quotes of its own
	}
}

// join writes a dotted key, quoting what is not bare.
func join(path []string) string {
	parts := make([]string, len(path))
	for i, p := range path {
		parts[i] = quoteKey(p)
	}
	return strings.Join(parts, ".")
}

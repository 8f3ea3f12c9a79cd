package tokenizer

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// addedToken is a token that is found in text before anything is cut into words.
type addedToken struct {
	ID         int32  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"` // only between characters that are not part of a word
	LStrip     bool   `json:"lstrip"`      // takes the white space in front of it
	RStrip     bool   `json:"rstrip"`      // takes the white space behind it
	Normalized bool   `json:"normalized"`  // is looked for in normalised text
	Special    bool   `json:"special"`
}

// matcher finds added tokens: at the leftmost place the longest.
type matcher struct {
	tokens []addedToken
	first  [256]bool       // bytes that a token begins with
	edges  map[edge]int32  // of the trie, whose root is 0
	ends   map[int32]int32 // node -> index in tokens
}

type edge struct {
	node int32
	b    byte
}

// newMatcher makes a matcher of tokens by the given contents. Of equal contents the first counts.
func newMatcher(tokens []addedToken, contents []string) *matcher {
	m := &matcher{tokens: tokens, edges: map[edge]int32{}, ends: map[int32]int32{}}
	for i, content := range contents {
		node := int32(0)
		for j := range len(content) {
			next, ok := m.edges[edge{node, content[j]}]
			if !ok {
				next = int32(len(m.edges) + 1)
				m.edges[edge{node, content[j]}] = next
			}
			node = next
		}
		if _, taken := m.ends[node]; content == "" || taken {
			continue
		}
		m.first[content[0]] = true
		m.ends[node] = int32(i)
	}
	return m
}

// longest is the token, or nil, and its end for the longest content at s[at].
func (m *matcher) longest(s string, at int) (found *addedToken, end int) {
	node := int32(0)
	for i := at; i < len(s); i++ {
		next, ok := m.edges[edge{node, s[i]}]
		if !ok {
			break
		}
		node = next
		if t, ok := m.ends[node]; ok {
			found, end = &m.tokens[t], i+1
		}
	}
	return found, end
}

// split calls text for what lies between added tokens and token for the tokens, in order.
func (m *matcher) split(s string, text func(string), token func(int32)) {
	done := 0 // everything before it is given out
	for at := 0; at < len(s); {
		if !m.first[s[at]] {
			at++
			continue
		}
		t, end := m.longest(s, at)
		if t == nil {
			at++
			continue
		}
		start := at
		at = end
		if t.SingleWord && (endsInWord(s[:start]) || beginsWithWord(s[end:])) {
			continue
		}
		if t.LStrip {
			start = max(done, len(strings.TrimRightFunc(s[:start], unicode.IsSpace)))
		}
		if t.RStrip {
			end = len(s) - len(strings.TrimLeftFunc(s[end:], unicode.IsSpace))
		}
		if done < start {
			text(s[done:start])
		}
		token(t.ID)
		done = end
	}
	if done < len(s) {
		text(s[done:])
	}
}

func endsInWord(s string) bool {
	r, n := utf8.DecodeLastRuneInString(s)
	return n > 0 && inWord(r)
}

func beginsWithWord(s string) bool {
	r, n := utf8.DecodeRuneInString(s)
	return n > 0 && inWord(r)
}

// inWord is \w of UTS 18, annex C: alphabetic characters, marks, decimal digits, connecting punctuation, joiners.
func inWord(r rune) bool {
	return unicode.In(r, unicode.L, unicode.Nl, unicode.Other_Alphabetic, unicode.M, unicode.Nd, unicode.Pc,
		unicode.Join_Control)
}

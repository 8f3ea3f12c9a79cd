package data

import (
	"errors"
	"strings"
	"unicode"

	"lockstep/data/ordered"
)

// commonText finds the prompt that two texts begin with: all that is equal, up to and without the last blanks in it, so
// that no word is cut. "The sky is blue." and "The sky is black." are "The sky is" with " blue." and " black.".
func commonText(a, b string) (prompt, restA, restB string, err error) {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	same := a[:n]
	last := strings.LastIndexFunc(same, unicode.IsSpace)
	if last < 0 {
		return "", "", "", errors.New("chosen and rejected have no common prefix, give a prompt")
	}
	prompt = strings.TrimRightFunc(same[:last], unicode.IsSpace)
	return prompt, a[len(prompt):], b[len(prompt):], nil
}

// conversations reads chosen and rejected that are whole conversations; the prompt is the messages that both begin
// with. A text under "prompt" must agree.
func (o Options) conversations(d *ordered.Dict) (q pair, err error) {
	v, _ := d.Get("chosen")
	chosen, err := readMessages("chosen", v)
	if err != nil {
		return q, err
	}
	v, _ = d.Get("rejected")
	rejected, err := readMessages("rejected", v)
	if err != nil {
		return q, err
	}
	n := 0
	for n < min(len(chosen), len(rejected)) && ordered.Equal(chosen[n], rejected[n]) {
		n++
	}
	switch n {
	case 0:
		return q, errors.New("chosen and rejected have no common first message, give a prompt")
	case len(chosen), len(rejected):
		return q, errors.New("one of chosen and rejected is a prefix of the other, leave the line out")
	}
	if prompt, ok := d.Get("prompt"); ok {
		if reply, _ := chosen[n-1].(*ordered.Dict).Get("content"); reply != prompt {
			return q, errors.New("prompt is not the last common message of chosen and rejected, remove it")
		}
	}
	return o.conversedPair(d, chosen[:n], chosen[n:], rejected[n:])
}

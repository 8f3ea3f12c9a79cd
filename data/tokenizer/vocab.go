package tokenizer

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// maxTokens bounds ids, so that a damaged file cannot ask for much memory.
const maxTokens = 1 << 22

// setVocabulary fills the tables of a model.
func (t *Tokenizer) setVocabulary(m *bpeModel) error {
	t.ids, t.vocabulary = map[string]int32{}, map[string]int32{}
	t.ignoreMerges, t.fuseUnknown = m.IgnoreMerges, m.FuseUnknown
	for _, token := range slices.Sorted(maps.Keys(m.Vocab)) { // sorted: the same error every time
		id := m.Vocab[token]
		if err := t.name(id, token); err != nil {
			return err
		}
		if bytes, ok := wordBytes(token); ok {
			t.vocabulary[bytes] = id
		}
	}
	t.unknown = unknownByte
	if m.Unknown != nil {
		id, ok := m.Vocab[*m.Unknown]
		if !ok {
			return fmt.Errorf("unk_token %q is not in vocab: add it or set null", *m.Unknown)
		}
		t.unknown = id
	}
	if err := t.setBytes(); err != nil {
		return err
	}
	return t.setMerges(m)
}

// name gives an id its token. A token that was named before must have had the same id.
func (t *Tokenizer) name(id int32, token string) error {
	if id < 0 || id >= maxTokens {
		return fmt.Errorf("token %q has id %d: ids are from 0 to %d", token, id, maxTokens-1)
	}
	if other, ok := t.ids[token]; ok {
		if other != id {
			return fmt.Errorf("token %q has ids %d and %d: keep one", token, other, id)
		}
		return nil
	}
	for int(id) >= len(t.tokens) {
		t.tokens = append(t.tokens, "")
		t.decoded = append(t.decoded, "")
	}
	if t.tokens[id] != "" {
		return fmt.Errorf("tokens %q and %q both have id %d: keep one", t.tokens[id], token, id)
	}
	if token == "" {
		return fmt.Errorf("id %d is an empty token: remove it", id)
	}
	t.tokens[id], t.decoded[id], t.ids[token] = token, fromByteLevel(token), id
	return nil
}

// wordBytes is the word that a token of the vocabulary is, if it stands for bytes.
func wordBytes(token string) (string, bool) {
	bytes := fromByteLevel(token)
	return bytes, toByteLevel(bytes) == token
}

// setBytes finds the tokens of single bytes. Each byte that occurs in UTF-8 needs one, or something that stands for it.
func (t *Tokenizer) setBytes() error {
	for b := range t.bytes {
		id, ok := t.ids[string(byteRunes[b])]
		if !ok {
			id = unknownByte
		}
		t.bytes[b] = id
		inUTF8 := b != 0xc0 && b != 0xc1 && b <= 0xf4
		if !ok && inUTF8 && t.unknown == unknownByte {
			return fmt.Errorf("no token %q for byte %#02x and no unk_token: only byte-level vocabularies can be read",
				byteRunes[b], b)
		}
	}
	return nil
}

func (t *Tokenizer) setMerges(m *bpeModel) error {
	t.merges = newMergeTable(len(m.Merges))
	for rank, pair := range m.Merges {
		joined := pair[0] + pair[1]
		for _, token := range [...]string{pair[0], pair[1], joined} {
			if _, ok := m.Vocab[token]; !ok {
				return fmt.Errorf("merge %d of %q and %q: %q is not in vocab: fetch the tokenizer again", rank, pair[0],
					pair[1], token)
			}
		}
		t.merges.put(m.Vocab[pair[0]], m.Vocab[pair[1]], merge{int32(rank), m.Vocab[joined]})
	}
	return nil
}

// addTokens names the added tokens and makes their matchers. The library looks for tokens in the text first, and for
// normalised contents in what is left, normalised, then.
func (t *Tokenizer) addTokens(added []addedToken) error {
	var raw, normalized []addedToken
	var rawContents, normalizedContents []string
	for _, a := range added {
		if a.Content == "" {
			return errors.New("one has no content: remove it")
		}
		if err := t.name(a.ID, a.Content); err != nil {
			return err
		}
		if a.Normalized {
			normalized = append(normalized, a)
			content := t.normalize(a.Content)
			normalizedContents = append(normalizedContents, content)
			t.decoded[a.ID] = fromByteLevel(content) // as the library does
		} else {
			raw = append(raw, a)
			rawContents = append(rawContents, a.Content)
		}
	}
	t.raw, t.normalized = newMatcher(raw, rawContents), newMatcher(normalized, normalizedContents)
	return nil
}

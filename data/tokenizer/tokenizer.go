// Package tokenizer reads byte-level BPE tokenizers in the tokenizer.json format of Hugging Face's tokenizers library:
// text to token ids and back, exactly as that library does it. What a file asks for and the package does not know is
// refused, in one line. Of the project it imports data/atomicfile alone.
package tokenizer

import "strings"

// Tokenizer is a byte-level BPE tokenizer. It does not change after it is made; goroutines may share it.
type Tokenizer struct {
	source []byte // the tokenizer.json it was made of

	tokens  []string // by id; "" where an id has none
	decoded []string // the bytes that each token stands for
	ids     map[string]int32

	raw        *matcher // added tokens to look for in the text as it is
	normalized *matcher // and in normalised text
	normalize  func(string) string
	words      *preTokenizer

	bytes        [256]int32 // the token of each byte, unknownByte where it has none
	unknown      int32      // stands for bytes without a token
	fuseUnknown  bool       // one for a run of them
	ignoreMerges bool       // a word that is a token is that token
	vocabulary   map[string]int32
	merges       *mergeTable
	cache        *wordCache
}

const unknownByte = int32(-1)

// Encode is the tokens of a text. Added tokens, special ones too, are recognised in it; none is put around it, whatever
// the file's post-processor says, and it is neither cut nor padded. Bytes that are no UTF-8 are read as U+FFFD.
func (t *Tokenizer) Encode(text string) []int32 {
	e := encoder{t: t, out: make([]int32, 0, len(text)/3+1)}
	t.raw.split(strings.ToValidUTF8(text, "\ufffd"), e.text, e.token)
	return e.out
}

// Vocab is one more than the highest id: how many rows an embedding needs at least.
func (t *Tokenizer) Vocab() int { return len(t.tokens) }

// ID is the id of a token as the file spells it (a space is Ġ), added tokens included.
func (t *Tokenizer) ID(token string) (int32, bool) {
	id, ok := t.ids[token]
	return id, ok
}

// Decode is the text of tokens, special ones included. Ids without a token, such as the padding of an embedding, are
// left out; invalid UTF-8 becomes U+FFFD.
func (t *Tokenizer) Decode(ids []int32) string {
	var out []byte
	for _, id := range ids {
		out = append(out, t.Bytes(id)...)
	}
	return validUTF8(out)
}

// Bytes is what a token stands for, which need not be whole characters; "" if no token has the id.
func (t *Tokenizer) Bytes(id int32) string {
	if id < 0 || int(id) >= len(t.decoded) {
		return ""
	}
	return t.decoded[id]
}

// encoder is one call of Encode.
type encoder struct {
	t       *Tokenizer
	out     []int32
	symbols []int32 // of the word at hand
}

func (e *encoder) token(id int32) { e.out = append(e.out, id) }

func (e *encoder) text(s string) {
	e.t.normalized.split(e.t.normalize(s), e.plain, e.token)
}

func (e *encoder) plain(s string) { e.t.words.each(s, e.word) }

func (e *encoder) word(s string) {
	t := e.t
	if t.ignoreMerges {
		if id, ok := t.vocabulary[s]; ok {
			e.out = append(e.out, id)
			return
		}
	}
	if len(s) > cacheWord {
		e.out = append(e.out, e.merge(s)...)
		return
	}
	ids, slot := t.cache.lookup(s)
	if ids == nil {
		ids = e.merge(s)
		slot.Store(newCachedWord(s, ids))
	}
	e.out = append(e.out, ids...)
}

// merge is the tokens of a word by the merges, at least one. They are good until the next call.
func (e *encoder) merge(s string) []int32 {
	t := e.t
	e.symbols = e.symbols[:0]
	for i := range len(s) {
		id := t.bytes[s[i]]
		if id == unknownByte {
			if t.fuseUnknown && i > 0 && t.bytes[s[i-1]] == unknownByte {
				continue
			}
			id = t.unknown
		}
		e.symbols = append(e.symbols, id)
	}
	return t.merges.apply(e.symbols)
}

package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"lockstep/data/atomicfile"
)

const tokenizerName = "tokenizer.json"

// tokenizerFile is a tokenizer.json of Hugging Face's tokenizers library. What is not here does not change what Encode
// and Decode give: truncation, padding, and the post-processor, which puts tokens around a text.
type tokenizerFile struct {
	Version      string          `json:"version"`
	AddedTokens  []addedToken    `json:"added_tokens"`
	Normalizer   *component      `json:"normalizer"`
	PreTokenizer *component      `json:"pre_tokenizer"`
	Decoder      *component      `json:"decoder"`
	Model        json.RawMessage `json:"model"`
}

// component is a normalizer, a pre-tokenizer or a decoder.
type component struct {
	Type    string `json:"type"`
	Pattern struct {
		Regex *string
	} `json:"pattern"`
	Behavior       string      `json:"behavior"`
	Invert         bool        `json:"invert"`
	AddPrefixSpace *bool       `json:"add_prefix_space"`
	UseRegex       *bool       `json:"use_regex"`
	Normalizers    []component `json:"normalizers"`
	PreTokenizers  []component `json:"pretokenizers"`
	Decoders       []component `json:"decoders"`
}

// bpeModel is the model of a tokenizer.json.
type bpeModel struct {
	Type         string           `json:"type"`
	Dropout      float64          `json:"dropout"`
	Unknown      *string          `json:"unk_token"`
	Prefix       string           `json:"continuing_subword_prefix"`
	Suffix       string           `json:"end_of_word_suffix"`
	FuseUnknown  bool             `json:"fuse_unk"`
	ByteFallback bool             `json:"byte_fallback"`
	IgnoreMerges bool             `json:"ignore_merges"`
	Vocab        map[string]int32 `json:"vocab"`
	Merges       []mergePair      `json:"merges"`
}

// mergePair is two tokens, spelled "a b" or ["a", "b"].
type mergePair [2]string

func (m *mergePair) UnmarshalJSON(text []byte) error {
	if text[0] == '[' {
		var parts []string
		if err := json.Unmarshal(text, &parts); err != nil || len(parts) != 2 {
			return fmt.Errorf("merge %q is not two tokens", text)
		}
		*m = mergePair(parts)
		return nil
	}
	var line string
	if err := json.Unmarshal(text, &line); err != nil {
		return err
	}
	left, right, ok := strings.Cut(line, " ")
	if !ok || strings.Contains(right, " ") {
		return fmt.Errorf("merge %q is not two tokens", text)
	}
	*m = mergePair{left, right}
	return nil
}

// Load reads a tokenizer.json, or the one of a folder.
func Load(path string) (*Tokenizer, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, tokenizerName)
	}
	text, err := atomicfile.Read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: no such file: check the path, or fetch the tokenizer again", path)
	}
	if err != nil {
		return nil, err // names the path
	}
	t, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for _, pattern := range t.words.unknown() {
		noteUnknown(path, pattern)
	}
	return t, nil
}

// Parse makes a tokenizer of a tokenizer.json; it keeps the text.
func Parse(text []byte) (*Tokenizer, error) {
	var f tokenizerFile
	if err := json.Unmarshal(text, &f); err != nil {
		return nil, fmt.Errorf("JSON: %w: fetch the tokenizer again", err)
	}
	if f.Version != "1.0" {
		return nil, fmt.Errorf("version %q: only 1.0 can be read", f.Version)
	}
	model, err := parseModel(f.Model)
	if err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	t := &Tokenizer{source: text, cache: newWordCache()}
	if err := t.setVocabulary(model); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	if t.normalize, err = newNormalizer(f.Normalizer); err != nil {
		return nil, fmt.Errorf("normalizer: %w", err)
	}
	if t.words, err = newPreTokenizer(f.PreTokenizer); err != nil {
		return nil, fmt.Errorf("pre_tokenizer: %w", err)
	}
	if err := checkDecoder(f.Decoder); err != nil {
		return nil, fmt.Errorf("decoder: %w", err)
	}
	if err := t.addTokens(f.AddedTokens); err != nil {
		return nil, fmt.Errorf("added_tokens: %w", err)
	}
	return t, nil
}

// parseModel reads the model and refuses what changes tokens and is not supported. Old files name no type.
func parseModel(text json.RawMessage) (*bpeModel, error) {
	var kind struct {
		Type string `json:"type"`
	}
	if len(text) == 0 {
		return nil, errors.New("none: fetch the tokenizer again")
	}
	if err := json.Unmarshal(text, &kind); err != nil {
		return nil, fmt.Errorf("JSON: %w: fetch the tokenizer again", err)
	}
	if kind.Type != "" && kind.Type != "BPE" {
		return nil, fmt.Errorf("type %q: only byte-level BPE can be read", kind.Type)
	}
	m := &bpeModel{}
	if err := json.Unmarshal(text, m); err != nil {
		return nil, fmt.Errorf("JSON: %w: fetch the tokenizer again", err)
	}
	switch {
	case m.ByteFallback:
		return nil, errors.New("byte_fallback: only byte-level BPE can be read, which needs none")
	case m.Dropout != 0:
		return nil, errors.New("dropout makes tokens random: set it to null")
	case m.Prefix != "" || m.Suffix != "":
		return nil, errors.New("continuing_subword_prefix or end_of_word_suffix: only byte-level BPE can be read, " +
			"which has none")
	}
	return m, nil
}

// newNormalizer knows none, NFC, and Sequences of NFC, which do it once.
func newNormalizer(c *component) (func(string) string, error) {
	if c == nil {
		return func(s string) string { return s }, nil
	}
	steps := []component{*c}
	if c.Type == "Sequence" {
		steps = c.Normalizers
	}
	for _, step := range steps {
		if step.Type != "NFC" {
			return nil, fmt.Errorf("%q: only NFC and null can be read", step.Type)
		}
	}
	if len(steps) == 0 {
		return newNormalizer(nil)
	}
	return nfc, nil
}

// checkDecoder wants ByteLevel, alone or with Fuse, which joins what is joined already.
func checkDecoder(c *component) error {
	if c == nil {
		return errors.New("none: a byte-level tokenizer needs ByteLevel")
	}
	steps := []component{*c}
	if c.Type == "Sequence" {
		steps = c.Decoders
	}
	if len(steps) == 0 || steps[0].Type != "ByteLevel" {
		return fmt.Errorf("%q without ByteLevel at its beginning: only byte-level tokenizers can be read", c.Type)
	}
	for _, step := range steps[1:] {
		if step.Type != "Fuse" {
			return fmt.Errorf("%q after ByteLevel: only Fuse can be read", step.Type)
		}
	}
	return nil
}

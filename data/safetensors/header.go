package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"unicode/utf8"
)

// maxSafetensorsHeader is the format's own cap on the length of the JSON header, in bytes.
const maxSafetensorsHeader = 100_000_000

// maxDimensions is PyTorch's own limit.
const maxDimensions = 64

const metadataKey = "__metadata__"

// entry is one tensor of a header: where its bytes lie, counted from the end of the header.
type entry struct {
	name       string
	dtype      string
	shape      []int
	begin, end uint64
}

// header is a checked header: entries are in the order of their data.
type header struct {
	entries  []entry
	metadata map[string]string
	dataAt   int // where the data begins in the file
}

// parseSafetensors reads and checks the header of a whole file: 8 bytes of little-endian length, the JSON, the data.
// Every byte of the data must belong to exactly one tensor.
func parseSafetensors(file []byte) (*header, error) {
	if len(file) < 8 {
		return nil, fmt.Errorf("%d bytes are not a safetensors file: it is truncated, fetch it again", len(file))
	}
	n := binary.LittleEndian.Uint64(file)
	if n > maxSafetensorsHeader {
		return nil, fmt.Errorf("header of %d bytes, the format allows %d: not a safetensors file, or a damaged one", n,
			maxSafetensorsHeader)
	}
	if n > uint64(len(file)-8) {
		return nil, fmt.Errorf("header of %d bytes in a file of %d: it is truncated, fetch it again", n, len(file))
	}
	h := &header{dataAt: 8 + int(n)}
	if err := h.parse(file[8:h.dataAt]); err != nil {
		return nil, err
	}
	return h, h.checkOffsets(uint64(len(file) - h.dataAt))
}

func (h *header) parse(text []byte) error {
	if len(text) == 0 || text[0] != '{' {
		return errors.New("the header is not a JSON object: not a safetensors file, or a damaged one")
	}
	if !utf8.Valid(text) {
		return errors.New("the header is not UTF-8: the file is damaged, fetch it again")
	}
	return eachField(text, func(name string, value json.RawMessage) error {
		if name == metadataKey {
			var err error
			h.metadata, err = parseStringMap(value)
			if err != nil {
				return fmt.Errorf("%s: %w", metadataKey, err)
			}
			return nil
		}
		e, err := parseEntry(name, value)
		if err != nil {
			return fmt.Errorf("tensor %q: %w", name, err)
		}
		h.entries = append(h.entries, e)
		return nil
	})
}

// parseEntry reads {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}; other fields are refused.
func parseEntry(name string, text []byte) (entry, error) {
	e := entry{name: name}
	var offsets []uint64
	seen := 0
	err := eachField(text, func(field string, value json.RawMessage) (err error) {
		seen++
		switch field {
		case "dtype":
			e.dtype, err = parseString(value)
		case "shape":
			e.shape, err = parseShape(value)
		case "data_offsets":
			offsets, err = parseUints(value)
		default:
			err = errors.New("the format has no such field: write the file with a safetensors library")
		}
		if err != nil {
			return fmt.Errorf("%q: %w", field, err)
		}
		return nil
	})
	if err != nil {
		return e, err
	}
	if seen != 3 || len(offsets) != 2 {
		return e, errors.New("it needs dtype, shape and two data_offsets: the header is damaged, fetch the file again")
	}
	e.begin, e.end = offsets[0], offsets[1]
	return e, e.checkSize()
}

func (e entry) checkSize() error {
	size, err := safetensorsBytes(e.dtype, e.shape)
	if err != nil {
		return err
	}
	if e.begin > e.end || e.end-e.begin != size {
		return fmt.Errorf("data_offsets [%d, %d] for %d bytes of %s %v: the header is damaged, fetch the file again",
			e.begin, e.end, size, e.dtype, e.shape)
	}
	return nil
}

// checkOffsets orders the entries by their data and refuses holes, overlaps and bytes that belong to no tensor.
func (h *header) checkOffsets(size uint64) error {
	slices.SortFunc(h.entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end), cmp.Compare(a.name, b.name))
	})
	at := uint64(0)
	for _, e := range h.entries {
		if e.begin != at {
			return fmt.Errorf("tensor %q begins at %d, the one before it ends at %d: the header is damaged, fetch "+
				"the file again", e.name, e.begin, at)
		}
		at = e.end
	}
	if at > size {
		return fmt.Errorf("tensor %q ends at %d of %d data bytes: the file is truncated, fetch it again",
			h.entries[len(h.entries)-1].name, at, size)
	}
	if at < size {
		return fmt.Errorf("%d bytes after the last tensor: the file is damaged, fetch it again", size-at)
	}
	return nil
}

// eachField calls f for the fields of a JSON object in order. A field named twice is an error, as is anything after the
// object but white space.
func eachField(text []byte, f func(name string, value json.RawMessage) error) error {
	dec := json.NewDecoder(bytes.NewReader(text))
	if open, err := dec.Token(); err != nil || open != json.Delim('{') {
		return errors.New("not a JSON object")
	}
	seen := map[string]bool{}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return fmt.Errorf("JSON: %w", err)
		}
		name := key.(string) // the decoder allows nothing else before a colon
		if seen[name] {
			return fmt.Errorf("%q occurs twice: remove one", name)
		}
		seen[name] = true
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return fmt.Errorf("JSON: %w", err)
		}
		if err := f(name, value); err != nil {
			return err
		}
	}
	if _, err := dec.Token(); err != nil {
		return fmt.Errorf("JSON: %w", err)
	}
	if rest := bytes.TrimLeft(text[dec.InputOffset():], " \t\r\n"); len(rest) > 0 {
		return errors.New("JSON: text after the closing brace")
	}
	return nil
}

func parseString(text json.RawMessage) (string, error) {
	if text[0] != '"' {
		return "", errors.New("not a string")
	}
	var s string
	err := json.Unmarshal(text, &s)
	return s, err
}

func parseStringMap(text json.RawMessage) (map[string]string, error) {
	m := map[string]string{}
	err := eachField(text, func(name string, value json.RawMessage) error {
		s, err := parseString(value)
		if err != nil {
			return fmt.Errorf("%q: %w: the format has strings only", name, err)
		}
		m[name] = s
		return nil
	})
	return m, err
}

// parseUints reads a list of plain decimal numbers: no sign, fraction, exponent, quote or null.
func parseUints(text json.RawMessage) ([]uint64, error) {
	if text[0] != '[' {
		return nil, errors.New("not a list")
	}
	var items []json.RawMessage
	if err := json.Unmarshal(text, &items); err != nil {
		return nil, err
	}
	out := make([]uint64, len(items))
	for i, item := range items {
		n, err := strconv.ParseUint(string(item), 10, 64)
		if err != nil {
			return nil, errors.New("not a list of whole numbers from 0")
		}
		out[i] = n
	}
	return out, nil
}

func parseShape(text json.RawMessage) ([]int, error) {
	sizes, err := parseUints(text)
	if err != nil {
		return nil, err
	}
	if len(sizes) > maxDimensions {
		return nil, fmt.Errorf("%d dimensions, %d are supported: the header is damaged, fetch the file again",
			len(sizes), maxDimensions)
	}
	shape := make([]int, len(sizes))
	for i, n := range sizes {
		if n > maxTensorBits {
			return nil, fmt.Errorf("dimension %d is too large: the header is damaged, fetch the file again", n)
		}
		shape[i] = int(n)
	}
	return shape, nil
}

package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"unicode/utf8"

	"lockstep/data/atomicfile"
)

// safetensorsAlign is where the data of a written file begins, as a multiple of bytes.
const safetensorsAlign = 64

// OutTensor is a tensor to write. Write streams its values, little-endian, rows first, in any number of calls.
type OutTensor struct {
	Name  string
	DType string // the format's name: F32, BF16, ...
	Shape []int
	Write func(w io.Writer) error
}

// Write writes a file, whole or not at all. The bytes depend on the arguments alone, not on their order:
// wide types come first, so that every element is aligned to its size, then names ascending.
func Write(path string, tensors []OutTensor, metadata map[string]string) error {
	sorted := slices.Clone(tensors)
	slices.SortFunc(sorted, func(a, b OutTensor) int {
		return cmp.Or(cmp.Compare(safetensorsBits[b.DType], safetensorsBits[a.DType]), cmp.Compare(a.Name, b.Name))
	})
	head, sizes, err := buildHeader(sorted, metadata)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return atomicfile.Write(path, func(w io.Writer) error {
		if _, err := w.Write(head); err != nil {
			return err
		}
		for i, t := range sorted {
			if err := t.stream(w, sizes[i]); err != nil {
				return fmt.Errorf("tensor %q: %w", t.Name, err)
			}
		}
		return nil
	})
}

// stream writes the values and checks that they are as many bytes as the header says.
func (t OutTensor) stream(w io.Writer, size uint64) error {
	count := &countingWriter{w: w}
	if err := t.Write(count); err != nil {
		return err
	}
	if count.n != size {
		return fmt.Errorf("%d bytes were written, %s %v has %d", count.n, t.DType, t.Shape, size)
	}
	return nil
}

type countingWriter struct {
	w io.Writer
	n uint64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += uint64(n)
	return n, err
}

// buildHeader is the length, the JSON and its padding, and the bytes of each tensor.
func buildHeader(tensors []OutTensor, metadata map[string]string) (head []byte, sizes []uint64, err error) {
	var text bytes.Buffer
	text.WriteString(`{`)
	if len(metadata) > 0 {
		fmt.Fprintf(&text, "%q:%s", metadataKey, marshal(metadata))
	}
	at, seen := uint64(0), map[string]bool{metadataKey: true}
	for _, t := range tensors {
		if seen[t.Name] || !utf8.ValidString(t.Name) {
			return nil, nil, fmt.Errorf("tensor %q: the name is taken, or is not UTF-8: rename it", t.Name)
		}
		seen[t.Name] = true
		size, err := safetensorsBytes(t.DType, t.Shape)
		if err != nil {
			return nil, nil, fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		if text.Len() > 1 {
			text.WriteByte(',')
		}
		shape := append([]int{}, t.Shape...) // never null
		fmt.Fprintf(&text, `%s:{"dtype":%q,"shape":%s,"data_offsets":[%d,%d]}`, marshal(t.Name), t.DType,
			marshal(shape), at, at+size)
		at += size
		sizes = append(sizes, size)
	}
	text.WriteString(`}`)
	head, err = frameHeader(text.Bytes())
	return head, sizes, err
}

// frameHeader pads the JSON with spaces to the alignment and puts its length in front.
func frameHeader(text []byte) ([]byte, error) {
	padded := (8+len(text)+safetensorsAlign-1)/safetensorsAlign*safetensorsAlign - 8
	if padded > maxSafetensorsHeader {
		return nil, errors.New("too many tensors for one file: write shards")
	}
	head := binary.LittleEndian.AppendUint64(make([]byte, 0, 8+padded), uint64(padded))
	head = append(head, text...)
	return append(head, bytes.Repeat([]byte{' '}, padded-len(text))...), nil
}

// marshal is the JSON of strings, numbers, lists and maps, which always have one; keys of maps are sorted.
func marshal(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // names stay as people write them
	if err := enc.Encode(v); err != nil {
		panic(fmt.Sprintf("safetensors: %v", err))
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

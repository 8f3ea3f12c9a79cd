package data

import (
	"context"
	"encoding/json"
	"io"

	"lockstep/data/atomicfile"
	"lockstep/data/ordered"
	"lockstep/data/tokenizer"
)

// TokenizeFile turns lines {"text": ...} into lines {"ids": [...]}, or back with decode. Special tokens in a text are
// recognised, none are added. It stops when ctx ends.
func TokenizeFile(ctx context.Context, t *tokenizer.Tokenizer, in, out string, decode bool) (lines int, err error) {
	err = atomicfile.Write(out, func(w io.Writer) error {
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		return EachLine(in, func(n int, d *ordered.Dict) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			lines = n + 1
			if decode {
				ids, err := IDs(d, 0, t.Vocab())
				if err != nil {
					return err
				}
				return enc.Encode(map[string]string{"text": t.Decode(ids)})
			}
			text, err := Text(d, "text")
			if err != nil {
				return err
			}
			return enc.Encode(map[string][]int32{"ids": append([]int32{}, t.Encode(text)...)})
		})
	})
	return lines, err
}

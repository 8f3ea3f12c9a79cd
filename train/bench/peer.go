package bench

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
)

// peer runs a Python script, which it feeds to the interpreter's standard input, and reads the JSON objects that the
// script prints, a T each. Of a script that fails it returns those before, and an error with the last line of stderr.
func peer[T any](ctx context.Context, python, script string, args ...any) (rows []T, err error) {
	words := []string{"-"}
	for _, a := range args {
		words = append(words, fmt.Sprint(a))
	}
	c := exec.CommandContext(ctx, python, words...)
	c.Stdin = strings.NewReader(script)
	var out, problems bytes.Buffer
	c.Stdout, c.Stderr = &out, &problems
	if err = c.Run(); err != nil {
		err = fmt.Errorf("the peer %s: %w", python, err)
		if said := strings.TrimSpace(problems.String()); said != "" {
			err = fmt.Errorf("%w: %s", err, said[strings.LastIndex(said, "\n")+1:])
		}
	}
	dec := json.NewDecoder(&out)
	for dec.More() {
		var row T
		if unread := dec.Decode(&row); unread != nil {
			return rows, cmp.Or(err, fmt.Errorf("the peer %s: %w", python, unread))
		}
		rows = append(rows, row)
	}
	return rows, err
}

package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

func TestFresh(t *testing.T) {
	names := []string{"shape.go", "machine_keys.go"}
	var sources [][]byte
	for _, name := range names {
		source, err := os.ReadFile("../" + name)
		if err != nil {
			t.Fatal(err)
		}
		sources = append(sources, source)
	}
	want, err := generate(names, sources...)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../shape_docs.go")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("configs/shape_docs.go differs from the comments in %v: run go generate ./configs", names)
	}
}

func TestGenerate(t *testing.T) {
	text, err := generate([]string{"x.go"}, []byte(`package x

// T is a table.
type T struct {
	A    int // behind "a"
	// above,
	// on two lines
	B, C int // behind
	D    int
}

type Name string
`))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"T.A": "behind \"a\"",`, `"T.B": "above, on two lines",`,
		`"T.C": "above, on two lines",`,
		`"T.D": "",`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	_, err = generate([]string{"x.go"}, []byte("package"))
	if err == nil || !strings.HasPrefix(err.Error(), "x.go:1:") {
		t.Errorf("error %v, want one that names the place", err)
	}
}

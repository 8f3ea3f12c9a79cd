package main

import (
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
)

// function is a Go declaration of an assembly function.
type function struct{ name, signature string }

// argument is one parameter and its offset from FP.
type argument struct {
	name, kind string
	offset     int
}

// arguments lays the parameters out as ABI0 does. size includes the result.
func (f function) arguments() (args []argument, size int) {
	expr, err := parser.ParseExpr("func" + f.signature)
	if err != nil {
		panic(fmt.Sprintf("gen: %s: %v", f.name, err))
	}
	t := expr.(*ast.FuncType)
	for _, field := range t.Params.List {
		kind, bytes, align := kindOf(field.Type)
		for _, n := range field.Names {
			size = (size + align - 1) / align * align
			args = append(args, argument{n.Name, kind, size})
			size += bytes
		}
	}
	if t.Results != nil {
		size = (size+7)/8*8 + 4
	}
	return args, size
}

func kindOf(t ast.Expr) (kind string, bytes, align int) {
	switch t := t.(type) {
	case *ast.ArrayType:
		return "[]" + t.Elt.(*ast.Ident).Name, 24, 8
	case *ast.StarExpr:
		return "*", 8, 8
	}
	return "float32", 4, 4
}

// open starts the assembly function, with `frame` bytes of stack of its own; then it may have to grow the stack.
func (f function) open(m *isa, frame int) string {
	_, size := f.arguments()
	flags := "NOSPLIT"
	if frame > 0 {
		flags = "0"
	}
	return fmt.Sprintf("// func %s%s%s\nTEXT ·%s%s(SB), %s, $%d-%d\n", f.name, m.suffix, f.signature, f.name, m.suffix,
		flags, frame, size)
}

// formatted is gofmt of text.
func formatted(text string) string {
	b, err := format.Source([]byte(text))
	if err != nil {
		panic(err)
	}
	return string(b)
}

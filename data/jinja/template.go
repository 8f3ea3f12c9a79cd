package jinja

import (
	"fmt"
	"strings"
	"time"
)

// Template is parsed once and rendered any number of times, also at the same time.
type Template struct{ body []stmt }

// Result is a rendered text and the byte ranges of it that {% generation %} blocks made, in order.
type Result struct {
	Text      string
	Generated [][2]int
}

// Parse reads a template. Its errors name the line.
func Parse(source string) (t *Template, err error) {
	defer catch(&err)
	if len(source) > maxSource {
		fail(0, "the template has more than %d bytes", maxSource)
	}
	p := newParser(lex(source))
	return &Template{body: p.template()}, nil
}

// Render runs the template on vars. now is what strftime_now tells; it is refused at the zero time.
func (t *Template) Render(vars map[string]any, now time.Time) (res Result, err error) {
	defer catch(&err)
	r := newRun(vars, now)
	if r.stmts(t.body) != flowNext {
		fail(0, "break or continue outside a loop")
	}
	return Result{Text: r.out.String(), Generated: r.generated}, nil
}

// failure is how the lexer, parser and interpreter give up: they panic with it, and [catch] returns it.
type failure struct {
	line int
	text string
}

func (f *failure) Error() string {
	if f.line == 0 {
		return f.text
	}
	return fmt.Sprintf("line %d: %s", f.line, f.text)
}

// fail gives up, with a text of one line; line 0 is filled in by the statement that was being run.
func fail(line int, format string, args ...any) {
	panic(&failure{line, strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " ")})
}

// catch turns a failure into an error; any other panic is a bug and goes on.
func catch(err *error) {
	switch x := recover().(type) {
	case nil:
	case *failure:
		*err = x
	default:
		panic(x)
	}
}

// The bounds of a rendering. They are far above what conversations need.
const (
	maxSource = 1 << 20   // bytes of a template
	maxSteps  = 5_000_000 // statements and expressions evaluated
	maxDepth  = 200       // nesting of source, of macro calls and of printed values
	maxString = 1 << 24   // bytes of a string
	maxList   = 1 << 20   // elements of a list
	maxRange  = 100_000   // elements of a range, as in jinja2's sandbox
)

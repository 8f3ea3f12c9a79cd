package jinja

import (
	"context"
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

// Render runs the template on vars, until ctx ends. now is what strftime_now tells; it is refused at the zero time.
func (t *Template) Render(ctx context.Context, vars map[string]any, now time.Time) (Result, error) {
	return newRun(ctx, vars, now).render(t.body)
}

func (r *run) render(body []stmt) (res Result, err error) {
	defer catch(&err)
	if r.stmts(body) != flowNext {
		fail(0, "break or continue outside a loop")
	}
	return Result{Text: r.out.String(), Generated: r.generated}, nil
}

// failure is how the lexer, parser and interpreter give up: they panic with it, and [catch] returns it.
type failure struct {
	line  int
	text  string
	cause error // of a rendering whose context has ended, instead of a text
}

func (f *failure) Error() string {
	text := f.text
	if f.cause != nil {
		text = f.cause.Error()
	}
	if f.line == 0 {
		return text
	}
	return fmt.Sprintf("line %d: %s", f.line, text)
}

func (f *failure) Unwrap() error { return f.cause }

// fail gives up, with a text of one line; line 0 is filled in by the statement that was being run.
func fail(line int, format string, args ...any) {
	for i, arg := range args {
		if s, ok := arg.(string); ok {
			args[i] = short(s)
		}
	}
	panic(&failure{line: line, text: strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " ")})
}

// short is a name or a text of the template, as much of it as a message can show.
func short(s string) string {
	const most = 200
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
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

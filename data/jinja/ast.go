package jinja

// Statements.
type (
	stmt interface{ at() int }

	line int // of a statement; embedded in each

	textStmt struct {
		line
		text string
	}
	printStmt struct {
		line
		value node
	}
	ifStmt struct {
		line
		test      node
		then, alt []stmt
	}
	forStmt struct {
		line
		targets []string
		unpack  bool // targets is a tuple
		in      node
		filter  node // or nil
		body    []stmt
		alt     []stmt
	}
	setStmt struct {
		line
		targets []target
		unpack  bool
		value   node
	}
	setBlockStmt struct {
		line
		target  target
		filters []filterCall
		body    []stmt
	}
	macroStmt struct {
		line
		macro *macro
	}
	callStmt struct { // {% call(args) f() %}body{% endcall %}
		line
		caller *macro
		call   *callNode
	}
	filterStmt struct {
		line
		filters []filterCall
		body    []stmt
	}
	withStmt struct {
		line
		names  []string
		values []node
		body   []stmt
	}
	generationStmt struct {
		line
		body []stmt
	}
	flowStmt struct {
		line
		flow flow
	}
)

func (l line) at() int { return int(l) }

// target of a set: a name, or an attribute of a namespace.
type target struct{ name, attr string }

// macro is a function written in the template.
type macro struct {
	name     string
	params   []string
	defaults []node // of the last parameters
	body     []stmt
	caller   bool // the body names "caller"
}

// Expressions.
type (
	node interface{}

	constNode struct{ value any }
	nameNode  struct{ name string }
	listNode  struct{ items []node }
	tupleNode struct{ items []node }
	dictNode  struct{ keys, values []node }
	unaryNode struct {
		op string
		x  node
	}
	binaryNode struct {
		op   string
		x, y node
	}
	compareNode struct {
		x   node
		ops []string
		ys  []node
	}
	condNode struct{ test, then, alt node } // alt nil: undefined
	attrNode struct {
		x    node
		name string
	}
	indexNode struct{ x, i node }
	sliceNode struct{ x, start, stop, step node } // nil where left out
	callNode  struct {
		fn   node
		args args
	}
	filterNode struct {
		x    node
		call filterCall
	}
	testNode struct {
		x    node
		name string
		args args
	}
)

// args are the arguments of a call as written.
type args struct {
	list  []node
	names []string // of named ones
	named []node
}

type filterCall struct {
	name string
	args args
}

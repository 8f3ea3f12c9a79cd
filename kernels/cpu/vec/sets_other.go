//go:build !amd64

package vec

// sets is the loops of each instruction set.
var sets = map[string]loops{"portable": portable}

// setsEx2h is the loops that differ with exp2 "ex2h".
var setsEx2h = map[string]loops{"portable": portableEx2h}

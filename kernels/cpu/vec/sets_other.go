//go:build !amd64

package vec

// sets is the loops of each instruction set.
var sets = map[string]loops{"portable": portable}

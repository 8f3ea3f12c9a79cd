// Package include is the CUDA headers that several packages of operations include. A header of one package alone lies
// there. It imports nothing.
package include

import "embed"

// Sources are the headers.
//
//go:embed *.cuh
var Sources embed.FS

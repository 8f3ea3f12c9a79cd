//go:build cuda

package rows

// ByQuant is Round by package quant.
var ByQuant = byQuant

// KeepShapes returns what puts back the shapes of kernels that are in use now.
func KeepShapes() (reset func()) {
	norm, grad, rope := normShapes, normGradShapes, ropeShapes
	return func() { normShapes, normGradShapes, ropeShapes = norm, grad, rope }
}

// SetNormShape makes a shape the only one of the norm.
func SetNormShape(columns, parts, teams int) { normShapes = []normShape{{columns, parts, teams}} }

// SetNormGradShape makes a shape the only one of the norm's gradient.
func SetNormGradShape(columns, parts, teams int) {
	normGradShapes = []normShape{{columns, parts, teams}}
}

// SetRopeShape makes numbers of heads at a time those of heads of 128 columns.
func SetRopeShape(forward, backward int) { ropeShapes = map[int]ropeShape{16: {forward, backward}} }

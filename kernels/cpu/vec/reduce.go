package vec

import "math"

// lanes is kernels.Definition.Lanes, the only number of lanes that is implemented.
const lanes = 256

// Max is the largest of x, -Inf for none; NaN if one is NaN; a zero maximum is +0.
func (o *Ops) Max(x []float32) float32 { return o.max(x) }

func maxGo(x []float32) float32 {
	m := float32(math.Inf(-1))
	for _, v := range x {
		m = max(m, v)
	}
	return m + 0 // -0 becomes +0
}

// Tree is the definition's sum: lane l of 256 adds x[l], x[l+256], ... ascending from +0, then the upper half of the
// lanes is added to the lower until one is left. A lane is never -0, so halving may start at the next power of two of a
// short x.
func (o *Ops) Tree(x []float32) float32 { return o.tree(x) }

func treeGo(x []float32) float32 {
	var lane [lanes]float32
	for len(x) > lanes {
		for l, v := range x[:lanes] {
			lane[l] += v
		}
		x = x[lanes:]
	}
	for l, v := range x {
		lane[l] += v
	}
	return halve(&lane)
}

// TreeDot is [Ops.Tree] of the rounded products x[i]*y[i].
func (o *Ops) TreeDot(x, y []float32) float32 { return o.treeDot(x, y[:len(x)]) }

func treeDotGo(x, y []float32) float32 {
	var lane [lanes]float32
	for i, v := range x {
		lane[i%lanes] += float32(v * y[i])
	}
	return halve(&lane)
}

// TreeScaled is [Ops.Tree] of x[i]*(y[i]*a), each product rounded.
func (o *Ops) TreeScaled(x, y []float32, a float32) float32 { return o.treeScaled(x, y[:len(x)], a) }

func treeScaledGo(x, y []float32, a float32) float32 {
	var lane [lanes]float32
	for i, v := range x {
		lane[i%lanes] += float32(v * float32(y[i]*a))
	}
	return halve(&lane)
}

func halve(lane *[lanes]float32) float32 {
	for s := lanes / 2; s > 0; s /= 2 {
		for l := range s {
			lane[l] += lane[l+s]
		}
	}
	return lane[0]
}

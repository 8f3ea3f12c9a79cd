package model

import (
	"lockstep/kernels"
)

// builder makes the parameters of a model in device memory while a family describes its blocks.
type builder struct {
	mem    *kernels.Arena // nil: shapes only, no memory
	dtype  kernels.DType
	std    float64 // initializer_range
	params []*Param
}

func (b *builder) param(init Init, groups, rows, cols int, parts ...Part) *Param {
	p := &Param{Name: parts[0].Name, W: kernels.Tensor{DType: b.dtype, Groups: groups, Rows: rows, Cols: cols, Stride: cols}, Parts: parts, Init: init}
	if b.mem != nil {
		p.W = b.mem.NewGrouped(b.dtype, groups, rows, cols)
	}
	b.params = append(b.params, p)
	return p
}

// matrix is one checkpoint tensor [rows, cols].
func (b *builder) matrix(name string, rows, cols int) *Param {
	return b.param(Init{Normal, b.std}, 1, rows, cols, Part{Name: name, Rows: rows, Shape: []int{rows, cols}})
}

// norm is the weight vector of an RMSNorm over n columns.
func (b *builder) norm(name string, n int, eps float32) *Norm {
	return &Norm{W: b.param(Init{Kind: Ones}, 1, 1, n, Part{Name: name, Rows: 1, Shape: []int{n}}), Eps: eps}
}

// out is one of the projections that a Linear computes at once: a module of the checkpoint with rows outputs.
type out struct {
	module string
	rows   int
}

// linear stacks projections of the same input [in] into one weight [sum of rows, in].
func (b *builder) linear(in int, outs ...out) *Linear {
	l := &Linear{}
	rows := 0
	var parts []Part
	for _, o := range outs {
		parts = append(parts, Part{Name: o.module + ".weight", Row: rows, Rows: o.rows, Shape: []int{o.rows, in}})
		l.Subs = append(l.Subs, &Sub{Module: o.module, From: rows, To: rows + o.rows})
		rows += o.rows
	}
	l.W = b.param(Init{Normal, b.std}, 1, rows, in, parts...)
	return l
}

// experts stacks the same projections of every expert: weight [n, sum of rows, in]. fused is the name that PEFT's
// target_parameters uses for it; module(e, i) names projection i of expert e on disk.
func (b *builder) experts(n, in int, fused string, rows []int, module func(e, i int) string) *Linear {
	total := 0
	var parts []Part
	for i, r := range rows {
		for e := range n {
			parts = append(parts, Part{Name: module(e, i) + ".weight", Group: e, Row: total, Rows: r, Shape: []int{r, in}})
		}
		total += r
	}
	l := &Linear{Subs: []*Sub{{Module: fused, To: total}}, Fused: true}
	l.W = b.param(Init{Normal, b.std}, n, total, in, parts...)
	l.W.Name = fused
	return l
}

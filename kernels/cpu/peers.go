package cpu

import (
	"lockstep/kernels"
)

// GatherPeers: the rows of parts [T_i, n], one part's below the other's, to out [sum of T_i, n].
func (d *Device) GatherPeers(out kernels.Tensor, parts []kernels.Tensor) {
	const op = "gather of peers"
	at := 0
	for _, p := range parts {
		mustShape(op, "part", p, p.Rows, out.Cols)
		d.copyRows(out.RowRange(at, at+p.Rows), p)
		at += p.Rows
	}
	mustShape(op, "out", out, at, out.Cols)
}

// FewBytes is Options.Few: by default copies bring all, which tests may delay.
func (d *Device) FewBytes() int { return d.few }

// CombinePeers is Combine of rows that several devices have computed.
func (d *Device) CombinePeers(out, residual kernels.Tensor, y kernels.PeerRows, weights, rowOf kernels.Tensor) {
	const op = "combine of peers"
	of := peerRows(op, y, out.Cols)
	in := make([]matrix, len(y.Parts))
	for i, p := range y.Parts {
		in[i] = d.matrix(p)
	}
	d.combine(op, out, residual, of.rows, weights, rowOf, func(row int, buf []float32) []float32 {
		part, at := of.find(row)
		return in[part].load(at, buf)
	})
}

// TakePeers: out[i] = y[rowOf[i]] of rows that several devices have computed; rowOf of as many elements as out rows.
func (d *Device) TakePeers(out kernels.Tensor, y kernels.PeerRows, rowOf kernels.Tensor) {
	const op = "take of peers"
	of, rows := peerRows(op, y, out.Cols), indices(op, "rowOf", rowOf, out.Rows)
	mustIndex(op, rows, of.rows)
	for i, row := range rows {
		part, at := of.find(int(row))
		d.copyPart(out, y.Parts[part], i*out.Stride, at*y.Parts[part].Stride, out.Cols)
	}
}

// peerPlaces finds rows of several devices.
type peerPlaces struct {
	kernels.PeerRows
	offsets []int32
	rows    int // of all parts
}

func peerRows(op string, y kernels.PeerRows, cols int) peerPlaces {
	of := peerPlaces{PeerRows: y, offsets: indices(op, "offsets", y.Offsets, y.Offsets.Len())}
	for i, p := range y.Parts {
		mustShape(op, "part", p, p.Rows, cols)
		of.rows = max(of.rows, y.Base[i]+p.Rows)
	}
	return of
}

// find is where a row lies.
func (y *peerPlaces) find(row int) (part, at int) {
	part = len(y.Parts) - 1
	for part > 0 && int(y.offsets[y.First[part]]) > row {
		part--
	}
	return part, row - y.Base[part]
}

package main

import "fmt"

// The packing loops read blocks of a strided matrix of fp32 or bf16 and write fp32, full vectors: the destination has
// room for rows and columns rounded up to the lanes of a register. What lies beyond the matrix there is unspecified.
const (
	packSignature = "(dst *float32, ds int, src *%s, ss, rows, cols int)"
	packArgBytes  = 48
)

func elementType(width int) string {
	if width == widthBF16 {
		return "uint16"
	}
	return "float32"
}

// packHead opens a packing loop. DI, R8: destination and its stride in bytes; SI, R9: source and its stride; R10 rows,
// R11 columns.
func (w *writer) packHead(name string, width int) {
	w.function(name, fmt.Sprintf(packSignature, elementType(width)), packArgBytes)
	w.code("MOVQ dst+0(FP), DI")
	w.code("MOVQ ds+8(FP), R8")
	w.code("MOVQ src+16(FP), SI")
	w.code("MOVQ ss+24(FP), R9")
	w.code("MOVQ rows+32(FP), R10")
	w.code("MOVQ cols+40(FP), R11")
	w.code("SHLQ $2, R8")
	w.code("SHLQ $%d, R9", width/2)
	if w.masks {
		w.code("KXNORW K0, K0, K1")
	}
}

// load is a vector of the source as fp32, under mask K1 where there are masks.
func (w *writer) load(width int, at, dst string) {
	switch {
	case width == widthBF16 && w.masks:
		w.code("VPMOVZXWD.Z %s, K1, %s", at, dst)
	case width == widthBF16:
		w.code("VPMOVZXWD %s, %s", at, dst)
	case w.masks:
		w.code("VMOVUPS.Z %s, K1, %s", at, dst)
	default:
		w.code("VMOVUPS %s, %s", at, dst)
	}
	if width == widthBF16 {
		w.code("VPSLLD $16, %s, %s", dst, dst)
	}
}

// lastMask sets K1 to the columns that are left, R11, when they are fewer than a register has lanes.
func (w *writer) lastMask(label string) {
	if !w.masks {
		return
	}
	w.code("CMPQ R11, $%d", w.lanes)
	w.code("JGE  %s", label)
	w.code("MOVL $1, AX")
	w.code("MOVQ R11, CX")
	w.code("SHLL CX, AX")
	w.code("DECL AX")
	w.code("KMOVW AX, K1")
	w.label(label)
}

// transpose writes dst[j][i] = src[i][j] for rows i, at most the lanes, and columns j. Rows of a register beyond the
// last repeat it.
func (w *writer) transpose(kind string, width int) {
	w.packHead("transpose"+kind+w.suffix, width)
	w.code("MOVQ R9, R13")
	w.code("SHLQ $%d, R13", map[int]int{8: 3, 16: 4}[w.lanes])
	w.label("block")
	w.lastMask("masked")
	w.code("MOVQ SI, DX")
	for i := range w.lanes {
		w.load(width, "(DX)", w.reg(i))
		w.code("PREFETCHT0 (DX)(R13*1)") // the same columns of the rows that the next call takes
		if i < w.lanes-1 {
			w.code("LEAQ (DX)(R9*1), BX")
			w.code("CMPQ R10, $%d", i+1)
			w.code("CMOVQGT BX, DX")
		}
	}
	columns := w.transpose8()
	if w.lanes == 16 {
		columns = w.transpose16()
	}
	for _, c := range columns {
		w.code("VMOVUPS %s, (DI)", c)
		w.code("ADDQ R8, DI")
	}
	w.code("ADDQ $%d, SI", w.lanes*width)
	w.code("SUBQ $%d, R11", w.lanes)
	w.code("JGT  block")
	w.end()
}

// quads writes, for each four rows, four registers whose 128-bit parts p hold columns 4p+c of those rows, c the
// register's place: rows in the first half of the registers, or in their place for 8 lanes; t are registers for the
// first stage.
func (w *writer) quads(rows, t, out []string) {
	for g := 0; g < len(rows); g += 4 {
		w.code("VUNPCKLPS %s, %s, %s", rows[g+1], rows[g], t[g])
		w.code("VUNPCKHPS %s, %s, %s", rows[g+1], rows[g], t[g+1])
		w.code("VUNPCKLPS %s, %s, %s", rows[g+3], rows[g+2], t[g+2])
		w.code("VUNPCKHPS %s, %s, %s", rows[g+3], rows[g+2], t[g+3])
		w.code("VUNPCKLPD %s, %s, %s", t[g+2], t[g], out[g])
		w.code("VUNPCKHPD %s, %s, %s", t[g+2], t[g], out[g+1])
		w.code("VUNPCKLPD %s, %s, %s", t[g+3], t[g+1], out[g+2])
		w.code("VUNPCKHPD %s, %s, %s", t[g+3], t[g+1], out[g+3])
	}
}

func (w *writer) regs(from, n int) []string {
	var r []string
	for i := range n {
		r = append(r, w.reg(from+i))
	}
	return r
}

// transpose16 transposes Z0-Z15 and returns the registers of the columns.
func (w *writer) transpose16() []string {
	u, t := w.regs(0, 16), w.regs(16, 16)
	w.quads(u, t, u)
	columns := make([]string, 16)
	for c := range 4 { // of each group of four rows, register c
		even, odd := [2]string{t[4*c], t[4*c+1]}, [2]string{t[4*c+2], t[4*c+3]}
		for half := range 2 {
			a, b := u[8*half+c], u[8*half+4+c]
			w.code("VSHUFF32X4 $0x88, %s, %s, %s", b, a, even[half])
			w.code("VSHUFF32X4 $0xdd, %s, %s, %s", b, a, odd[half])
		}
		for p, r := range [][2]string{even, odd} { // columns c, c+8 and c+4, c+12
			columns[c+4*p], columns[c+4*p+8] = u[c+4*p], u[c+4*p+8]
			w.code("VSHUFF32X4 $0x88, %s, %s, %s", r[1], r[0], columns[c+4*p])
			w.code("VSHUFF32X4 $0xdd, %s, %s, %s", r[1], r[0], columns[c+4*p+8])
		}
	}
	return columns
}

// transpose8 transposes Y0-Y7.
func (w *writer) transpose8() []string {
	if w.lanes != 8 {
		return nil
	}
	u, t := w.regs(0, 8), w.regs(8, 8)
	w.quads(u, t, u)
	for c := range 4 {
		w.code("VPERM2F128 $0x20, %s, %s, %s", u[4+c], u[c], t[c])
		w.code("VPERM2F128 $0x31, %s, %s, %s", u[4+c], u[c], t[4+c])
	}
	return t
}

// copyRows writes dst[i][j] = src[i][j], a row in pairs of registers, then one by one.
func (w *writer) copyRows(kind string, width int) {
	w.packHead("copyRows"+kind+w.suffix, width)
	w.code("MOVQ R11, R12")
	w.label("row")
	w.code("MOVQ SI, DX")
	w.code("MOVQ DI, BX")
	w.code("SUBQ $%d, R11", 2*w.lanes)
	w.code("JLT  last")
	w.label("pair")
	for i := range 2 {
		w.load(width, fmt.Sprintf("%d(DX)", i*w.lanes*width), w.reg(i))
	}
	w.code("PREFETCHT0 (DX)(R9*8)")
	for i := range 2 {
		w.code("VMOVUPS %s, %d(BX)", w.reg(i), i*w.bytes())
	}
	w.code("ADDQ $%d, DX", 2*w.lanes*width)
	w.code("ADDQ $%d, BX", 2*w.bytes())
	w.code("SUBQ $%d, R11", 2*w.lanes)
	w.code("JGE  pair")
	w.label("last")
	w.code("ADDQ $%d, R11", 2*w.lanes)
	w.code("JEQ  next")
	w.label("single")
	w.lastMask("masked")
	w.load(width, "(DX)", w.reg(0))
	w.code("VMOVUPS %s, (BX)", w.reg(0))
	w.code("ADDQ $%d, DX", w.lanes*width)
	w.code("ADDQ $%d, BX", w.bytes())
	w.code("SUBQ $%d, R11", w.lanes)
	w.code("JGT  single")
	if w.masks {
		w.code("KXNORW K0, K0, K1")
	}
	w.label("next")
	w.code("MOVQ R12, R11")
	w.code("ADDQ R9, SI")
	w.code("ADDQ R8, DI")
	w.code("DECQ R10")
	w.code("JNE  row")
	w.end()
}

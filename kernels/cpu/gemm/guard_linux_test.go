package gemm

import (
	"math/rand/v2"
	"syscall"
	"testing"
	"unsafe"

	"lockstep/kernels"
	"lockstep/quant"
)

// guarded is n values that end at a page that must not be accessed.
func guarded[T stored | byte](t *testing.T, n int) []T {
	t.Helper()
	page := syscall.Getpagesize()
	size := int(unsafe.Sizeof(*new(T)))
	pages := (n*size + page - 1) / page * page
	b, err := syscall.Mmap(-1, 0, pages+page, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Munmap(b); err != nil {
			t.Error(err)
		}
	})
	if err := syscall.Mprotect(b[pages:], syscall.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&b[pages-n*size])), n)
}

// Assembly must not read or write beyond its operands: each ends at a page that faults.
func TestNothingBeyondOperands(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 6))
	for _, dot := range []kernels.DotMode{kernels.DotFMA, kernels.DotTC16} {
		all := engines(t, dot)
		for range 40 {
			m, n, k := 1+rng.IntN(40), 1+rng.IntN(70), 1+rng.IntN(50)
			af, bf, c := guarded[float32](t, m*k), guarded[float32](t, k*n), guarded[float32](t, m*n)
			ah, bh := guarded[uint16](t, m*k), guarded[uint16](t, k*n)
			for _, e := range all {
				for _, p := range [][2]Operand{
					{{F: af, RS: k, CS: 1}, {F: bf, RS: n, CS: 1}}, {{F: af, RS: 1, CS: m}, {F: bf, RS: 1, CS: k}},
					{{H: ah, RS: k, CS: 1}, {H: bh, RS: n, CS: 1}}, {{H: ah, RS: 1, CS: m}, {H: bh, RS: 1, CS: k}},
				} {
					e.Run(1, inOrder, []Product{{C: Operand{F: c, RS: n, CS: 1}, M: m, N: n,
						Pieces: []Piece{{A: p[0], B: p[1], K: k}}}})
				}
			}
		}
	}
}

// Nor beyond codes and scales.
func TestNothingBeyondCodes(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 7))
	for range 40 {
		n, k := 1+rng.IntN(70), 2+rng.IntN(300)
		f := quant.Format{Code: quant.Code(rng.IntN(4)), Scale: quant.Scale(rng.IntN(3)), Wide: 32}
		w := codesOf(f, kernels.F32, n, k, guarded[byte](t, n*f.RowBytes(k)),
			guarded[byte](t, n*f.Blocks(k)*f.Scale.Bits()/8))
		for _, e := range engines(t, kernels.DotFMA) {
			out := guarded[float32](t, n*k)
			e.Dequantize(kernels.Wrap(out, n, k), w, 0, n)
		}
	}
}

func inOrder(n, grain int, body func(worker, from, to int)) {
	for i := 0; i < n; i += grain {
		body(0, i, min(i+grain, n))
	}
}

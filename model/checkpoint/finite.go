package checkpoint

import (
	"encoding/binary"
	"fmt"

	"lockstep/data/safetensors"
	"lockstep/kernels"
)

// pieceElements is how many numbers are checked while those before them are copied.
const pieceElements = 1 << 20

// inPieces gives the elements of a tensor that is in the storage type d already to visit, none of which is NaN or
// infinite.
func inPieces(t safetensors.TensorInfo, d kernels.DType, visit func(from int, raw []byte) error) error {
	piece := func(from int) []byte { return slice(t, from, min(from+pieceElements, t.Len())).Data }
	check := func(from int) (place chan int) {
		place = make(chan int, 1)
		if from < t.Len() {
			go func() { place <- firstNotFinite(piece(from), d) }()
		} else {
			place <- -1
		}
		return place
	}
	ahead := check(0)
	for from := 0; from < t.Len(); from += pieceElements {
		if i := <-ahead; i >= 0 {
			return notFinite(t, from+i, d)
		}
		ahead = check(from + pieceElements)
		if err := visit(from, piece(from)); err != nil {
			<-ahead // it reads the file, which may be closed now
			return err
		}
	}
	return nil
}

// notFinite is the error of element i, which is NaN or infinite in a storage type.
func notFinite(t safetensors.TensorInfo, i int, d kernels.DType) error {
	var x [1]float32
	if err := safetensors.ToF32(x[:], slice(t, i, i+1)); err != nil {
		return err
	}
	if x[0]-x[0] == 0 {
		return fmt.Errorf("%s: tensor %s: element %v is %g, more than %s holds: use --dtype fp32", t.File, t.Name,
			place(t.Shape, i), x[0], d)
	}
	return fmt.Errorf("%s: tensor %s: element %v is %v: fetch the checkpoint again, or use one from before its "+
		"training diverged", t.File, t.Name, place(t.Shape, i), x[0])
}

// firstNotFinite is the place of the first element that is NaN or infinite, or -1. Eight bytes are looked at together:
// an exponent of ones, plus one, carries into the bit of the sign, which is masked.
func firstNotFinite(raw []byte, d kernels.DType) int {
	exponents, one := uint64(0x7f800000_7f800000), uint64(0x00800000_00800000)
	if d == kernels.BF16 {
		exponents, one = 0x7f807f80_7f807f80, 0x00800080_00800080
	}
	signs := exponents + one
	at := 0
	for ; at+64 <= len(raw); at += 64 {
		line, carried := raw[at:at+64], uint64(0)
		for k := 0; k < 64; k += 8 {
			carried |= binary.LittleEndian.Uint64(line[k:])&exponents + one
		}
		if carried&signs != 0 {
			break
		}
	}
	var x [1]float32
	for size := d.Size(); at < len(raw); at += size {
		if GetAll(x[:], raw[at:], d); x[0]-x[0] != 0 {
			return at / size
		}
	}
	return -1
}

package main

// sizes are the scalars of C on the card, which are aligned to their size.
var sizes = map[string]int{
	"int": 4, "unsigned int": 4, "unsigned": 4, "unsigned short": 2, "unsigned char": 1, "float": 4, "double": 8,
	"long long": 8, "unsigned long long": 8, "size_t": 8,
}

// goTypes are the scalars of Go that lie in memory alike.
var goTypes = map[string]string{
	"int": "int32", "unsigned int": "uint32", "unsigned": "uint32", "unsigned short": "uint16",
	"unsigned char": "uint8",
	"float":         "float32", "double": "float64", "long long": "int64", "unsigned long long": "uint64",
	"size_t": "uint64",
}

// tensorMap is the struct of the driver's own: driver.TensorMap.
const tensorMap = "TensorMap"

// extent is the size and the alignment of something in memory, by the rules of C, and its alignment in Go.
type extent struct{ size, align, goAlign int }

func (p *parameter) extent() extent {
	e := extent{8, 8, 8}
	switch {
	case p.pointer:
	case p.record != nil:
		e = p.record.extent()
	default:
		n := sizes[p.element]
		e = extent{n, n, n}
	}
	if p.count > 0 {
		e.size *= p.count
	}
	return e
}

func (s *structure) extent() extent {
	e := layOut(s.fields, nil)
	if s.name == tensorMap {
		e.goAlign = 1 // an array of bytes
	}
	e.align = max(e.align, s.align)
	e.size = up(e.size, e.align)
	return e
}

func up(n, align int) int { return (n + align - 1) / align * align }

// layOut places fields one after the other and calls f with the place of each, and with how many bytes lie free before
// it. Go code declares them: it would leave fewer free, or put what memory held there into a parameter.
func layOut(fields []parameter, f func(p *parameter, offset, padding int)) (e extent) {
	e.align, e.goAlign = 1, 1
	for i := range fields {
		own := fields[i].extent()
		at := up(e.size, own.align)
		if f != nil {
			f(&fields[i], at, at-e.size)
		}
		e.size = at + own.size
		e.align, e.goAlign = max(e.align, own.align), max(e.goAlign, own.goAlign)
	}
	return e
}

//go:build cuda

package cuda

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/kernels/cuda/cudatest"
)

// A copy from another card has the rows that were there, whatever their stride, groups and type, and nothing between
// the rows is touched. What is enqueued behind the wait finds it, and not before: on the emulated GPU copies are late.
func TestCopyPeer(t *testing.T) {
	a, b := cudatest.Pair[*Device](t)
	for _, from := range []cudatest.Operand{
		cudatest.Normal(kernels.F32, 1, 4096, 1), cudatest.Normal(kernels.BF16, 7, 96, 1),
		cudatest.Strided(kernels.F32, 5, 33, 1), cudatest.Strided(kernels.BF16, 64, 2, 1),
		cudatest.Grouped(kernels.BF16, 3, 4, 24, 40, 1), cudatest.Ints(1, 3, []int32{-1, 7, 1 << 30}),
		cudatest.Normal(kernels.F32, 0, 8, 1),
	} {
		for _, d := range [][2]*Device{{a, b}, {b, a}, {a, a}} {
			src, _ := from.On(d[0])
			blank := from
			blank.Raw = bytes.Repeat([]byte{0x11}, len(from.Raw))
			dst, whole := blank.On(d[1])
			e := d[1].CopyPeer([]kernels.Event{d[0].Record(), d[1].Record()}, kernels.PeerCopy{Dst: dst, Src: src})
			d[0].WaitEvents(e)
			d[0].Zero(src) // behind the copy
			d[1].WaitEvents(e)
			got := make([]byte, len(from.Raw))
			d[1].Read(got, whole)
			if err := d[1].Sync(); err != nil { // reading no bytes waits for nothing
				t.Fatal(err)
			}
			if !e.Happened() {
				t.Error("a copy that was waited for has not happened")
			}
			want := bytes.Clone(blank.Raw)
			size, row := from.DType.Size(), from.Cols*from.DType.Size()
			for r := range from.Groups * from.Rows {
				at := r * from.Stride * size
				copy(want[at:at+row], from.Raw[at:])
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s from card %v to %v differs", src, d[0] == a, d[1] == a)
			}
		}
	}
}

// A copy follows another by its event alone, without an operation in between.
func TestCopyPeerChain(t *testing.T) {
	a, b := cudatest.Pair[*Device](t)
	from := cudatest.Strided(kernels.BF16, 9, 40, 1)
	for range 8 {
		x, _ := from.On(a)
		y, _ := cudatest.Normal(kernels.BF16, 9, 40, 1).On(b)
		z, _ := cudatest.Normal(kernels.BF16, 9, 40, 1).On(a)
		there := b.CopyPeer([]kernels.Event{a.Record()}, kernels.PeerCopy{Dst: y, Src: x})
		a.WaitEvents(a.CopyPeer([]kernels.Event{there}, kernels.PeerCopy{Dst: z, Src: y}))
		want, _ := cudatest.Normal(kernels.BF16, 9, 40, 1).On(a)
		a.Copy(want, x)
		got, expected := make([]byte, z.Bytes()), make([]byte, z.Bytes())
		a.Read(got, z)
		if a.Read(expected, want); !bytes.Equal(got, expected) {
			t.Fatal("the second copy came before the first")
		}
	}
}

// Copies of a repeated sequence lie between its graphs.
func TestCopyPeerRepeated(t *testing.T) {
	a, b := cudatest.Pair[*Device](t)
	x, _ := cudatest.Normal(kernels.BF16, 4, 64, 1).On(a)
	y, _ := cudatest.Normal(kernels.BF16, 4, 64, 1).On(b)
	want, _ := cudatest.Normal(kernels.BF16, 4, 64, 1).On(a)
	got, twice := make([]byte, x.Bytes()), make([]byte, x.Bytes())
	for round := range 3 {
		kernels.Repeat(a, "exchange", func() {
			a.Scale(x, x, 1+float32(round)) // another factor each time
			e := b.CopyPeer([]kernels.Event{a.Record()}, kernels.PeerCopy{Dst: y, Src: x})
			b.WaitEvents(e)
			b.Scale(y, y, 2)
			a.WaitEvents(a.CopyPeer([]kernels.Event{b.Record()}, kernels.PeerCopy{Dst: want, Src: y}), e)
			a.Scale(x, x, 2)
		})
		a.Read(got, want)
		if a.Read(twice, x); !bytes.Equal(got, twice) {
			t.Errorf("round %d: a copy took what was before or behind it in the sequence", round)
		}
	}
}

// Numbers are read behind what was enqueued before them and not what comes later.
func TestReadAsync(t *testing.T) {
	a, _ := cudatest.Pair[*Device](t)
	var reads []func() []int32
	x, _ := cudatest.Ints(1, 3, make([]int32, 3)).On(a)
	for i := range int32(5) {
		raw := binary.LittleEndian.AppendUint32(make([]byte, 8), uint32(i))
		a.Write(x, raw)
		reads = append(reads, a.ReadAsync(x))
	}
	a.Zero(x)
	for i, read := range reads {
		if got := read(); len(got) != 3 || got[2] != int32(i) {
			t.Errorf("read %d gives %v", i, got)
		}
	}
}

// Ticks tell how long what was enqueued between them took.
func TestTick(t *testing.T) {
	a, _ := cudatest.Pair[*Device](t)
	x, _ := cudatest.Normal(kernels.F32, 256, 256, 1).On(a)
	ticks := []kernels.Tick{a.Tick()}
	for range 3 {
		a.Zero(x)
		ticks = append(ticks, a.Tick())
	}
	if err := a.Sync(); err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for i := range 3 {
		sum += ticks[i+1].Since(ticks[i])
	}
	if all := ticks[3].Since(ticks[0]); !(all > 0 && all < 10) || math.Abs(sum-all) > 1e-4 {
		t.Errorf("%g s in parts, %g at once", sum, all)
	}
}

// A GPU does not read the memory of a CPU device as that of a peer.
func TestReaches(t *testing.T) {
	a, _ := cudatest.Pair[*Device](t)
	other, err := cpu.New(kernels.Default(), cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := a.Reaches(other); err == nil || !strings.Contains(err.Error(), "cannot copy from the memory of cpu") {
		t.Errorf("error %v", err)
	}
}

// Pinned memory is zero, copies go there and back behind events, to another card too, and it is counted apart.
func TestPin(t *testing.T) {
	d, other := cudatest.Pair[*Device](t)
	before := d.Counts()
	host := kernels.NewHostArena(d).New(kernels.F32, 3, 96)
	if n := d.Counts(); n.Pinned-before.Pinned < host.Bytes() || n.Bytes != before.Bytes {
		t.Errorf("counts %+v, before %+v", n, before)
	}
	for i, b := range host.Raw() {
		if b != 0 {
			t.Fatalf("byte %d is %d", i, b)
		}
	}
	src, _ := cudatest.Normal(kernels.F32, 3, 96, 1).On(d)
	dst, _ := cudatest.Normal(kernels.F32, 3, 96, 2).On(d)
	out := d.CopyPeer([]kernels.Event{d.Record()}, kernels.PeerCopy{Dst: host, Src: src})
	d.WaitEvents(d.CopyPeer([]kernels.Event{out, d.Record()}, kernels.PeerCopy{Dst: dst, Src: host}))
	got, want := make([]byte, dst.Bytes()), make([]byte, src.Bytes())
	d.Read(got, dst)
	d.Read(want, src)
	if !bytes.Equal(got, want) || !bytes.Equal(host.Raw(), want) {
		t.Error("what came back differs")
	}
	pinned := other.Counts().Pinned
	dst, _ = cudatest.Normal(kernels.F32, 3, 96, 3).On(other)
	other.WaitEvents(other.CopyPeer([]kernels.Event{out, other.Record()}, kernels.PeerCopy{Dst: dst, Src: host}))
	other.Read(got, dst)
	if !bytes.Equal(got, want) || other.Counts().Pinned != pinned {
		t.Errorf("what came to another card differs: %t, and it has pinned %d bytes, before %d",
			!bytes.Equal(got, want), other.Counts().Pinned, pinned)
	}
}

// Where host memory is pinned a kernel moves what is written and read: of any length, to any address, in order.
func TestMove(t *testing.T) {
	d, _ := cudatest.Pair[*Device](t)
	kernels.NewHostArena(d).New(kernels.F32, 1, 1)
	for _, dtype := range []kernels.DType{kernels.BF16, kernels.F32} { // groups begin at multiples of 2 and of 4 bytes
		for _, cols := range []int{1, 7, 2053} {
			o := cudatest.Normal(dtype, 3, cols, 1)
			x, _ := o.On(d)
			want, part := bytes.Clone(o.Raw), x.RowRange(1, 2)
			for i := range part.Bytes() {
				want[part.Bytes()+i] = byte(7 * i)
			}
			d.Write(part, bytes.Repeat([]byte{255}, part.Bytes()))
			d.Write(part, want[part.Bytes():2*part.Bytes()])
			got := make([]byte, x.Bytes())
			if d.Read(got, x); !bytes.Equal(got, want) {
				t.Errorf("%d columns of %s differ from what was written", cols, dtype)
			}
		}
	}
	ids := make([]int32, 13)
	for i := range ids {
		ids[i] = int32(i) << 20
	}
	x, _ := cudatest.Ints(1, 13, ids).On(d)
	if got := d.ReadAsync(x)(); !slices.Equal(got, ids) {
		t.Errorf("%v come back as %v", ids, got)
	}
}

// How long a short write takes while a long copy from the host's memory is under way, which it must not wait for.
func BenchmarkMove(b *testing.B) {
	d := cudatest.Card.(*Device)
	const bytes = 1 << 30
	host, dst := kernels.NewHostArena(d).New(kernels.U8, 1, bytes), kernels.NewArena(d).New(kernels.U8, 1, bytes)
	x := kernels.NewArena(d).New(kernels.I32, 1, 256)
	raw, short := make([]byte, x.Bytes()), time.Duration(0)
	for range b.N {
		began := time.Now()
		long := d.CopyPeer(nil, kernels.PeerCopy{Dst: dst, Src: host})
		d.Write(x, raw)
		for e := d.Record(); !e.Happened(); {
		}
		short += time.Since(began)
		d.WaitEvents(long)
		if err := d.Sync(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(short.Seconds()*1e6/float64(b.N), "us/write")
}

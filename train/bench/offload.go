package bench

import (
	"fmt"
	"io"
	"time"

	"lockstep/kernels"
	"lockstep/parallel"
	"lockstep/train/trainer"
)

// benchUpdate times the optimizer's step of a model whose state, so many bytes, passes through the device from the
// host's memory, and then, on the same link, copies of as many bytes both ways at once that wait for nothing but each
// other's direction.
func benchUpdate(r *parallel.Rank, t *trainer.Trainer, w io.Writer, rounds, bytes int) error {
	parameters := 0
	for _, p := range t.Model.Trained() {
		parameters += p.Elements()
	}
	seconds := func(body func()) (float64, error) {
		body()
		if err := r.Dev.Sync(); err != nil {
			return 0, err
		}
		began := time.Now()
		for range rounds {
			body()
		}
		err := r.Dev.Sync()
		return time.Since(began).Seconds() / float64(rounds), err
	}
	step := 0
	update, err := seconds(func() {
		step++
		t.Update(step)
	})
	if err != nil {
		return err
	}
	l := newLink(r, bytes)
	copies, err := seconds(l.both)
	if err != nil {
		return err
	}
	moved, alone := float64(bytes)/update/1e9, float64(l.pieces*l.in.Bytes())/copies/1e9
	fmt.Fprintf(w, "\nupdate of states in the host's memory: %.3f s, %.2f G parameters/s, %.1f GB/s each way; copies "+
		"alone %.1f GB/s each way at once, ratio %.2f\n", update, float64(parameters)/update/1e9,
		moved, alone, moved/alone)
	return nil
}

// link is memory on both sides of a link, to copy so many bytes each way.
type link struct {
	rank              *parallel.Rank
	in, out, to, from kernels.Tensor // U8 [1, n]: the host's that are read and written, the device's likewise
	pieces            int
}

// linkPiece is the bytes of a copy.
const linkPiece = 64 << 20

func newLink(r *parallel.Rank, bytes int) link {
	host, device := kernels.NewHostArena(r.Dev), kernels.NewArena(r.Dev)
	n := min(bytes, linkPiece)
	of := func(mem *kernels.Arena) kernels.Tensor { return mem.New(kernels.U8, 1, n) }
	return link{r, of(host), of(host), of(device), of(device), (bytes + n - 1) / n}
}

// both copies in both directions.
func (l link) both() {
	var in, out []kernels.Event
	for range l.pieces {
		in = []kernels.Event{l.rank.Transfers.CopyPeer(in, kernels.PeerCopy{Dst: l.to, Src: l.in})}
		out = []kernels.Event{l.rank.Transfers.CopyPeer(out, kernels.PeerCopy{Dst: l.out, Src: l.from})}
	}
	l.rank.Transfers.WaitEvents(append(in, out...)...)
}

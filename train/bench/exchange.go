package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"lockstep/configs"
	"lockstep/kernels"
	"lockstep/kernels/devices"
	"lockstep/parallel"
)

// ExchangeOptions say what [Exchange] measures.
type ExchangeOptions struct {
	Device string // kind of the ranks' devices
	Ranks  int
	Share  bool  // they may share a GPU
	MiB    []int // sizes of what each rank receives from others
	Each   time.Duration
	Peer   string // Python interpreter with torch, whose NCCL exchanges as much; "": no peer
	Out    io.Writer
}

// exchanged is what was measured of one exchange, by us or by the peer.
type exchanged struct {
	Name string  `json:"name"`
	MiB  int     `json:"mib"` // that a rank receives from others
	Rate float64 `json:"bytes_per_second"`
}

// Exchange prints the speed of exchanges between ranks, for each rank, relative to a copy of as many bytes from another
// rank by all ranks at once, and to the peer; and what an exchange of one row costs the host.
func Exchange(ctx context.Context, o ExchangeOptions) error {
	if o.Ranks < 2 {
		return fmt.Errorf("--ranks %d: want at least 2", o.Ranks)
	}
	for _, n := range o.MiB {
		if n < 1 {
			return fmt.Errorf("--mib %d: want at least 1", n)
		}
	}
	ours, name, rows, err := o.measure(ctx)
	if err != nil {
		return err
	}
	var peers []exchanged
	if o.Peer != "" {
		var sizes []string
		for _, mib := range o.MiB {
			sizes = append(sizes, strconv.Itoa(mib))
		}
		peers, err = peer[exchanged](ctx, o.Peer, configs.TorchRanks, "exchange", o.Device, o.Ranks, o.Each.Seconds(),
			strings.Join(sizes, ","))
	}
	fmt.Fprintf(o.Out, "%d ranks, each %s\n", o.Ranks, name)
	return errors.Join(printExchanges(o.Out, ours, peers, rows), err)
}

// rowTimes are the seconds of an exchange of a row when one follows another, and of them those of the host, which
// enqueues exchanges and waits for none.
type rowTimes struct{ whole, host float64 }

// measure returns what each exchange reaches, the name of the devices, and what an exchange of a row takes.
func (o ExchangeOptions) measure(ctx context.Context) (list []exchanged, name string, rows rowTimes, err error) {
	w, name, closeAll, err := openWorld(o.Device, o.Ranks, o.Share)
	if err != nil {
		return nil, "", rows, err
	}
	defer closeAll()
	for _, mib := range o.MiB {
		for _, e := range exchanges {
			if err := ctx.Err(); err != nil {
				return nil, "", rows, err
			}
			seconds, err := timeExchange(w, o.Each, func(r *parallel.Rank) func() { return e.prepare(r, mib<<20) })
			if err != nil {
				return nil, "", rows, err
			}
			list = append(list, exchanged{e.name, mib, float64(mib<<20) / seconds})
		}
	}
	if rows.whole, err = timeExchange(w, o.Each, gatherRow); err == nil {
		rows.host, err = timeHost(w, gatherRow)
	}
	return list, name, rows, err
}

// printExchanges prints a line for each of our exchanges. Those of a size begin with the copy.
func printExchanges(w io.Writer, ours, peers []exchanged, row rowTimes) error {
	tab := tabwriter.NewWriter(w, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tab, "MiB\tGB/s a rank\tof a copy\tpeer\tof the peer\t  exchange")
	copied := 0.0
	for _, e := range ours {
		if e.Name == exchanges[0].name {
			copied = e.Rate
		}
		speed, ratio := "-", "-"
		for _, p := range peers {
			if p.Name == e.Name && p.MiB == e.MiB {
				speed, ratio = fmt.Sprintf("%.2f", p.Rate/1e9), fmt.Sprintf("%.2f", e.Rate/p.Rate)
			}
		}
		fmt.Fprintf(tab, "%d\t%.2f\t%.2f\t%s\t%s\t  %s\n", e.MiB, e.Rate/1e9, e.Rate/copied, speed, ratio, e.Name)
	}
	fmt.Fprintf(tab, "\t\t\t\t\t  a row from each rank: %.1f us, of the host %.1f\n", 1e6*row.whole, 1e6*row.host)
	return tab.Flush()
}

// openWorld opens ranks that are alike, with the name of their devices.
func openWorld(device string, ranks int, share bool) (w *parallel.World, name string, closeAll func(), err error) {
	devs, closeDevices, err := devices.OpenRanks(devices.Config{Kind: device, Definition: devices.Definition(device)},
		ranks, share)
	if err != nil {
		return nil, "", nil, err
	}
	if w, err = parallel.Open(devs, parallel.Mesh{Experts: 1}); err != nil {
		closeDevices()
		return nil, "", nil, err
	}
	return w, devs[0].Name(), func() { w.Close(); closeDevices() }, nil
}

// exchanges are what is timed; the first is the copy that the others are relative to. prepare makes the memory of a
// rank that receives so many bytes.
var exchanges = []struct {
	name    string
	prepare func(r *parallel.Rank, bytes int) func()
}{
	{"copy from another rank", copyFromNext},
	{"all-gather", gather},
	{"all-to-all", allToAll},
	{"send and receive, around a ring", ring},
}

// columns of the rows that are exchanged.
const exchangeColumns = 1024

// copyFromNext copies from the next rank, whose memory it learns by an exchange of its own.
func copyFromNext(r *parallel.Rank, bytes int) func() {
	src, dst := rowsOf(r, bytes), rowsOf(r, bytes)
	all := r.Data.Share(src)
	next := all[(r.ID+1)%r.Size]
	return func() {
		after := []kernels.Event{r.Transfers.Record()}
		r.Transfers.WaitEvents(r.Transfers.CopyPeer(after, kernels.PeerCopy{Dst: dst, Src: next}))
	}
}

// readFromNext is copyFromNext by an operation that reads rows where they are.
func readFromNext(r *parallel.Rank, bytes int) func() {
	src, dst := rowsOf(r, bytes), rowsOf(r, bytes)
	next := r.Data.Share(src)[(r.ID+1)%r.Size]
	return func() { r.Transfers.GatherPeers(dst, []kernels.Tensor{next}) }
}

func gather(r *parallel.Rank, bytes int) func() {
	return alternate(func() func() *parallel.Exchange {
		src := rowsOf(r, bytes/(r.Size-1))
		dst := r.Stack.New(kernels.F32, r.Size*src.Rows, src.Cols)
		return func() *parallel.Exchange { return r.Data.AllGather(parallel.Pair{Dst: dst, Src: src}) }
	})
}

// alternate makes exchanges of two sources, one after the other, as a model does: operations go on when rows are there,
// and a source is not written until the others have read it, which is waited for when the next exchange has begun.
func alternate(prepare func() (begin func() *parallel.Exchange)) func() {
	begin, other := prepare(), prepare()
	var before *parallel.Exchange
	return func() {
		x := begin()
		x.Unpin() // memory is released when all ranks have met behind their devices
		before.Wait()
		x.WaitReceived()
		begin, other, before = other, begin, x
	}
}

// gatherRow is gather of one row, of a single number.
func gatherRow(r *parallel.Rank) func() { return gather(r, kernels.F32.Size()*(r.Size-1)) }

// gatherCopied is gather of few bytes, but more than an operation brings.
func gatherCopied(r *parallel.Rank) func() {
	return gather(r, (r.Size-1)*(r.Transfers.FewBytes()+kernels.F32.Size()))
}

func allToAll(r *parallel.Rank, bytes int) func() {
	return alternate(func() func() *parallel.Exchange {
		block := rowsOf(r, bytes/(r.Size-1))
		src, dst := r.Stack.Zeros(kernels.F32, r.Size*block.Rows, block.Cols), r.Stack.New(kernels.F32,
			r.Size*block.Rows, block.Cols)
		rows := slices.Repeat([]int{block.Rows}, r.Size)
		return func() *parallel.Exchange { return r.Data.AllToAll(rows, rows, parallel.Pair{Dst: dst, Src: src}) }
	})
}

// ring sends to the next rank and receives from the one before.
func ring(r *parallel.Rank, bytes int) func() {
	src, dst := rowsOf(r, bytes), rowsOf(r, bytes)
	next, before := (r.ID+1)%r.Size, (r.ID+r.Size-1)%r.Size
	return func() {
		ready := r.Transfers.Record()
		sent := r.Data.Send(next, src, ready)
		r.Data.Receive(before, dst, ready).Wait()
		sent.Wait()
	}
}

// rowsOf is zeros of about so many bytes in rows.
func rowsOf(r *parallel.Rank, bytes int) kernels.Tensor {
	columns := min(exchangeColumns, max(1, bytes/4))
	return r.Stack.Zeros(kernels.F32, max(1, bytes/4/columns), columns)
}

// awaitAll waits until all ranks have come here.
func awaitAll(r *parallel.Rank) {
	if r.Data != nil {
		r.Data.Share(kernels.Tensor{})
	}
}

// timeExchange returns the seconds of one call of what prepare makes, run by all ranks at once for about `each`.
func timeExchange(w *parallel.World, each time.Duration, prepare func(r *parallel.Rank) func()) (float64, error) {
	for calls := 1; ; calls *= 2 {
		var took time.Duration
		err := w.Run(func(r *parallel.Rank) error {
			defer r.Stack.Release(r.Stack.Mark())
			call := prepare(r)
			call()
			awaitAll(r)
			began := time.Now()
			for range calls {
				call()
			}
			if err := r.Dev.Sync(); err != nil {
				return err
			}
			awaitAll(r)
			if r.ID == 0 {
				took = time.Since(began)
			}
			return nil
		})
		if err != nil || took >= each {
			return took.Seconds() / float64(calls), err
		}
	}
}

// The host's time is that of calls which wait for no device, the shortest of several rounds: a device takes some
// thousand operations ahead, no more.
const hostRounds, hostCalls = 16, 64

// timeHost returns the seconds until the first rank's host goes on after one call of what prepare makes.
func timeHost(w *parallel.World, prepare func(r *parallel.Rank) func()) (float64, error) {
	least := time.Duration(math.MaxInt64)
	err := w.Run(func(r *parallel.Rank) error {
		defer r.Stack.Release(r.Stack.Mark())
		call := prepare(r)
		for range hostRounds {
			if err := r.Dev.Sync(); err != nil {
				return err
			}
			awaitAll(r)
			began := time.Now()
			for range hostCalls {
				call()
			}
			if r.ID == 0 {
				least = min(least, time.Since(began))
			}
		}
		return r.Dev.Sync()
	})
	return least.Seconds() / hostCalls, err
}

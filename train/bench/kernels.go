package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"lockstep/configs"
	"lockstep/kernels/devices"
)

// kernelTime is a line of a table of kernels, ours or the peer's.
type kernelTime struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
	flops   float64 // of the tensor cores
	bytes   float64 // that have to be read and written
	note    string  // behind the name
	peer    string  // the peer's name of it; "": the same
	// of a peer's line: why it has no time
	Problem string `json:"problem"`
	// of a peer's line about bits: SHA-256 of rows of a product of codes
	Digests []string `json:"digests"`
}

// Kernels prints the speed of the GPU's kernels on the shapes of the project's tables: against a copy in the
// card's memory, and against torch's where there is a peer. Where that fails, what was measured is printed before the
// error.
func Kernels(ctx context.Context, o Options) error {
	if err := o.validate(); err != nil {
		return err
	}
	dev, err := devices.Open(devices.Config{Kind: devices.CUDA, Definition: devices.Definition(devices.CUDA)})
	if err != nil {
		return err
	}
	ours, err := timeKernels(dev, o.Each)
	if err != nil {
		return err
	}
	fmt.Fprintf(o.Out, "%s\n", dev.Name())
	var digests, theirs []string
	if o.Peer != "" {
		digests = codesDigests(dev)
	}
	if err := dev.Close(); err != nil {
		return err
	}
	var peers []kernelTime
	if o.Peer != "" {
		for _, script := range []string{configs.CUDAMatMul, configs.CUDAAttention, configs.CUDACodes} {
			lines, failed := peer[kernelTime](ctx, o.Peer, script)
			err = cmp.Or(err, failed)
			for _, l := range lines {
				if l.Digests != nil {
					theirs = l.Digests
				} else {
					peers = append(peers, l)
				}
			}
		}
	}
	err = errors.Join(printKernelTimes(o.Out, ours, peers), err)
	if theirs != nil {
		err = errors.Join(err, compareCodes(o.Out, digests, theirs))
	}
	return err
}

// compareCodes says how many bands of rows of a product of codes differ from torch's: none may.
func compareCodes(w io.Writer, ours, theirs []string) error {
	differ := max(len(ours), len(theirs)) - min(len(ours), len(theirs))
	for i := range min(len(ours), len(theirs)) {
		if ours[i] != theirs[i] {
			differ++
		}
	}
	fmt.Fprintf(w, "product of FP8 codes, fp32: %d of %d bands of rows differ from torch's\n", differ, len(ours))
	if differ > 0 {
		return fmt.Errorf("products of FP8 codes: %d of %d bands of rows differ from torch's", differ, len(ours))
	}
	return nil
}

// printKernelTimes prints lines, the first of which is the copy, next to the peer's, and those that the peer alone has
// or cannot run.
func printKernelTimes(w io.Writer, lines, peers []kernelTime) error {
	copied := lines[0].bytes / lines[0].Seconds
	tab := tabwriter.NewWriter(w, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tab, "us\tTFLOP/s\tGB/s\tof a copy\ttorch, us\tspeed to torch\t  kernel")
	used := map[string]bool{}
	for _, l := range lines {
		flops, rate, share, other, ratio := "-", "-", "-", "-", "-"
		if l.flops > 0 {
			flops = fmt.Sprintf("%.0f", l.flops/l.Seconds/1e12)
		}
		name := cmp.Or(l.peer, l.Name)
		at := slices.IndexFunc(peers, func(p kernelTime) bool { return p.Name == name && p.Problem == "" })
		if at >= 0 {
			t := peers[at].Seconds
			other, ratio, used[name] = fmt.Sprintf("%.1f", 1e6*t), fmt.Sprintf("%.2f", t/l.Seconds), true
		}
		if l.bytes > 0 {
			rate, share = fmt.Sprintf("%.0f", l.bytes/l.Seconds/1e9),
				fmt.Sprintf("%.0f%%", 100*l.bytes/l.Seconds/copied)
		}
		fmt.Fprintf(tab, "%.1f\t%s\t%s\t%s\t%s\t%s\t  %s%s\n", 1e6*l.Seconds, flops, rate, share, other, ratio,
			l.Name, l.note)
	}
	for _, p := range peers {
		switch {
		case p.Problem != "":
			fmt.Fprintf(tab, "-\t-\t-\t-\t-\t-\t  %s: not run: %s\n", p.Name, p.Problem)
		case !used[p.Name]:
			fmt.Fprintf(tab, "-\t-\t-\t-\t%.1f\t-\t  %s\n", 1e6*p.Seconds, p.Name)
		}
	}
	return tab.Flush()
}

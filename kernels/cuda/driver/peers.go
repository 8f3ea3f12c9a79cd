//go:build cuda

package driver

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unsafe"

	"gorgonia.org/cu"

	"lockstep/kernels"
)

// Peer is another card as one sees it.
type Peer struct {
	Card int
	Rate float64 // bytes a second of a copy from its memory
	Err  error   // why its memory is not reached; nil: it is
}

// peerBytes and peerCopies are what a rate is measured by: long enough for the start of a copy not to count.
const peerBytes, peerCopies = 64 << 20, 8

// Peers says of each card which others it reaches, and how fast it copies from them while nothing else copies.
func Peers() (of [][]Peer, err error) {
	n, err := cu.NumDevices()
	if err != nil || n < 2 {
		return nil, err
	}
	cards, memory := make([]*Context, n), make([][2]kernels.Tensor, n) // what a card copies from, and to
	defer func() {
		for _, c := range cards {
			if c != nil {
				err = errors.Join(err, c.Close())
			}
		}
	}()
	for i := range cards {
		c, err := Open(kernels.Default(), i, Sources{})
		if err != nil {
			return nil, fmt.Errorf("GPU %d: %w", i, err)
		}
		cards[i] = c
		for k := range memory[i] {
			raw := c.Alloc(peerBytes)
			memory[i][k] = kernels.Tensor{Data: unsafe.Pointer(unsafe.SliceData(raw)), DType: kernels.F32, Groups: 1,
				Rows: 1, Cols: peerBytes / 4, Stride: peerBytes / 4}
		}
	}
	of = make([][]Peer, n)
	for i, c := range cards {
		for k, other := range cards {
			if i == k {
				continue
			}
			p := Peer{Card: k}
			if p.Err = c.reach(other); p.Err == nil {
				if p.Rate, err = c.copyRate(memory[i][1], memory[k][0]); err != nil {
					return nil, err
				}
			}
			of[i] = append(of[i], p)
		}
	}
	return of, nil
}

// copyRate is bytes a second of copies from another card, after one that warms up.
func (c *Context) copyRate(dst, src kernels.Tensor) (float64, error) {
	c.CopyPeer(nil, kernels.PeerCopy{Dst: dst, Src: src})
	if err := c.Sync(); err != nil {
		return 0, err
	}
	began := time.Now()
	for range peerCopies {
		c.CopyPeer(nil, kernels.PeerCopy{Dst: dst, Src: src})
	}
	err := c.Sync()
	return peerCopies * peerBytes / time.Since(began).Seconds(), err
}

// Describe lists the other cards of one.
func Describe(peers []Peer) string {
	var list []string
	for _, p := range peers {
		if p.Err != nil {
			list = append(list, fmt.Sprintf("not cuda %d (%v)", p.Card, p.Err))
			continue
		}
		list = append(list, fmt.Sprintf("cuda %d at %.0f GB/s", p.Card, p.Rate/1e9))
	}
	return "copies from " + strings.Join(list, ", ")
}

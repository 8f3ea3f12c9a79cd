//go:build cuda

package driver

import (
	"errors"
	"testing"

	"gorgonia.org/cu"
)

// Each card names every other one with the rate of a copy.
func TestPeers(t *testing.T) {
	n, err := cu.NumDevices()
	if err != nil {
		t.Fatal(err)
	}
	of, err := Peers()
	if err != nil || n > 1 && len(of) != n || n < 2 && of != nil {
		t.Fatalf("%v of %d cards, error %v", of, n, err)
	}
	for i, peers := range of {
		seen := map[int]bool{i: true}
		for _, p := range peers {
			if seen[p.Card] = true; p.Err == nil && p.Rate < 1e6 {
				t.Errorf("card %d: %+v", i, p)
			}
		}
		if len(seen) != n || len(peers) != n-1 {
			t.Errorf("card %d of %d: %v", i, n, peers)
		}
	}
}

func TestDescribe(t *testing.T) {
	got := Describe([]Peer{{Card: 1, Rate: 385.4e9}, {Card: 2, Err: errors.New("no link")}})
	if want := "copies from cuda 1 at 385 GB/s, not cuda 2 (no link)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

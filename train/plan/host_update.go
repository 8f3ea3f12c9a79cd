package plan

import (
	"fmt"
	"time"

	"lockstep/configs"
	"lockstep/kernels"
	"lockstep/model"
)

// stateWidth is the bytes of optimizer state of a parameter in bf16, and stagedWidth what the host's cores take of its
// gradient and give back of its weight.
const stateWidth, stagedWidth = 12, 6

// hostStates is a rank's optimizer states in the host's memory.
type hostStates struct {
	units   []float64 // bytes that pass through the device, of each unit in the order of a forward
	updated float64   // bytes that the host's cores update
}

// statesOf is those of a rank's model.
func statesOf(m *model.Model) (h hostStates) {
	units, updated := m.HostStates()
	for _, n := range units {
		h.units = append(h.units, float64(n))
	}
	h.updated = float64(updated)
	return h
}

// passing is the bytes that pass through the device.
func (h hostStates) passing() (bytes float64) {
	for _, n := range h.units {
		bytes += n
	}
	return bytes
}

// awaited is how many bytes a forward waits for behind which nothing of it passes the link, with a ring of so many: of
// the first units, which are updated before any is computed, and of each other the part that is updated behind the last
// of so many passes of the unit before.
func (h hostStates) awaited(first, passes int, ring float64) (bytes float64) {
	before := 0.0
	for i, n := range h.units {
		if i < first {
			before += n
		} else {
			bytes += max(n/float64(passes)-ring, 0)
		}
	}
	return bytes + max(before-ring, 0)
}

// afterNorm is how long states take once the norm is known, of which the host's cores update some bytes: of the link,
//
//	(passing - ring)/both + min(passing, ring)/from_card + updated * 6/12 / 2 / both
//
// and of the cores, updated / 12 / (update / ranks), concurrently.
func (c clock) afterNorm(passing, updated, ring float64) (link, cores float64) {
	host, first := c.host(), min(passing, ring)
	link = (passing-first)/(host.Both*1e9) + first/(host.FromCard*1e9) +
		updated*stagedWidth/stateWidth/2/(host.Both*1e9)
	return link, updated / stateWidth / (host.Update * 1e9) * float64(c.ranks)
}

// chooseHostUpdate replaces offload.host_update = "auto" by the GiB with which the host's cores end when the link does.
func chooseHostUpdate(s *configs.Shape, machine configs.Machine, open func(t *configs.Shape) (*Plan, error)) error {
	if s.Offload.HostUpdate != "auto" {
		return nil
	}
	p, err := open(s)
	if err != nil {
		return err
	}
	all := statesOf(p.Model).passing()
	c, low, high := clock{machine, s.Parallel.Ranks}, 0.0, all
	for high-low > all/1000 {
		updated := (low + high) / 2
		if link, cores := c.afterNorm(all-updated, updated, s.Offload.Ring*gibibyte); cores < link {
			low = updated
		} else {
			high = updated
		}
	}
	s.Offload.HostUpdate = fmt.Sprintf("%.4g", low/gibibyte)
	return nil
}

// rateHost is a machine with so many cards of which links are those of the card's machine file, or else of an H200, and
// what its cores update is measured: on as many elements as caches do not hold.
func rateHost(dev kernels.Device, cards int) configs.Machine {
	m, known := configs.MachineOf(dev.Name(), cards)
	if !known {
		m = configs.Machine{Device: "cuda", Host: configs.MachineHost{ToCard: hostRate / 1e9, FromCard: 53, Both: 35}}
	}
	m.Host.Update = HostUpdateRate(dev.(kernels.HostMemory).Host(), 50*time.Millisecond)
	return m
}

// HostUpdateRate measures how many G parameters/s in bf16 the host's cores update, for so long: in 1.1 GiB, which no
// cache holds.
func HostUpdateRate(host kernels.Device, each time.Duration) float64 {
	const n = 64 << 20
	var of [4]kernels.Tensor
	for i := range of {
		of[i] = kernels.Wrap(make([]float32, n), 1, n)
	}
	w, factor := kernels.Wrap(make([]float32, n/2), 1, n/2), kernels.Wrap([]float32{1}, 1, 1)
	w.DType, w.Cols, w.Stride = kernels.BF16, n, n
	update := func() {
		host.AdamW(w, of[0], of[1], of[2], of[3], factor, kernels.AdamW{LR: 1e-9, Beta1: 0.9, Beta2: 0.95,
			Eps: 1e-8, Correction1: 0.1, Correction2: 0.05})
	}
	update() // takes the pages
	times, began := 0, time.Now()
	for ; times == 0 || time.Since(began) < each; times++ {
		update()
	}
	return n * float64(times) / time.Since(began).Seconds() / 1e9
}

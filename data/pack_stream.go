package data

import "fmt"

// Source is what a [Stream] draws from: the samples of a [Dataset], or the pairs of [Preferences]. The samples of a
// group stay together.
type Source interface {
	Len() int
	Digest() uint64
	// group is the samples at index i.
	group(i int) []Sample
}

func (d *Dataset) group(i int) []Sample { return d.samples[i : i+1] }

func rowsOf(samples []Sample) (n int) {
	for _, s := range samples {
		n += len(s.IDs)
	}
	return n
}

// Stream gives the packs of one optimizer step after the other. Each epoch has an order of its own, and a step may span
// two epochs. A stream resumes from its [StreamState] with the same packs.
type Stream struct {
	d        Source
	packRows int
	epochs   int // 0: no end
	state    StreamState
	packs    []Pack // of state.Epoch
}

// StreamState is a place in a stream, to be kept in checkpoints. Seed, PackRows and Data tell whether it fits a stream.
type StreamState struct {
	Seed     uint64 `json:"seed"`
	PackRows int    `json:"pack_rows"`
	Data     string `json:"data"`  // digest of the samples
	Epoch    int    `json:"epoch"` // of the next pack
	Pack     int    `json:"pack"`  // the next pack of that epoch
}

// NewStream starts at the first pack. Epochs is where the stream ends, 0: nowhere. Samples must fit into packs: the
// dataset was made with MaxRows of at most packRows, preferences with PairRows of at most that.
func NewStream(d Source, seed uint64, packRows, epochs int) *Stream {
	if d.Len() == 0 {
		panic("data: a stream of no samples")
	}
	for i := range d.Len() {
		if n := rowsOf(d.group(i)); n > packRows {
			panic(fmt.Sprintf("data: sample %d has %d rows, a pack %d", i, n, packRows))
		}
	}
	s := &Stream{d: d, packRows: packRows, epochs: epochs}
	s.state = StreamState{Seed: seed, PackRows: packRows, Data: fmt.Sprintf("%016x", d.Digest())}
	s.packs = s.epoch(0)
	return s
}

func (s *Stream) epoch(epoch int) []Pack {
	order := Order(s.state.Seed, epoch, s.d.Len())
	return FirstFit(order, func(i int) int { return rowsOf(s.d.group(i)) }, s.packRows)
}

// Next is the next n packs; fewer, in the end none, where the stream ends.
func (s *Stream) Next(n int) (list []Pack) {
	for len(list) < n && !s.ended(s.state) {
		if s.state.Pack == len(s.packs) {
			s.state.Epoch, s.state.Pack = s.state.Epoch+1, 0
			s.packs = s.epoch(s.state.Epoch)
			continue
		}
		take := min(n-len(list), len(s.packs)-s.state.Pack)
		list = append(list, s.packs[s.state.Pack:s.state.Pack+take]...)
		s.state.Pack += take
	}
	return list
}

// ended reports whether a state is the end of the stream.
func (s *Stream) ended(at StreamState) bool { return s.epochs > 0 && at.Epoch >= s.epochs }

// Samples are the samples of a pack, those of pairs one after the other, the chosen one first.
func (s *Stream) Samples(p Pack) (list []Sample) {
	for _, i := range p.Samples {
		list = append(list, s.d.group(i)...)
	}
	return list
}

// Steps is how many times [Stream.Next] of n packs gives some, from the start of a stream of epochs to its end; 0 for
// one without end.
func (s *Stream) Steps(n int) int {
	total := 0
	for e := range s.epochs {
		total += len(s.epoch(e))
	}
	return (total + n - 1) / n
}

// State is the stream's place, for [Stream.Resume].
func (s *Stream) State() StreamState { return s.state }

// Resume continues from the state of an equal stream. A state of another stream is an error.
func (s *Stream) Resume(to StreamState) error {
	have := s.state
	have.Epoch, have.Pack = to.Epoch, to.Pack
	if have != to {
		return fmt.Errorf("the run used other data: seed %d, packs of %d, samples %s, now seed %d, packs of "+
			"%d, samples %s; restore them or start a new run",
			to.Seed, to.PackRows, to.Data, have.Seed, have.PackRows, have.Data)
	}
	var list []Pack
	if to.Epoch >= 0 && !s.ended(to) {
		list = s.epoch(to.Epoch)
	}
	if to.Epoch < 0 || to.Pack < 0 || to.Pack > len(list) {
		return fmt.Errorf("the checkpoint is at pack %d of epoch %d, which has %d packs: it is damaged", to.Pack,
			to.Epoch, len(list))
	}
	s.state, s.packs = to, list
	return nil
}

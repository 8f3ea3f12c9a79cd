package data

import (
	"fmt"
	"slices"
)

// Instance is one countdown puzzle: reach Target from Numbers.
type Instance struct {
	Numbers []int // in the order shown
	Target  int
}

// heldOut is the share of all instances that belongs to the test split: one in heldOut.
const heldOut = 8

// Split says where the instance belongs, by a hash of its canonical form (sorted numbers and target). It depends on no
// setting and no seed, so what one run trained on never is what another is tested on.
func (in Instance) Split() Split {
	words := []uint64{uint64(in.Target)}
	for _, n := range slices.Sorted(slices.Values(in.Numbers)) {
		words = append(words, uint64(n))
	}
	if hashOf(words...)%heldOut == 0 {
		return Test
	}
	return Train
}

// maxDraws bounds the draws of one instance; [Countdown.Validate] rejects settings that come near it.
const maxDraws = 1 << 21

// Instance makes instance i of a split. The settings must be valid. Instances are drawn with replacement: a split that
// is larger than the space of puzzles repeats some.
func (c Countdown) Instance(split Split, i int) Instance {
	in, ok := c.find(split, i, maxDraws)
	if !ok {
		panic(fmt.Sprintf("data: no countdown instance %d of %s in %d draws of valid settings %+v", i, split, maxDraws,
			c))
	}
	return in
}

// find draws until a puzzle is solvable, in range and of the split.
func (c Countdown) find(split Split, i, draws int) (Instance, bool) {
	key := hashOf(c.Seed, hashString(string(split)), uint64(i))
	for d := range draws {
		g := counter{key: hashOf(key, uint64(d))}
		if in, ok := c.draw(&g); ok && in.Split() == split {
			return in, true
		}
	}
	return Instance{}, false
}

// draw makes numbers and joins all of them by random steps; the result is the target. A draw fails where a step is not
// allowed (see [combine]), where the target is out of range, and where it is one of the numbers.
func (c Countdown) draw(g *counter) (Instance, bool) {
	in := Instance{Numbers: make([]int, c.Numbers)}
	pool := make([]*expr, c.Numbers)
	for i := range pool {
		in.Numbers[i] = c.MinNumber + g.below(c.MaxNumber-c.MinNumber+1)
		pool[i] = &expr{value: in.Numbers[i]}
	}
	for len(pool) > 1 {
		i := g.below(len(pool))
		j := g.below(len(pool) - 1)
		if j >= i {
			j++
		}
		e := combine(pool[i], pool[j], c.Operators[g.below(len(c.Operators))])
		if e == nil {
			return Instance{}, false
		}
		pool[i] = e
		pool = slices.Delete(pool, j, j+1)
	}
	in.Target = pool[0].value
	return in, in.Target <= c.MaxTarget && !slices.Contains(in.Numbers, in.Target)
}

// hashString hashes a name by its bytes.
func hashString(s string) uint64 {
	words := make([]uint64, len(s))
	for i := range len(s) {
		words[i] = uint64(s[i])
	}
	return hashOf(words...)
}

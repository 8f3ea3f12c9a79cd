package schedule

// Even cuts blocks of some costs into so many parts, the most expensive of which is as cheap as can be. It returns how
// many blocks each has.
func Even(costs []int, parts int) []int {
	low, high := 0, 0
	for _, c := range costs {
		low, high = max(low, c), high+c
	}
	for low < high { // the least cost that no part exceeds
		if most := (low + high) / 2; len(fill(costs, parts, most)) <= parts {
			high = most
		} else {
			low = most + 1
		}
	}
	return fill(costs, parts, low)
}

// fill fills parts in order, each up to a cost, but leaves a block for each of those that are to follow.
func fill(costs []int, parts, most int) (blocks []int) {
	n, sum := 0, 0
	for i, c := range costs {
		left := parts - len(blocks) - 1 // parts behind this one
		if n > 0 && (sum+c > most || len(costs)-i <= left) {
			blocks, n, sum = append(blocks, n), 0, 0
		}
		n, sum = n+1, sum+c
	}
	return append(blocks, n)
}

// Cut gives ranks consecutive blocks of some costs, or chunks of them, so that a step of so many micro-batches by a
// schedule ends as soon as can be. It returns how many blocks each chunk has, first one of each rank. From parts of
// about equal costs it moves blocks on to other parts for as long as that helps.
func Cut(name string, ranks, chunks, ahead, micros int, blocks []Cost) []int {
	s := New(name, ranks, chunks, ahead, min(micros, mostMicros*ahead*ranks))
	var all []int
	for _, b := range blocks {
		all = append(all, s.Micros*(b.Forward+b.Backward+b.Weights)+b.Update)
	}
	cut := Even(all, ranks*chunks)
	for best, better := s.End(Stages(blocks, cut)), true; better; {
		better = false
		for from := range cut {
			for to := range cut {
				if from == to || cut[from] == 1 {
					continue
				}
				cut[from]--
				cut[to]++
				if end := s.End(Stages(blocks, cut)); end < best {
					best, better = end, true
				} else {
					cut[from]++
					cut[to]--
				}
			}
		}
	}
	return cut
}

// mostMicros of each rank tell how a schedule goes with any number.
const mostMicros = 4

// Stages are the costs of parts that have so many blocks each.
func Stages(blocks []Cost, cut []int) (stages Costs) {
	at := 0
	for _, n := range cut {
		var sum Cost
		for _, b := range blocks[at : at+n] {
			sum.Forward += b.Forward
			sum.Backward += b.Backward
			sum.Weights += b.Weights
			sum.Update += b.Update
		}
		stages, at = append(stages, sum), at+n
	}
	return stages
}

package data

// Pack is samples packed one after the other. None is cut, and each has positions and attention of its own.
type Pack struct {
	Samples []int // places in the data: of samples, or of pairs
	Rows    int
}

// Order is a permutation of [0, n) for an epoch: a Fisher-Yates shuffle by a counter-based generator.
func Order(seed uint64, epoch, n int) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	g := counter{key: hashOf(seed, uint64(epoch))}
	for i := n - 1; i > 0; i-- {
		j := g.below(i + 1)
		order[i], order[j] = order[j], order[i]
	}
	return order
}

// openPacks is how many of the latest packs a sample may still join.
const openPacks = 8

// FirstFit packs samples in an order: each goes into the first of the latest openPacks packs that has room for it, or
// starts a new one. No sample may have more rows than a pack.
func FirstFit(order []int, rows func(i int) int, packRows int) (list []Pack) {
	for _, i := range order {
		n := rows(i)
		at := max(0, len(list)-openPacks)
		for at < len(list) && list[at].Rows+n > packRows {
			at++
		}
		if at == len(list) {
			list = append(list, Pack{})
		}
		list[at].Samples = append(list[at].Samples, i)
		list[at].Rows += n
	}
	return list
}

// FinalPacks is how many of the packs of [FirstFit], from the first on, no later sample joins that has at least so many
// rows. rows are those of the packs.
func FinalPacks(rows []int, packRows, least int) (n int) {
	for n < len(rows) && (n < len(rows)-openPacks || rows[n]+least > packRows) {
		n++
	}
	return n
}

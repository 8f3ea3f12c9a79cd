package serve

import "unsafe"

// pages lends the pages of a cache. A page whose positions are all written may be held by several sequences that begin
// with the same tokens: a cached key or value is a function of the tokens up to its position, by the definition, so it
// is the same number whoever computed it. Pages that nobody holds keep what they have until they are taken for
// something else, longest free first.
type pages struct {
	rows    int // of a page
	holders []int32
	known   map[prefix]int32 // pages that can be shared, by what they hold
	names   []name           // by page
	chains  uint64           // given out
	// Free pages are a ring through a sentinel behind the last page.
	next, prev []int32
	free       int
	shared     int // holders beyond the first, of all pages
}

// prefix is the tokens of a page after those of another chain: pages are known by every token from position 0 on, never
// by a hash that two texts may have in common.
type prefix struct {
	before uint64
	tokens string
}

// name is what a page is known by; chain 0: it is not.
type name struct {
	prefix
	chain uint64 // stands for all tokens up to the end of the page
}

func newPages(n, rows int) *pages {
	p := &pages{rows: rows, holders: make([]int32, n), names: make([]name, n), next: make([]int32, n+1),
		prev: make([]int32, n+1), known: map[prefix]int32{}}
	p.next[n], p.prev[n] = int32(n), int32(n)
	for page := range int32(n) {
		p.insert(page, p.prev[n])
	}
	return p
}

// insert puts a page into the ring of free ones.
func (p *pages) insert(page, after int32) {
	before := p.next[after]
	p.next[after], p.prev[before] = page, page
	p.prev[page], p.next[page] = after, before
	p.free++
}

func (p *pages) remove(page int32) {
	p.next[p.prev[page]], p.prev[p.next[page]] = p.next[page], p.prev[page]
	p.free--
}

// take lends an empty page; there must be a free one.
func (p *pages) take() int32 {
	page := p.next[len(p.holders)]
	p.unname(page)
	p.hold(page)
	return page
}

// hold lends a page to one sequence more.
func (p *pages) hold(page int32) {
	if p.holders[page] == 0 {
		p.remove(page)
	} else {
		p.shared++
	}
	p.holders[page]++
}

// drop takes a page back from one sequence. Pages that nobody can ask for are taken first.
func (p *pages) drop(page int32) {
	p.holders[page]--
	switch sentinel := int32(len(p.holders)); {
	case p.holders[page] > 0:
		p.shared--
	case p.names[page].chain == 0:
		p.insert(page, sentinel)
	default:
		p.insert(page, p.prev[sentinel])
	}
}

func (p *pages) unname(page int32) {
	if n := &p.names[page]; n.chain != 0 {
		delete(p.known, n.prefix)
		*n = name{}
	}
}

// offer makes a full page known as the tokens that follow a chain, and returns the chain to its end. Where another page
// holds the same, that one stays known.
func (p *pages) offer(page int32, before uint64, tokens []int32) uint64 {
	key := p.key(before, tokens)
	if same, ok := p.known[key]; ok {
		return p.names[same].chain
	}
	p.chains++
	p.known[key], p.names[page] = page, name{key, p.chains}
	return p.chains
}

// find lists the pages that hold the first tokens of a sequence, at most limit of them, and the chain to their end. It
// lends none.
func (p *pages) find(tokens []int32, limit int) (found []int32, chain uint64) {
	for i := range limit {
		page, ok := p.known[p.key(chain, tokens[i*p.rows:(i+1)*p.rows])]
		if !ok {
			break
		}
		found, chain = append(found, page), p.names[page].chain
	}
	return found, chain
}

// idle counts those that nobody holds.
func (p *pages) idle(list []int32) (n int) {
	for _, page := range list {
		if p.holders[page] == 0 {
			n++
		}
	}
	return n
}

func (p *pages) key(before uint64, tokens []int32) prefix {
	return prefix{before, string(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(tokens))), 4*len(tokens)))}
}

// forget lets no page be shared that is not shared yet.
func (p *pages) forget() {
	clear(p.known)
	clear(p.names)
}

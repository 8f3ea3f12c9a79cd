package serve

import "unsafe"

// pagePool allocates the pages of a cache and finds those that sequences can share (prefix caching). A full page may
// have several holders, sequences with the same tokens up to its end: by the definition a cached key or value is a
// function of the tokens up to its position, so its bits are the same whoever computed it. Free pages keep their
// content until they are allocated again, the least recently used first.
type pagePool struct {
	rows       int // of a page
	holders    []int32
	registered map[pageKey]int32 // pages that can be shared, by their tokens
	entries    []pageEntry       // of each page
	lastID     uint64            // of the last registered page
	// Free pages are a doubly linked ring through a sentinel, index len(holders). Allocation takes the first.
	next, prev []int32
	free       int
	shared     int // sum over pages of the holders beyond the first
}

// pageKey identifies the content of a page: its tokens and the page before it, and so every token from position 0 on.
// No hash is involved, so two prefixes never collide.
type pageKey struct {
	parent uint64 // id of the page before, 0 at position 0
	tokens string
}

// pageEntry is a page's registration; id 0: it has none.
type pageEntry struct {
	pageKey
	id uint64 // stands for all tokens up to the end of the page
}

func newPagePool(n, rows int) *pagePool {
	p := &pagePool{rows: rows, holders: make([]int32, n), entries: make([]pageEntry, n), next: make([]int32, n+1),
		prev: make([]int32, n+1), registered: map[pageKey]int32{}}
	p.next[n], p.prev[n] = int32(n), int32(n)
	for page := range int32(n) {
		p.insertFree(page, p.prev[n])
	}
	return p
}

// insertFree adds a page to the ring of free pages.
func (p *pagePool) insertFree(page, after int32) {
	before := p.next[after]
	p.next[after], p.prev[before] = page, page
	p.prev[page], p.next[page] = after, before
	p.free++
}

func (p *pagePool) removeFree(page int32) {
	p.next[p.prev[page]], p.prev[p.next[page]] = p.next[page], p.prev[page]
	p.free--
}

// allocate takes a free page for new content. There must be one.
func (p *pagePool) allocate() int32 {
	page := p.next[len(p.holders)]
	p.unregister(page)
	p.retain(page)
	return page
}

// retain adds a holder to a page.
func (p *pagePool) retain(page int32) {
	if p.holders[page] == 0 {
		p.removeFree(page)
	} else {
		p.shared++
	}
	p.holders[page]++
}

// release removes a holder from a page. A free page that is not registered is allocated first.
func (p *pagePool) release(page int32) {
	p.holders[page]--
	switch sentinel := int32(len(p.holders)); {
	case p.holders[page] > 0:
		p.shared--
	case p.entries[page].id == 0:
		p.insertFree(page, sentinel)
	default:
		p.insertFree(page, p.prev[sentinel])
	}
}

func (p *pagePool) unregister(page int32) {
	if n := &p.entries[page]; n.id != 0 {
		delete(p.registered, n.pageKey)
		*n = pageEntry{}
	}
}

// register makes a full page available for sharing and returns its id. If another page has the same content, that one
// stays registered and its id is returned.
func (p *pagePool) register(page int32, parent uint64, tokens []int32) uint64 {
	key := p.key(parent, tokens)
	if same, ok := p.registered[key]; ok {
		return p.entries[same].id
	}
	p.lastID++
	p.registered[key], p.entries[page] = page, pageEntry{key, p.lastID}
	return p.lastID
}

// match lists the pages that hold the longest registered prefix of a sequence, at most limit pages, and the id of the
// last. It does not retain them.
func (p *pagePool) match(tokens []int32, limit int) (found []int32, id uint64) {
	for i := range limit {
		page, ok := p.registered[p.key(id, tokens[i*p.rows:(i+1)*p.rows])]
		if !ok {
			break
		}
		found, id = append(found, page), p.entries[page].id
	}
	return found, id
}

// countFree counts the pages without a holder.
func (p *pagePool) countFree(list []int32) (n int) {
	for _, page := range list {
		if p.holders[page] == 0 {
			n++
		}
	}
	return n
}

func (p *pagePool) key(parent uint64, tokens []int32) pageKey {
	return pageKey{parent, string(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(tokens))), 4*len(tokens)))}
}

// reset unregisters all pages. Pages that are shared stay shared.
func (p *pagePool) reset() {
	clear(p.registered)
	clear(p.entries)
}

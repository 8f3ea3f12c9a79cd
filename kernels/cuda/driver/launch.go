//go:build cuda

package driver

// Launch enqueues a kernel over grid blocks of threads, with so many bytes of shared memory in addition to what it
// declares. params are its parameters, laid out as in a C struct: generated launchers make them (package launchgen). A
// launch of a repeated sequence that is equal to the last one in its place allocates nothing: nothing here keeps the
// name or params.
func (c *Context) Launch(kernel string, grid [3]int, threads, sharedBytes int, params []byte) {
	f, ok := c.kernels[kernel]
	if !ok {
		panic("cuda: no kernel " + kernel)
	}
	early := c.early
	c.early = false
	if c.meta || grid[0] == 0 || grid[1] == 0 || grid[2] == 0 {
		return
	}
	c.params = append(c.params[:0], params...)
	c.enqueue(&call{f, grid, threads, sharedBytes, c.params, early})
}

// Early has the next launch begin while the one before it still runs, from when that allows it. Its kernel waits for
// that one's end (griddepcontrol.wait) before it reads what that writes, or ends itself; what came earlier has ended.
func (c *Context) Early() { c.early = true }

// enqueue launches a kernel, or hands it to the repeated sequence.
func (c *Context) enqueue(k *call) {
	if c.replay.current != nil {
		c.launched(k)
		if c.replay.add(k) {
			c.launchSegment()
		}
		return
	}
	c.Do(func() error { return c.launch(k) })
}

// launch launches a kernel now, also while a sequence is repeated.
func (c *Context) launch(k *call) error {
	c.launched(k)
	c.counts.Launches++
	if c.profile != nil {
		return c.profile.time(k.f.name, k.run)
	}
	return k.run()
}

// launched notes that a kernel has run, for tests.
func (c *Context) launched(k *call) {
	if c.Launched != nil {
		c.Launched[k.f.name] = true
	}
}

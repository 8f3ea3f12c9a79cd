package trainer

// CopyEachUnit copies updated weights of each unit by themselves, however few, until restore is called.
func CopyEachUnit() (restore func()) {
	before := leastCopied
	leastCopied = 0
	return func() { leastCopied = before }
}

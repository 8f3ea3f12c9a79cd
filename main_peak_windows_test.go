package main

import "os"

// peak is the most memory that a process that has ended had, in bytes; 0: unknown.
func peak(*os.ProcessState) int64 { return 0 }

// Package data holds what a run reads and writes besides arithmetic: chat templates, samples and preferences and their
// packing, tasks, and questions with the rewards of answers to them. Its folders are packages of their own: safetensors
// (checkpoints), tokenizer (byte-level BPE from tokenizer.json), ordered (JSON), jinja (templates) and atomicfile
// (files that are written whole or not at all).
//
// Everything here is a function of its inputs: no order of a map, of threads or of a clock reaches a result or a file.
// What programs and servers of others give as rewards is theirs to repeat. Files are checked in full before anything is
// used: what a reader does not know it refuses, in one line that names the file, the place and what to do.
//
// The package may import kernels and nothing else of the project.
package data

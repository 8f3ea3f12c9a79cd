// Package quant holds number formats that weights are stored in elsewhere, and what a weight becomes by being stored
// so. It works on host memory and imports nothing of the project: what devices with memory of their own compute is held
// against it.
package quant

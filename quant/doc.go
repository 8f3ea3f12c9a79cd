// Package quant is the number formats of weights in codes: how they lie in memory, what they stand for, and how numbers
// are put into them. It works on host memory, imports nothing of the project, and is the reference for devices that do
// the same.
package quant

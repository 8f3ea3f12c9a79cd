// Package quant rounds weights to quantised storage formats and decodes them. It works on host memory, imports nothing
// of the project, and is the reference for devices that do the same.
package quant

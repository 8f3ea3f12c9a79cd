// Package selftest compares a GPU with the CPU reference, bit for bit, before it is used: the units of the card when it
// is opened, and kernels that only some models need when such a model is built. It imports the packages of operations,
// kernels/cpu and kernels.
package selftest

//go:generate go run ../launchgen -I ../include

package setup

import (
	"testing"

	"lockstep/configs"
	"lockstep/kernels/devices"
)

// A shape that says nothing of the arithmetic asks for the device's own, as commands without a shape do.
func TestDeviceDefinition(t *testing.T) {
	for _, kind := range []string{devices.CPU, devices.CUDA} {
		s := configs.Default()
		s.Device.Kind = kind
		s.ResolveAuto()
		if got, want := Device(s).Definition, devices.Definition(kind); got != want {
			t.Errorf("%s: the shape asks for %+v, the device is for %+v", kind, got, want)
		}
	}
}

package kernels

import "testing"

// Checkpoints and recorded runs name the definition by its digest: refactoring must not change it.
func TestDefaultDigest(t *testing.T) {
	const want = "80dc9f7ba3fe"
	if got := Default().Digest()[:len(want)]; got != want {
		t.Errorf("the default definition is %s, was %s", got, want)
	}
}

func TestDefinitionSettings(t *testing.T) {
	digests := map[string]string{Default().Digest(): "the default"}
	for _, c := range []struct{ key, value string }{
		{"combine", "bf16"}, {"router", "bf16"}, {"norm", "bf16"}, {"key_split", "256"}, {"key_split", "64"},
		{"dot", "tc16"}, {"exp2", "ex2h"}, {"acts", "mxfp8"}, {"cache", "mxfp8"},
		{"acts", "fp8x128"},
	} {
		d := Default()
		if c.value == "fp8x128" {
			d.Dot = DotTC16
		}
		if err := d.Set(c.key, c.value); err != nil {
			t.Error(err)
		}
		if other, known := digests[d.Digest()]; known {
			t.Errorf("%s=%s has the digest of %s", c.key, c.value, other)
		}
		digests[d.Digest()] = c.key + "=" + c.value
	}
	for _, c := range []struct{ key, value string }{
		{"combine", "fp8"}, {"router", "fp16"}, {"norm", "fp32"}, {"key_split", "0"}, {"key_split", "100"},
		{"key_split", "-64"}, {"key_split", "many"},
		{"key_split", "33554432"}, {"dot", "bf16"}, {"exp2", "fast"}, {"acts", "fp8"}, {"cache", "int4"},
		{"acts", "fp8x128"}, {"cache", "fp8x128"},
		{"key_block", "32"}, {"", ""},
	} {
		if d := Default(); d.Set(c.key, c.value) == nil {
			t.Errorf("%s=%s is accepted", c.key, c.value)
		}
	}
	d := Default()
	d.Combine, d.Router, d.Norm = ToBF16, ToBF16, ToBF16
	for _, key := range []string{"combine", "router", "norm"} {
		if err := d.Set(key, ""); err != nil {
			t.Error(err)
		}
	}
	if d != Default() {
		t.Errorf("%+v is not the default", d)
	}
}

// The forms of latent attention round in different places: runs by one must not pass for runs by another.
func TestDigestOfLatentForms(t *testing.T) {
	known := map[string]LatentForm{}
	for _, form := range []LatentForm{LatentAuto, LatentExpanded, LatentAbsorbed} {
		d := Default()
		d.Latent = form
		if other, ok := known[d.Digest()]; ok {
			t.Errorf("latent %q has the digest of %q", form, other)
		}
		known[d.Digest()] = form
	}
}

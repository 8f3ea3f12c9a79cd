package serve

import (
	"strings"
	"testing"
)

func TestOptionsValidate(t *testing.T) {
	good := Options{Slots: 8, PageRows: 16, PrefillRows: 24}
	if err := good.validate(); err != nil {
		t.Error(err)
	}
	for want, set := range map[string]func(o *Options, n int){
		"slots is ":        func(o *Options, n int) { o.Slots = n },
		"page_rows is ":    func(o *Options, n int) { o.PageRows = n },
		"prefill_rows is ": func(o *Options, n int) { o.PrefillRows = n },
		"pages is ":        func(o *Options, n int) { o.Pages = n },
	} {
		for _, n := range []int{-1, 1_000_000_000, 1 << 62} {
			o := good
			set(&o, n)
			if err := o.validate(); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s%d: %v", want, n, err)
			}
		}
	}
}

package model

import "testing"

// As few blocks leave as have to, and they lie evenly between those that stay.
func TestLeaving(t *testing.T) {
	equal := []int{10, 10, 10, 10, 10, 10}
	for _, c := range []struct {
		bytes []int
		stay  int
		want  string
	}{{equal, 60, "all stay"}, {equal, 1 << 40, "all stay"}, {equal, 59, "-----x"}, {equal, 50, "-----x"},
		{equal, 40, "--x--x"}, {equal, 39, "-x-x-x"}, {equal, 9, "xxxxxx"}, {equal, 0, "xxxxxx"},
		{[]int{1, 100, 100}, 1, "-xx"}, {[]int{1, 1, 100}, 2, "--x"}} {
		got := ""
		for _, gone := range leaving(c.bytes, c.stay) {
			if gone {
				got += "x"
			} else {
				got += "-"
			}
		}
		if got == "" {
			got = "all stay"
		}
		if got != c.want {
			t.Errorf("%v with %d bytes that stay: %s, want %s", c.bytes, c.stay, got, c.want)
		}
	}
}

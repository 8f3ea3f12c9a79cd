package bench

import (
	"bytes"
	"context"
	"regexp"
	"strings"
	"testing"
	"time"
)

// Every exchange has a line for each size, with its ratio to the copy, and an exchange of a row its cost.
func TestBenchExchange(t *testing.T) {
	var out bytes.Buffer
	o := ExchangeOptions{Device: "cpu", Ranks: 3, MiB: []int{1, 2}, Each: time.Millisecond, Out: &out}
	err := Exchange(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`(?m)^ +1 +\d+\.\d\d +1\.00 +- +- +copy from another rank$`,
		`(?m)^ +2 +\d+\.\d\d +\d+\.\d\d +- +- +all-to-all$`,
		`(?m)^ +2 +\d+\.\d\d +\d+\.\d\d +- +- +send and receive, around a ring$`,
		`(?m)a row from each rank: \d+\.\d us, of the host \d+\.\d$`,
	} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("%s is not in\n%s", want, out.String())
		}
	}
}

func TestBenchExchangeBad(t *testing.T) {
	for want, o := range map[string]ExchangeOptions{
		"--ranks 1": {Ranks: 1, MiB: []int{1}}, "--mib 0": {Ranks: 2, MiB: []int{4, 0}},
	} {
		var out bytes.Buffer
		o.Out = &out
		err := Exchange(context.Background(), o)
		if err == nil || !strings.Contains(err.Error(), want) || out.Len() > 0 {
			t.Errorf("want %q: %v, and %q is printed", want, err, out.String())
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	o := ExchangeOptions{Device: "cpu", Ranks: 2, MiB: []int{1}, Out: new(bytes.Buffer)}
	if err := Exchange(ctx, o); err == nil || !strings.Contains(err.Error(), "cancel") {
		t.Errorf("an interrupted benchmark: %v", err)
	}
}

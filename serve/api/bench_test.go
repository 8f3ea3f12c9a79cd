package api

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"lockstep/kernels"
	"lockstep/parallel"
	"lockstep/serve"
)

// BenchmarkServer measures the cost of HTTP in ns/token: 64 clients request 64 tokens each from a model so small that
// little else costs anything. The engine alone runs the same requests for comparison.
func BenchmarkServer(b *testing.B) {
	const clients, tokens = 64, 64
	o := serve.Options{Slots: clients, PageRows: 16, PrefillRows: 256}
	perToken := func(b *testing.B) {
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*clients*tokens), "ns/token")
	}
	b.Run("engine", func(b *testing.B) {
		err := onRank(func(r *parallel.Rank, m *serve.ServedModel) error {
			e, err := serve.NewEngine(r, m.Model, kernels.NewArena(r.Dev), o)
			if err != nil {
				return err
			}
			reqs := make([]serve.Request, clients)
			for i := range reqs {
				reqs[i] = serve.Request{ID: uint64(i), Prompt: m.Tokenizer.Encode("hello"), MaxTokens: tokens,
					Temperature: 1, TopP: 1}
			}
			for b.Loop() {
				if _, err := e.Run(context.Background(), reqs); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
		perToken(b)
	})
	for _, stream := range []bool{false, true} {
		b.Run(fmt.Sprintf("stream=%t", stream), func(b *testing.B) {
			_, url, _ := running(b, Options{Name: "tiny", Limits: DefaultLimits(), Engine: o})
			body := fmt.Sprintf(`{"prompt": "hello", "max_tokens": %d, "ignore_eos": true, "logprobs": 0, `+
				`"return_token_ids": true, "stream": %t}`, tokens, stream)
			for b.Loop() {
				var all sync.WaitGroup
				for range clients {
					all.Go(func() {
						res, err := http.Post(url+"/v1/completions", "application/json", strings.NewReader(body))
						if err != nil {
							b.Error(err)
							return
						}
						defer res.Body.Close()
						if n, err := io.Copy(io.Discard, res.Body); err != nil || n < tokens {
							b.Errorf("%d bytes, %v", n, err)
						}
					})
				}
				all.Wait()
			}
			perToken(b)
		})
	}
}

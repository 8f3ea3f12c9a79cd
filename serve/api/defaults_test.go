package api

import (
	"reflect"
	"strings"
	"testing"

	"lockstep/data"
	"lockstep/data/ordered"
	"lockstep/model"
	"lockstep/serve"
)

// What a request does not say is that of generation_config.json, where it says it, and else OpenAI's.
func TestSamplingDefaults(t *testing.T) {
	lang, err := data.NewLanguage("bytes")
	if err != nil {
		t.Fatal(err)
	}
	temperature, topP, topK, most := 0.25, 0.5, 7, 33
	given := data.Generation{Temperature: &temperature, TopP: &topP, TopK: &topK, MaxTokens: &most}
	const said = `, "temperature": 0.75, "top_p": 1, "top_k": 0, "max_tokens": 5`
	for _, k := range []struct {
		sampling data.Generation
		request  string
		want     serve.Request
		rest     bool // of a chat: as many tokens as there is room for
	}{
		{data.Generation{}, "", serve.Request{Temperature: 1, TopP: 1, MaxTokens: plainTokens}, true},
		{given, "", serve.Request{Temperature: 0.25, TopP: 0.5, TopK: 7, MaxTokens: 33}, false},
		{given, said, serve.Request{Temperature: 0.75, TopP: 1, MaxTokens: 5}, false},
		{data.Generation{}, said, serve.Request{Temperature: 0.75, TopP: 1, MaxTokens: 5}, false},
	} {
		m := &model.Model{Vocab: 320, MaxLength: 256, Sampling: k.sampling}
		s := &Server{o: small(), served: &serve.Served{Model: m, Language: lang}}
		for name, read := range map[string]func(*form) (*ask, error){
			`"prompt": "a"`: s.completion, `"messages": [{"role": "user", "content": "a"}]`: s.conversation,
		} {
			text := "{" + name + k.request + "}"
			d, err := ordered.Decode([]byte(text))
			if err != nil {
				t.Fatal(err)
			}
			a, err := read(&form{d: d.(*ordered.Dict), known: map[string]bool{}})
			if err != nil {
				t.Fatal(err)
			}
			want, rest := k.want, k.rest && strings.HasPrefix(name, `"m`)
			if rest {
				want.MaxTokens = 0
			}
			q := a.request
			got := serve.Request{Temperature: q.Temperature, TopP: q.TopP, TopK: q.TopK, MaxTokens: q.MaxTokens}
			if !reflect.DeepEqual(got, want) || a.rest != rest {
				t.Errorf("%s asks for %+v, rest %t, want %+v", text, got, a.rest, want)
			}
		}
	}
}

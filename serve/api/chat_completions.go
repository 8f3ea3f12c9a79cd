package api

import (
	"math"
	"net/http"

	"lockstep/data"
	"lockstep/data/ordered"
	"lockstep/serve"
)

// chatCompletions answers POST /v1/chat/completions.
func (s *Server) chatCompletions(w http.ResponseWriter, r *http.Request) {
	s.generate(w, r, s.parseChatCompletion, chatFormat{s.served.Tokenizer}, s.newHeader("chatcmpl", "chat.completion"))
}

func (s *Server) parseChatCompletion(f *fields) (*samplingRequest, error) {
	req := s.samplingFields(f)
	prompt, err := s.encode(f, "messages", "tools", "chat_template_kwargs")
	if err != nil {
		f.reject("messages", "%v", err)
	}
	req.prompts = [][]int32{prompt}
	most := f.integer("max_tokens", int64(s.samplingDefaults().MaxTokens), 1, math.MaxInt32)
	most = f.integer("max_completion_tokens", most, 1, math.MaxInt32)
	req.sample.MaxTokens, req.fill = int(most), most == 0
	req.logprobs = f.boolean("logprobs")
	req.sample.TopLogProbs = int(f.integer("top_logprobs", 0, 0, maxTopLogProbs))
	if req.sample.TopLogProbs > 0 && !req.logprobs {
		f.reject("top_logprobs", "set logprobs too")
	}
	text := ordered.NewDict()
	text.Set("type", "text")
	f.allow("response_format", "structured output is not supported", text)
	req.answer = s.answerOptions(f, prompt)
	return req, s.validate(f, req)
}

// chatFormat makes the responses of /v1/chat/completions.
type chatFormat struct{ tokenizer *data.ChatTokenizer }

type chatResponse struct {
	responseHeader
	Choices   []chatChoice `json:"choices"`
	Usage     *usage       `json:"usage,omitempty"`
	PromptIDs []int32      `json:"prompt_token_ids,omitempty"`
	// as vLLM has it: of the first choice, and so of each
	Prompt []promptLogProbs `json:"prompt_logprobs,omitempty"`
}

type chatChoice struct {
	Index    int                 `json:"index"`
	Message  *chatMessage        `json:"message,omitempty"`
	Delta    *chatDelta          `json:"delta,omitempty"` // of a stream
	LogProbs *chatLogProbs       `json:"logprobs"`
	Finish   *serve.FinishReason `json:"finish_reason"`
	IDs      []int32             `json:"token_ids,omitempty"`
}

type chatLogProbs struct {
	Content []chatTokenLogProbs `json:"content"`
}

type chatTokenLogProbs struct {
	chatTokenLogProb
	Top []chatTokenLogProb `json:"top_logprobs"`
}

type chatTokenLogProb struct {
	Token   string  `json:"token"`
	LogProb float32 `json:"logprob"`
	Bytes   []int   `json:"bytes"`
}

func (v chatFormat) tokenLogProb(id int32, logprob float32) chatTokenLogProb {
	t := chatTokenLogProb{Token: tokenText(v.tokenizer, id), LogProb: finite(logprob), Bytes: []int{}}
	for _, b := range []byte(v.tokenizer.Bytes(id)) {
		t.Bytes = append(t.Bytes, int(b))
	}
	return t
}

func (v chatFormat) choice(req *samplingRequest, c *choice, d delta) chatChoice {
	out := chatChoice{Index: c.index, Finish: c.finishReason(), IDs: req.ids(d)}
	if !req.logprobs {
		return out
	}
	out.LogProbs = &chatLogProbs{Content: []chatTokenLogProbs{}}
	for _, t := range d.tokens {
		entry := chatTokenLogProbs{v.tokenLogProb(t.id, t.logprob), []chatTokenLogProb{}}
		for _, x := range t.top {
			entry.Top = append(entry.Top, v.tokenLogProb(x.ID, x.LogProb))
		}
		out.LogProbs.Content = append(out.LogProbs.Content, entry)
	}
	return out
}

func (v chatFormat) response(h responseHeader, req *samplingRequest, choices []*choice, deltas []delta) any {
	res := chatResponse{responseHeader: h, Usage: newUsage(req, choices)}
	if req.tokenIDs {
		res.PromptIDs = req.prompts[0]
	}
	res.Prompt = req.promptLogProbs(v.tokenizer, choices[0])
	for i, c := range choices {
		out := v.choice(req, c, deltas[i])
		out.Message = newChatMessage(h, c, deltas[i].answer)
		res.Choices = append(res.Choices, out)
	}
	return res
}

// chunkHeader names the chunks of a stream.
func chunkHeader(h responseHeader) responseHeader {
	h.Object = "chat.completion.chunk"
	return h
}

func (v chatFormat) firstChunk(h responseHeader, c *choice) any {
	empty := ""
	first := chatChoice{Index: c.index, Delta: &chatDelta{Role: "assistant", Content: &empty}}
	return chatResponse{responseHeader: chunkHeader(h), Choices: []chatChoice{first}}
}

// chunks are one for what is said and the names of calls, and one for their arguments. The first has the tokens, the
// last the finish_reason.
func (v chatFormat) chunks(h responseHeader, req *samplingRequest, c *choice, d delta, u *usage) (list []any) {
	deltas := newChatDeltas(h, c, d.answer)
	for i := range deltas {
		out := chatChoice{Index: c.index}
		if i == 0 {
			out = v.choice(req, c, d)
		}
		if out.Finish = nil; i == len(deltas)-1 {
			out.Finish = c.finishReason()
		}
		out.Delta = &deltas[i]
		list = append(list, chatResponse{responseHeader: chunkHeader(h), Choices: []chatChoice{out}, Usage: u})
	}
	return list
}

func (v chatFormat) usageChunk(h responseHeader, u *usage) any {
	return chatResponse{responseHeader: chunkHeader(h), Choices: []chatChoice{}, Usage: u}
}

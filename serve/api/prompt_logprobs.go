package api

import (
	"strconv"

	"lockstep/data"
)

// promptLogProbs are those at a token of a prompt, by token id, as vLLM lists them: the token's own and the most
// likely. nil: of the first token, which has none.
type promptLogProbs map[string]promptLogProb

type promptLogProb struct {
	LogProb float32 `json:"logprob"`
	Rank    int     `json:"rank"`
	Text    string  `json:"decoded_token"`
}

// promptLogProbs are those of a choice's prompt, if the request asks for them.
func (req *samplingRequest) promptLogProbs(tok *data.ChatTokenizer, c *choice) []promptLogProbs {
	if req.listed == nil {
		return nil
	}
	all := make([]promptLogProbs, 1, 1+len(c.scores))
	for _, of := range c.scores {
		list := promptLogProbs{}
		add := func(id int32, logprob float32, rank int) {
			list[strconv.Itoa(int(id))] = promptLogProb{finite(logprob), rank, tokenText(tok, id)}
		}
		for k, x := range of.Top[:min(*req.listed, len(of.Top))] {
			add(x.ID, x.LogProb, k+1)
		}
		add(of.ID, of.LogProb, of.Rank)
		all = append(all, list)
	}
	return all
}

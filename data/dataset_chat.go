package data

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"lockstep/data/jinja"
	"lockstep/data/ordered"
)

// segment is a piece of a rendered conversation, with or without labels. Segments are tokenised separately, so that an
// answer follows exactly the prompt tokens of serving.
type segment struct {
	text  string
	learn bool
}

// rendered is a conversation, or a part of it, as segments.
type rendered struct {
	segments []segment
	last     int // place in the conversation of the last answer that is learned
	partial  int // so many of the learned segments may be parts of an answer that goes on
}

// chat adds the samples of a conversation. The assistant's messages from index from on have labels, and so has the
// token that ends each.
func (b *builder) chat(c Chat, from int) error {
	list, err := b.conversed(c, from)
	if err != nil {
		return err
	}
	if len(list) > 1 {
		b.d.Split++
	}
	if b.d.chat < 0 {
		b.d.chat = len(b.d.samples)
	}
	for _, q := range list {
		if err := b.add(q); err != nil {
			return err
		}
	}
	return nil
}

// conversed is a conversation as token sequences, as few as the template allows.
func (o Options) conversed(c Chat, from int) ([]sequence, error) {
	if o.Codec == nil {
		return nil, errNoTokenizer
	}
	if o.Template == nil {
		return nil, fmt.Errorf("messages need a chat template, add chat_template.jinja to the model's folder")
	}
	parts, err := o.segments(c, from)
	if err != nil {
		return nil, err
	}
	list := make([]sequence, len(parts))
	for i, part := range parts {
		if list[i], err = o.tokenised(part, c); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// segments cuts a conversation at the template's generation blocks if it has any, else by rendering its prefixes.
func (o Options) segments(c Chat, from int) ([]rendered, error) {
	turns := slices.DeleteFunc(assistantTurns(c.Messages, from), func(i int) bool { return muted(c.Messages[i]) })
	if len(turns) == 0 {
		return nil, errors.New("no assistant message to learn from, add one, of another weight than 0")
	}
	whole, err := o.Template.render(context.Background(), c, false, o.Now)
	if err != nil {
		return nil, err
	}
	if len(whole.Generated) > 0 {
		return o.marked(c, from, turns, whole)
	}
	return o.byPrefixes(c, turns)
}

func assistantTurns(messages []any, from int) (turns []int) {
	for i := from; i < len(messages); i++ {
		if role, _ := messages[i].(*ordered.Dict).Get("role"); role == "assistant" {
			turns = append(turns, i)
		}
	}
	return turns
}

// marked cuts at generation blocks. Those of the first messages, the prompt, get no labels.
func (o Options) marked(c Chat, from int, turns []int, whole jinja.Result) ([]rendered, error) {
	prompt := ""
	if from > 0 {
		var err error
		before := Chat{c.Messages[:from], c.Tools, c.Kwargs}
		if prompt, err = o.Template.Render(context.Background(), before, false, o.Now); err != nil {
			return nil, err
		}
		if !strings.HasPrefix(whole.Text, prompt) {
			return nil, errors.New("the chat template renders the prompt's messages differently when a completion " +
				"follows, give one list of messages instead")
		}
	}
	part := rendered{last: turns[len(turns)-1], partial: -len(turns)}
	all := assistantTurns(c.Messages, 0)
	silent := slices.ContainsFunc(all, func(i int) bool { return i >= from && muted(c.Messages[i]) })
	if silent && len(all) != len(whole.Generated) {
		return nil, fmt.Errorf("the chat template marks %d pieces of %d assistant messages, so a weight of 0 cannot "+
			"be applied",
			len(whole.Generated), len(all))
	}
	at := 0
	for k, g := range whole.Generated {
		if g[0] >= len(prompt) && !(silent && muted(c.Messages[all[k]])) {
			part.segments = append(part.segments, segment{whole.Text[at:g[0]], false}, segment{whole.Text[g[0]:g[1]],
				true})
			part.partial++
			at = g[1]
		}
	}
	part.segments = append(part.segments, segment{whole.Text[at:], false})
	return []rendered{part}, nil
}

// byPrefixes cuts at the assistant's turns. Turn i is what render(messages[:i+1]) adds to render(messages[:i]) with the
// generation prompt. If each of these texts is a prefix of the next, they make one sample. A template that renders
// earlier turns differently (Qwen3 drops their thinking) gives a sample for each turn, with the prompt of serving and
// labels for that turn alone.
func (o Options) byPrefixes(c Chat, turns []int) ([]rendered, error) {
	samples := make([]rendered, len(turns))
	ends := make([]string, len(turns))
	for k, i := range turns {
		prompt, err := o.Template.Render(context.Background(), Chat{c.Messages[:i], c.Tools, c.Kwargs}, true, o.Now)
		if err != nil {
			return nil, fmt.Errorf("before message %d: %w", i, err)
		}
		ends[k], err = o.Template.Render(context.Background(), Chat{c.Messages[:i+1], c.Tools, c.Kwargs}, false, o.Now)
		if err != nil {
			return nil, fmt.Errorf("up to message %d: %w", i, err)
		}
		reply, ok := strings.CutPrefix(ends[k], prompt)
		if !ok {
			return nil, fmt.Errorf("the chat template does not continue its own generation prompt at message %d, "+
				"mark the targets with {%% generation %%}", i)
		}
		samples[k] = rendered{segments: []segment{{prompt, false}, {reply, true}}, last: i}
	}
	if !continues(samples, ends) {
		return samples, nil
	}
	one := samples[0]
	for k := 1; k < len(samples); k++ {
		before := samples[k].segments[0].text[len(ends[k-1]):]
		one.segments = append(one.segments, segment{before, false}, samples[k].segments[1])
		one.last = samples[k].last
	}
	return []rendered{one}, nil
}

// continues says whether every turn's prompt starts with the whole of the turn before.
func continues(samples []rendered, ends []string) bool {
	for k := 1; k < len(samples); k++ {
		if !strings.HasPrefix(samples[k].segments[0].text, ends[k-1]) {
			return false
		}
	}
	return true
}

package toolcalls

// Format is how a family writes tool calls.
type Format int

// Formats.
const (
	None     Format = iota
	Harmony         // gpt-oss
	DeepSeek        // V3 and V3.1
	Kimi            // K2
	MiniMax         // M2
	GLM             // 4.5 to 5
	QwenXML         // Qwen3-Coder, Qwen3.5, Nemotron 3
	Hermes          // Qwen3 and many others
	Llama           // 3
)

// signs are what a family's chat template has and those above it have not, in the order in which they are looked for.
var signs = []struct {
	text   string
	format Format
}{
	{"<|channel|>", Harmony}, {"<｜tool▁calls▁begin｜>", DeepSeek}, {"<|tool_calls_section_begin|>", Kimi},
	{"<minimax:tool_call>", MiniMax}, {"<arg_key>", GLM}, {"<function=", QwenXML}, {"<tool_call>", Hermes},
	{"<|python_tag|>", Llama}, {"<|start_header_id|>ipython", Llama},
}

// Detect is the format of a chat template; mentions tells whether the template has a text.
func Detect(mentions func(string) bool) Format {
	for _, s := range signs {
		if mentions(s.text) {
			return s.format
		}
	}
	return None
}

// String is the format's name in messages.
func (f Format) String() string {
	return [...]string{"none", "harmony", "DeepSeek", "Kimi K2", "MiniMax M2", "GLM", "Qwen XML", "Hermes JSON",
		"Llama 3 JSON"}[f]
}

// grammar is how a block of calls is written.
type grammar struct {
	open  []string // what begins a block; none: a block may stand at the very start alone
	ends  []string // a block is whole behind one of these, mostly
	match func(*cursor, Tools) ([]Call, bool)
}

// grammars has all formats but Harmony, whose messages are not blocks in a text.
var grammars = map[Format]grammar{
	DeepSeek: {[]string{deepseekBegin}, []string{deepseekEnd}, matchDeepSeek},
	Kimi:     {[]string{kimiBegin}, []string{kimiEnd}, matchKimi},
	MiniMax:  {[]string{minimaxBegin}, []string{minimaxEnd}, matchMiniMax},
	GLM:      {[]string{toolCallBegin}, []string{toolCallEnd}, matchGLM},
	QwenXML:  {[]string{toolCallBegin, functionBegin}, []string{toolCallEnd, functionEnd}, matchQwenXML},
	Hermes:   {[]string{toolCallBegin}, []string{toolCallEnd}, matchHermes},
	Llama:    {nil, []string{"}"}, matchLlama},
}

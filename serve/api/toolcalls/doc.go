// Package toolcalls reads what a model writes as a family's chat template has it: thinking, tool calls and the text
// around them. It is text in, deltas out: however a text is cut into pieces, the deltas add up to the same.
//
// A call is told when its block has ended and is known to be one. A block that cannot be read as calls is content, as
// it was written.
//
// The formats are those of the models' chat templates on Hugging Face: NousResearch/Hermes-Function-Calling and Qwen3,
// Qwen3-Coder and Qwen3.5, zai-org/GLM-4.5, moonshotai/Kimi-K2 (docs/tool_call_guidance.md), deepseek-ai/DeepSeek-V3
// and V3.1, openai/harmony (docs/format.md), MiniMaxAI/MiniMax-M2 (docs/tool_calling_guide.md) and
// meta-llama/Llama-3.1. Of the project the package imports data/ordered alone.
package toolcalls

package llm

import (
	"bytes"
	"encoding/base64"
)

// streamed are the places of an answer's text in the events of streams: each has the part that has come. Documents that
// repeat the text when it is whole have it elsewhere.
var streamed = []struct{ of, path, source string }{
	{"OpenAI, Chat Completions", "choices.*.delta.content", "platform.openai.com/docs/api-reference/chat-streaming, 2026-11"},
	{"the same", "choices.*.delta.refusal", "the same"},
	{"the same, a call of a function", "choices.*.delta.tool_calls.*.function.arguments", "the same"},
	{"the same, its older form", "choices.*.delta.function_call.arguments", "the same"},
	{"DeepSeek and vLLM, thoughts", "choices.*.delta.reasoning_content", "api-docs.deepseek.com/guides/reasoning_model, 2026"},
	{"OpenRouter, Groq and vLLM, thoughts", "choices.*.delta.reasoning", "openrouter.ai/docs/use-cases/reasoning-tokens, 2026"},
	{"OpenAI, Completions", "choices.*.text", "platform.openai.com/docs/api-reference/completions, 2026-11"},
	{"OpenAI, Responses: text, thoughts and arguments", "delta", "platform.openai.com/docs/api-reference/responses-streaming, 2026-11"},
	{"Anthropic", "delta.text", "docs.claude.com/en/docs/build-with-claude/streaming, 2026-11; Bedrock's Converse has the same"},
	{"Anthropic, thoughts", "delta.thinking", "the same"},
	{"Anthropic, the input of a tool", "delta.partial_json", "the same"},
	{"Anthropic, Text Completions", "completion", "docs.claude.com/en/api/complete, 2026-11"},
	{"Bedrock, Converse, the input of a tool", "delta.toolUse.input", "docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_ContentBlockDelta.html, 2026-11"},
	{"Bedrock, Converse, thoughts", "delta.reasoningContent.text", "the same"},
	{"Bedrock, Nova", "contentBlockDelta.delta.text", "docs.aws.amazon.com/nova/latest/userguide/using-invoke-api.html, 2026"},
	{"Bedrock, Titan", "outputText", "docs.aws.amazon.com/bedrock/latest/userguide/model-parameters-titan-text.html, 2026"},
	{"Bedrock, Llama", "generation", "docs.aws.amazon.com/bedrock/latest/userguide/model-parameters-meta.html, 2026"},
	{"Bedrock, Mistral", "outputs.*.text", "docs.aws.amazon.com/bedrock/latest/userguide/model-parameters-mistral-text-completion.html, 2026"},
	{"Gemini, also thoughts", "candidates.*.content.parts.*.text", "ai.google.dev/api/generate-content, 2026-11"},
	{"Ollama, chat", "message.content", "github.com/ollama/ollama, docs/api.md, 2026"},
	{"Ollama, thoughts", "message.thinking", "the same"},
	{"Ollama, generate", "response", "the same"},
	{"llama.cpp", "content", "github.com/ggml-org/llama.cpp, tools/server/README.md, 2026"},
}

var streamedTree = func() *tree {
	var paths []string
	for _, s := range streamed {
		paths = append(paths, s.path)
	}
	return newTree(paths...)
}()

// A textCounter counts the bytes of the text of an answer in the events of its stream.
type textCounter struct {
	walker walker
	bytes  int
}

func newTextCounter() *textCounter {
	c := &textCounter{}
	c.walker = walker{tree: streamedTree, on: c}
	return c
}

// event takes an event.
func (c *textCounter) event(data []byte) {
	c.walker.reset()
	c.walker.write(data)
}

func (c *textCounter) text(_ int, p []byte, _ bool) { c.bytes += plainLen(p) }

func (c *textCounter) number(int, []byte) {}

// plainLen returns the length of a JSON text without its escapes, in UTF-8.
func plainLen(p []byte) (n int) {
	for {
		i := bytes.IndexByte(p, '\\')
		if i < 0 || i+1 >= len(p) {
			return n + len(p)
		}
		n += i
		if p[i+1] != 'u' || i+6 > len(p) {
			n++
			p = p[i+2:]
			continue
		}
		switch code := p[i+2 : i+6]; {
		case (code[0] == 'd' || code[0] == 'D') && code[1] >= '8', code[0] == '0' && code[1] == '0' && code[2] >= '8': // half of a pair, which is 4 bytes
			n += 2
		case code[0] == '0' && code[1] == '0':
			n++
		case code[0] == '0' && code[1] < '8':
			n += 2
		default:
			n += 3
		}
		p = p[i+6:]
	}
}

// unwrapped returns the event of a model that an event of Bedrock's InvokeModelWithResponseStream wraps, or the event itself. buf is
// for the result, and is returned as it has grown.
func unwrapped(data, buf []byte) (inner, grown []byte) {
	_, wrapped, _ := bytes.Cut(data, []byte(`"bytes":`))
	wrapped, ok := bytes.CutPrefix(bytes.TrimLeft(wrapped, " "), []byte(`"`))
	if !ok {
		return data, buf
	}
	if wrapped, _, ok = bytes.Cut(wrapped, []byte(`"`)); !ok {
		return data, buf
	}
	grown, err := base64.StdEncoding.AppendDecode(buf[:0], wrapped)
	if err != nil {
		return data, buf
	}
	return grown, grown
}

package llm

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
)

// A place is where a server reports the usage of a call: in an object of its response, or of an event of a stream.
type place struct {
	of     string
	path   string // of the object; "": the document itself. * is each element of an array.
	form   form
	source string
}

// A form reads an object with the numbers of a usage. An object that has none of the names has no usage of the form.
type form struct {
	names []string
	read  func(object []byte, document map[string]json.RawMessage) (Usage, bool)
}

// openAIPlaces are the places of APIs of OpenAI's form, and of servers that have one besides their own. The first that is whole
// counts.
var openAIPlaces = []place{
	{"OpenAI, Chat Completions, Embeddings, Responses", "usage", openAIForm, "platform.openai.com/docs/api-reference, 2026-11"},
	{"OpenAI, Responses, streamed", "response.usage", openAIForm, "platform.openai.com/docs/api-reference/responses-streaming, 2026-11"},
	{"Groq, streamed", "x_groq.usage", openAIForm, "github.com/vercel/ai/issues/1651, github.com/Helicone/helicone/issues/3497"},
	{"Moonshot, streamed", "choices.*.usage", openAIForm, "github.com/earendil-works/pi/issues/2017, github.com/AstrBotDevs/AstrBot/issues/6614"},
	{"Ollama", "", ollamaForm, "github.com/ollama/ollama, docs/api.md, 2026"},
	{"llama.cpp", "", llamaCppForm, "github.com/ggml-org/llama.cpp, tools/server/README.md, 2026"},
}

var anthropicPlaces = []place{
	{"Anthropic, event message_start", "message.usage", anthropicStartForm, "docs.claude.com/en/docs/build-with-claude/streaming, 2026-11"},
	{"Anthropic, message, and event message_delta", "usage", anthropicForm, "the same; iterations: pydantic-ai#5065, maximhq/bifrost#6500, BerriAI/litellm#27065"},
}

var geminiPlaces = []place{
	{"Gemini, each chunk of a stream has the usage so far", "usageMetadata", geminiForm, "hexdocs.pm/geminix/Geminix.V1beta.UsageMetadata.html, 2025; without candidates: janeapp/riffer#309"},
}

// bedrockPlaces are the places of Converse and of the bodies of models. Embeddings and others have their counts in header
// fields alone.
var bedrockPlaces = append([]place{
	{"Converse, its event metadata, and Nova", "usage", converseForm, "docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_TokenUsage.html, 2026-11"},
	{"the last event of InvokeModelWithResponseStream", "amazon-bedrock-invocationMetrics", metricsForm, "github.com/langchain-ai/langchain/issues/19127, 2024"},
	{"Titan", "", titanForm, "docs.aws.amazon.com/bedrock/latest/userguide/model-parameters-titan-text.html, 2026; aws-sdk-js-v3#8172"},
	{"Llama", "", llamaForm, "docs.aws.amazon.com/bedrock/latest/userguide/model-parameters-meta.html, 2026; laravel/ai#914"},
	{"Mistral, gpt-oss and others of OpenAI's form", "usage", openAIForm, "docs.aws.amazon.com/bedrock/latest/userguide/model-parameters-openai.html, 2026; langchain-aws#41"},
}, anthropicPlaces...)

// The header fields of Bedrock's InvokeModel, whatever the model's body says (langchain-ai/langchain#19127, 2024-03;
// laravel/ai#914, 2026).
const (
	bedrockInput  = "X-Amzn-Bedrock-Input-Token-Count"
	bedrockAnswer = "X-Amzn-Bedrock-Output-Token-Count"
	bedrockRead   = "X-Amzn-Bedrock-Cache-Read-Input-Token-Count"
	bedrockWrite  = "X-Amzn-Bedrock-Cache-Write-Input-Token-Count"
)

// usageInHeader returns the usage in the fields of Bedrock. Embeddings have no output.
func usageInHeader(h http.Header) (u Usage, ok bool) {
	if u.Input, ok = number(h.Get(bedrockInput)); !ok {
		return Usage{}, false
	}
	for field, n := range map[string]*int{bedrockAnswer: &u.Output, bedrockRead: &u.CacheRead, bedrockWrite: &u.CacheWrite} {
		*n, _ = number(h.Get(field))
	}
	return u, true
}

// usageAt returns a [Provider].Usage that looks at places.
func usageAt(places []place) func(event []byte) (Usage, bool) {
	var names [][]byte
	for _, p := range places {
		for _, name := range p.form.names {
			if !slices.ContainsFunc(names, func(n []byte) bool { return string(n) == name }) {
				names = append(names, []byte(name))
			}
		}
	}
	return func(event []byte) (u Usage, ok bool) {
		if !slices.ContainsFunc(names, func(name []byte) bool { return bytes.Contains(event, name) }) {
			return Usage{}, false // Most events of a stream need no decoding.
		}
		var document map[string]json.RawMessage
		if !decode(event, &document) || document == nil {
			return Usage{}, false
		}
		for _, p := range places {
			found := false
			p.find(event, document, func(object []byte) {
				if !found {
					u, found = p.form.read(object, document)
				}
			})
			if found {
				return u, true
			}
		}
		return Usage{}, false
	}
}

// find calls a function with each object that is at the place.
func (p place) find(event []byte, document map[string]json.RawMessage, on func([]byte)) {
	if p.path == "" {
		on(event)
		return
	}
	name, rest, _ := strings.Cut(p.path, ".")
	if value, ok := document[name]; ok {
		at(value, rest, on)
	}
}

// at calls a function with each value at a path in a value.
func at(value json.RawMessage, path string, on func([]byte)) {
	if path == "" {
		on(value)
		return
	}
	name, rest, _ := strings.Cut(path, ".")
	if name == "*" {
		var elements []json.RawMessage
		decode(value, &elements)
		for _, e := range elements {
			at(e, rest, on)
		}
		return
	}
	var object map[string]json.RawMessage
	if decode(value, &object); object[name] != nil {
		at(object[name], rest, on)
	}
}

// openAIForm has the names of Chat Completions and of Responses. A batch has the usage of all its calls, whose limits are
// others.
var openAIForm = form{[]string{`"prompt_tokens"`, `"input_tokens"`}, func(object []byte, document map[string]json.RawMessage) (Usage, bool) {
	var u openAIUsage
	if string(document["object"]) == `"batch"` || !decode(object, &u) {
		return Usage{}, false
	}
	return u.usage()
}}

type openAIUsage struct {
	Prompt     count `json:"prompt_tokens"`
	Completion count `json:"completion_tokens"`
	Input      count `json:"input_tokens"`
	Output     count `json:"output_tokens"`
	Total      count `json:"total_tokens"`

	PromptDetails struct {
		Cached count `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	InputDetails struct {
		Cached count `json:"cached_tokens"`
	} `json:"input_tokens_details"`
}

// usage returns the usage, if it is whole. Embeddings have no output, but a total. xAI leaves thoughts out of the output, but not out
// of the total (github.com/vercel/ai/pull/12425, 2026-02). Cached tokens are part of the prompt's.
func (o openAIUsage) usage() (u Usage, ok bool) {
	input, output, cached := o.Prompt, o.Completion, o.PromptDetails.Cached
	if !input.known {
		input, output, cached = o.Input, o.Output, o.InputDetails.Cached
	}
	if rest := o.Total.n - input.n; o.Total.known && rest >= output.n {
		output = count{rest, true}
	}
	if !input.known || !output.known {
		return Usage{}, false
	}
	read := min(cached.n, input.n)
	return Usage{Input: input.n - read, CacheRead: read, Output: output.n}, true
}

// ollamaForm leaves out numbers of 0, also that of the output.
var ollamaForm = counts([]string{`"prompt_eval_count"`}, true, func(o struct {
	Input  count `json:"prompt_eval_count"`
	Output count `json:"eval_count"`
}) (input, output count) {
	return o.Input, o.Output
})

var llamaCppForm = counts([]string{`"tokens_evaluated"`}, false, func(o struct {
	Input  count `json:"tokens_evaluated"`
	Output count `json:"tokens_predicted"`
}) (input, output count) {
	return o.Input, o.Output
})

var llamaForm = counts([]string{`"prompt_token_count"`}, false, func(o struct {
	Input  count `json:"prompt_token_count"`
	Output count `json:"generation_token_count"`
}) (input, output count) {
	return o.Input, o.Output
})

// titanForm has several results, none if the model embeds, and in a stream the output so far.
var titanForm = counts([]string{`"inputTextTokenCount"`}, true, func(o struct {
	Input   count `json:"inputTextTokenCount"`
	Output  count `json:"totalOutputTextTokenCount"`
	Results []struct {
		Output count `json:"tokenCount"`
	} `json:"results"`
}) (input, output count) {
	for _, r := range o.Results {
		o.Output = count{sum(o.Output.n, r.Output.n), true}
	}
	return o.Input, o.Output
})

// counts returns the form of an object that has the input and the output, and nothing about caches. mayLack says that a missing
// output is 0.
func counts[Object any](names []string, mayLack bool, read func(Object) (input, output count)) form {
	return form{names, func(object []byte, _ map[string]json.RawMessage) (Usage, bool) {
		var o Object
		if !decode(object, &o) {
			return Usage{}, false
		}
		input, output := read(o)
		if !input.known || !output.known && !mayLack {
			return Usage{}, false
		}
		return Usage{Input: input.n, Output: output.n}, true
	}}
}

// An anthropicUsage may have iterations: the summary of a long conversation, an adviser, and the message itself. The
// sums beside them are the message's alone (docs.claude.com/en/docs/build-with-claude/compaction, 2026-10).
type anthropicUsage struct {
	anthropicCounts
	Iterations []anthropicCounts `json:"iterations"`
}

type anthropicCounts struct {
	Input      count `json:"input_tokens"`
	Output     count `json:"output_tokens"`
	CacheRead  count `json:"cache_read_input_tokens"`
	CacheWrite count `json:"cache_creation_input_tokens"`
}

// usage returns the usage, in which no number is below that of the message.
func (a anthropicUsage) usage() Usage {
	var all Usage
	for _, i := range a.Iterations {
		all.Input, all.Output = sum(all.Input, i.Input.n), sum(all.Output, i.Output.n)
		all.CacheRead, all.CacheWrite = sum(all.CacheRead, i.CacheRead.n), sum(all.CacheWrite, i.CacheWrite.n)
	}
	return Usage{
		Input: max(a.Input.n, all.Input), Output: max(a.Output.n, all.Output),
		CacheRead: max(a.CacheRead.n, all.CacheRead), CacheWrite: max(a.CacheWrite.n, all.CacheWrite),
	}
}

// anthropicStartForm is of the event message_start, whose output is a first token or two. It is left out: a stream that breaks
// off must not settle with that.
var anthropicStartForm = form{[]string{`"input_tokens"`}, func(object []byte, document map[string]json.RawMessage) (Usage, bool) {
	var a anthropicUsage
	if string(document["type"]) != `"message_start"` || !decode(object, &a) || !a.Input.known {
		return Usage{}, false
	}
	a.Output, a.Iterations = count{}, nil
	return a.usage(), true
}}

// anthropicForm is of a message, or of the event message_delta, which has the output so far and may repeat the input.
var anthropicForm = form{[]string{`"output_tokens"`}, func(object []byte, document map[string]json.RawMessage) (Usage, bool) {
	var a anthropicUsage
	if !decode(object, &a) || !a.Output.known || !a.Input.known && string(document["type"]) != `"message_delta"` {
		return Usage{}, false
	}
	return a.usage(), true
}}

// geminiForm: the prompt includes cached tokens, and the candidates do not include thoughts.
var geminiForm = form{[]string{`"usageMetadata"`}, func(object []byte, _ map[string]json.RawMessage) (Usage, bool) {
	var m struct {
		Prompt     count `json:"promptTokenCount"`
		Tools      count `json:"toolUsePromptTokenCount"`
		Candidates count `json:"candidatesTokenCount"`
		Thoughts   count `json:"thoughtsTokenCount"`
		Cached     count `json:"cachedContentTokenCount"`
		Total      count `json:"totalTokenCount"`
	}
	if !decode(object, &m) || !m.Prompt.known || !m.Candidates.known && !m.Total.known {
		return Usage{}, false
	}
	read := min(m.Cached.n, m.Prompt.n)
	input := sum(m.Prompt.n-read, m.Tools.n)
	output := sum(m.Candidates.n, m.Thoughts.n)
	if !m.Candidates.known {
		output = without(m.Total.n, sum(input, read))
	}
	return Usage{Input: input, CacheRead: read, Output: output}, true
}}

// converseForm: input tokens do not include cached ones (github.com/anomalyco/opencode/pull/38427, 2026).
var converseForm = form{[]string{`"inputTokens"`}, func(object []byte, _ map[string]json.RawMessage) (Usage, bool) {
	var c struct {
		Input      count `json:"inputTokens"`
		Output     count `json:"outputTokens"`
		CacheRead  count `json:"cacheReadInputTokens"`
		CacheWrite count `json:"cacheWriteInputTokens"`
	}
	if !decode(object, &c) || !c.Input.known || !c.Output.known {
		return Usage{}, false
	}
	return Usage{Input: c.Input.n, Output: c.Output.n, CacheRead: c.CacheRead.n, CacheWrite: c.CacheWrite.n}, true
}}

var metricsForm = form{[]string{`"inputTokenCount"`}, func(object []byte, _ map[string]json.RawMessage) (Usage, bool) {
	var m struct {
		Input      count `json:"inputTokenCount"`
		Output     count `json:"outputTokenCount"`
		CacheRead  count `json:"cacheReadInputTokenCount"`
		CacheWrite count `json:"cacheWriteInputTokenCount"`
	}
	if !decode(object, &m) || !m.Input.known || !m.Output.known {
		return Usage{}, false
	}
	return Usage{Input: m.Input.n, Output: m.Output.n, CacheRead: m.CacheRead.n, CacheWrite: m.CacheWrite.n}, true
}}

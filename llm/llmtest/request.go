package llmtest

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strings"
)

// NewRequest returns the request of a call: for c.Input tokens, or as few as the form of the request allows, and an
// answer of at most c.Most, 0 for unbounded. A stream of OpenAI's Chat Completions asks for its usage, and one of Gemini's for
// server-sent events. The request is for the address http://llm.test, which a [Server] ignores.
func NewRequest(ctx context.Context, d Dialect, c Call) *http.Request {
	path, form, most, stream := "", "", "", ""
	switch d {
	case OpenAI, Compatible:
		path, form = "/v1/chat/completions", `{"model":"$","messages":[{"role":"user","content":"%s"}]%s}`
		most, stream = `,"max_completion_tokens":%d`, `,"stream":true,"stream_options":{"include_usage":true}`
		if c.Responses {
			path, form = "/v1/responses", `{"model":"$","input":"%s"%s}`
			most, stream = `,"max_output_tokens":%d`, `,"stream":true`
		}
	case Anthropic:
		path, form = "/v1/messages", `{"model":"$","messages":[{"role":"user","content":"%s"}]%s}`
		most, stream = `,"max_tokens":%d`, `,"stream":true`
	case Gemini:
		path, form = "/v1beta/models/$:generateContent", `{"contents":[{"parts":[{"text":"%s"}]}]%s}`
		most = `,"generationConfig":{"maxOutputTokens":%d}`
		if c.Stream {
			path = "/v1beta/models/$:streamGenerateContent?alt=sse"
		}
	case Bedrock:
		path, form = "/model/$/converse", `{"messages":[{"role":"user","content":[{"text":"%s"}]}]%s}`
		most = `,"inferenceConfig":{"maxTokens":%d}`
		if c.Stream {
			path += "-stream"
		}
	default:
		panic(fmt.Sprintf("llmtest: there is no Dialect %q", d))
	}
	model := cmp.Or(c.Model, "m")
	path, form = strings.Replace(path, "$", model, 1), strings.Replace(form, "$", model, 1)
	options := ""
	if c.Most > 0 {
		options = fmt.Sprintf(most, c.Most)
	}
	if c.Stream {
		options += stream
	}
	padding := max(0, 4*c.Input-len(fmt.Sprintf(form, "", options)))
	body := strings.NewReader(fmt.Sprintf(form, strings.Repeat("x", padding), options))
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://llm.test"+path, body)
	if err != nil {
		panic(err) // The address is well formed; so ctx is nil.
	}
	r.Header.Set("Content-Type", "application/json")
	return r
}

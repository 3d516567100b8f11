package llm_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/llm"
)

// Each place in the code where answers report usage has a case here, with the place's source. A document that is also of another
// place's form is in the list of that place, too: the first that is whole counts.
var usageCases = []struct {
	of    string // as the code names the place
	p     llm.Provider
	event string
	want  llm.Usage
}{
	{"OpenAI, Chat Completions, Embeddings, Responses", llm.OpenAI, `{"usage":{"prompt_tokens":12,"completion_tokens":30,"total_tokens":42}}`, llm.Usage{Input: 12, Output: 30}},
	{"OpenAI, Chat Completions, Embeddings, Responses", llm.OpenAI, `{"usage":{"prompt_tokens":120.0,"completion_tokens":1.2e2}}`, llm.Usage{Input: 120, Output: 120}}, // llm-d-router#1240, obie/ruby_decision_model#10
	{"OpenAI, Responses, streamed", llm.OpenAI, `{"type":"response.completed","response":{"usage":{"input_tokens":12,"output_tokens":30}}}`, llm.Usage{Input: 12, Output: 30}},
	{"Groq, streamed", llm.OpenAI, `{"choices":[],"x_groq":{"id":"req_1","usage":{"queue_time":0.01,"prompt_tokens":12,"completion_tokens":30,"total_tokens":42}}}`, llm.Usage{Input: 12, Output: 30}},
	{"Moonshot, streamed", llm.OpenAI, `{"choices":[{"index":0,"delta":{},"finish_reason":"stop","usage":{"prompt_tokens":12,"completion_tokens":30,"total_tokens":42}}]}`, llm.Usage{Input: 12, Output: 30}},
	{"Ollama", llm.OpenAI, `{"model":"llama3.2","message":{"role":"assistant","content":""},"done":true,"prompt_eval_count":12,"eval_count":30,"eval_duration":4709213000}`, llm.Usage{Input: 12, Output: 30}},
	{"Ollama", llm.OpenAI, `{"model":"all-minilm","embeddings":[[0.1]],"prompt_eval_count":8}`, llm.Usage{Input: 8}},
	{"llama.cpp", llm.OpenAI, `{"content":"","stop":true,"tokens_predicted":30,"tokens_evaluated":12}`, llm.Usage{Input: 12, Output: 30}},

	{"Anthropic, event message_start", llm.Anthropic, `{"type":"message_start","message":{"usage":{"input_tokens":12,"output_tokens":1}}}`, llm.Usage{Input: 12}},
	{"Anthropic, message, and event message_delta", llm.Anthropic, `{"type":"message_delta","usage":{"output_tokens":30}}`, llm.Usage{Output: 30}},
	{
		"Anthropic, message, and event message_delta", llm.Anthropic,
		`{"type":"message","usage":{"input_tokens":23000,"output_tokens":1000,"iterations":[{"type":"compaction","input_tokens":180000,"output_tokens":3500},{"type":"message","input_tokens":23000,"output_tokens":1000}]}}`,
		llm.Usage{Input: 203_000, Output: 4500},
	},
	{
		"Anthropic, message, and event message_delta", llm.Anthropic, // An iteration that can't be read takes nothing from the sums.
		`{"type":"message","usage":{"input_tokens":23000,"output_tokens":1000,"cache_read_input_tokens":7,"iterations":[{"input_tokens":-1,"output_tokens":3500,"cache_read_input_tokens":5},7]}}`,
		llm.Usage{Input: 23_000, Output: 3500, CacheRead: 7},
	},

	{"Gemini, each chunk of a stream has the usage so far", llm.Gemini, `{"usageMetadata":{"promptTokenCount":12,"candidatesTokenCount":30}}`, llm.Usage{Input: 12, Output: 30}},
	{"Gemini, each chunk of a stream has the usage so far", llm.Gemini, `{"promptFeedback":{"blockReason":"SAFETY"},"usageMetadata":{"promptTokenCount":10,"totalTokenCount":10}}`, llm.Usage{Input: 10}},

	{"Converse, its event metadata, and Nova", llm.Bedrock, `{"usage":{"inputTokens":12,"outputTokens":30,"totalTokens":42}}`, llm.Usage{Input: 12, Output: 30}},
	{"the last event of InvokeModelWithResponseStream", llm.Bedrock, `{"amazon-bedrock-invocationMetrics":{"inputTokenCount":12,"outputTokenCount":30}}`, llm.Usage{Input: 12, Output: 30}},
	{"Titan", llm.Bedrock, `{"inputTextTokenCount":12,"results":[{"tokenCount":10,"outputText":"a"},{"tokenCount":20,"outputText":"b"}]}`, llm.Usage{Input: 12, Output: 30}},
	{"Titan", llm.Bedrock, `{"embedding":[0.1],"inputTextTokenCount":12}`, llm.Usage{Input: 12}},
	{"Titan", llm.Bedrock, `{"outputText":"a","index":0,"totalOutputTextTokenCount":30,"inputTextTokenCount":12}`, llm.Usage{Input: 12, Output: 30}},
	{"Llama", llm.Bedrock, `{"generation":"a","prompt_token_count":12,"generation_token_count":30,"stop_reason":"stop"}`, llm.Usage{Input: 12, Output: 30}},
	{"Mistral, gpt-oss and others of OpenAI's form", llm.Bedrock, `{"choices":[],"usage":{"prompt_tokens":12,"completion_tokens":30}}`, llm.Usage{Input: 12, Output: 30}},
	{"Anthropic, message, and event message_delta", llm.Bedrock, `{"type":"message","usage":{"input_tokens":12,"output_tokens":30}}`, llm.Usage{Input: 12, Output: 30}},
}

func TestUsageAtEachPlace(t *testing.T) {
	var have, want []string
	for _, tt := range usageCases {
		u, ok := tt.p.Usage([]byte(tt.event))
		require.True(t, ok, "%s: %s", tt.of, tt.event)
		require.Equal(t, tt.want, u, "%s: %s", tt.of, tt.event)
		have = append(have, tt.of)
	}
	for _, place := range llm.UsagePlaces() {
		require.NotEmpty(t, place[1], "%s has a source", place[0])
		want = append(want, place[0])
	}
	slices.Sort(have)
	slices.Sort(want)
	require.Equal(t, slices.Compact(want), slices.Compact(have), "each place has a case")
}

// Bedrock's InvokeModel has the counts in header fields, whatever the body is.
func TestUsageInTheHeader(t *testing.T) {
	for name, tt := range map[string]struct {
		fields []string
		body   string
		want   llm.Usage
		ok     bool
	}{
		"Cohere (langchain-ai/langchain#19127)": {[]string{"X-Amzn-Bedrock-Input-Token-Count", "12", "X-Amzn-Bedrock-Output-Token-Count", "30"}, `{"generations":[{"text":"a"}]}`, llm.Usage{Input: 12, Output: 30}, true},
		"embeddings (laravel/ai#914)":           {[]string{"X-Amzn-Bedrock-Input-Token-Count", "12"}, `{"embeddings":[[1]]}`, llm.Usage{Input: 12}, true},
		"with what was cached":                  {[]string{"X-Amzn-Bedrock-Input-Token-Count", "12", "X-Amzn-Bedrock-Output-Token-Count", "30", "X-Amzn-Bedrock-Cache-Read-Input-Token-Count", "7"}, `{}`, llm.Usage{Input: 12, Output: 30, CacheRead: 7}, true},
		"a body that is cut off":                {[]string{"X-Amzn-Bedrock-Input-Token-Count", "12", "X-Amzn-Bedrock-Output-Token-Count", "30"}, `{`, llm.Usage{Input: 12, Output: 30}, true},
		"malformed":                             {[]string{"X-Amzn-Bedrock-Input-Token-Count", "-12"}, `{}`, llm.Usage{}, false},
	} {
		h := fields(tt.fields...)
		h.Set("Content-Type", "application/json")
		m := llm.NewMeter(llm.Bedrock, 200, h)
		_, _ = m.Write([]byte(tt.body))
		m.End(true)
		u, ok := m.Usage()
		require.Equal(t, tt.ok, ok, name)
		require.Equal(t, tt.want, u, name)
	}
}

// streamedCases have an event for each place of an answer's text in a stream, and the length of that text.
var streamedCases = []struct {
	of, event string
	want      int
}{
	{"OpenAI, Chat Completions", `{"choices":[{"index":0,"delta":{"role":"assistant","content":"twelve bytes"}}],"usage":null}`, 12},
	{"OpenAI, Chat Completions", `{"choices":[{"delta":{"content":"a\n\"\u00e9\ud83d\ude00é\ud55c\\"}}]}`, 1 + 1 + 1 + 2 + 4 + 2 + 3 + 1},
	{"the same", `{"choices":[{"delta":{"refusal":"twelve bytes"}}]}`, 12},
	{"the same, a call of a function", `{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"call_1","function":{"name":"f","arguments":"{\"a\":1}"}}]}}]}`, 7},
	{"the same, its older form", `{"choices":[{"delta":{"function_call":{"arguments":"{}"}}}]}`, 2},
	{"DeepSeek and vLLM, thoughts", `{"choices":[{"delta":{"content":null,"reasoning_content":"twelve bytes"}}]}`, 12},
	{"OpenRouter, Groq and vLLM, thoughts", `{"choices":[{"delta":{"reasoning":"twelve bytes"}}]}`, 12},
	{"OpenAI, Completions", `{"choices":[{"text":"twelve bytes"}]}`, 12},
	{"OpenAI, Responses: text, thoughts and arguments", `{"type":"response.output_text.delta","item_id":"msg_1","delta":"twelve bytes"}`, 12},
	{"OpenAI, Responses: text, thoughts and arguments", `{"type":"response.output_text.done","item_id":"msg_1","text":"twelve bytes"}`, 0},
	{"Anthropic", `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"twelve bytes"}}`, 12},
	{"Anthropic, thoughts", `{"type":"content_block_delta","delta":{"type":"thinking_delta","thinking":"twelve bytes"}}`, 12},
	{"Anthropic, the input of a tool", `{"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":"{\"a\":"}}`, 5},
	{"Anthropic, Text Completions", `{"type":"completion","completion":"twelve bytes"}`, 12},
	{"Bedrock, Converse, the input of a tool", `{"contentBlockIndex":0,"delta":{"toolUse":{"input":"{}"}}}`, 2},
	{"Bedrock, Converse, thoughts", `{"delta":{"reasoningContent":{"text":"twelve bytes"}}}`, 12},
	{"Bedrock, Nova", `{"contentBlockDelta":{"delta":{"text":"twelve bytes"},"contentBlockIndex":0}}`, 12},
	{"Bedrock, Titan", `{"outputText":"twelve bytes","index":0}`, 12},
	{"Bedrock, Llama", `{"generation":"twelve bytes"}`, 12},
	{"Bedrock, Mistral", `{"outputs":[{"text":"twelve bytes","stop_reason":null}]}`, 12},
	{"Gemini, also thoughts", `{"candidates":[{"content":{"parts":[{"text":"twelve ","thought":true},{"text":"bytes"}]}}]}`, 12},
	{"Ollama, chat", `{"model":"m","message":{"role":"assistant","content":"twelve bytes"},"done":false}`, 12},
	{"Ollama, thoughts", `{"message":{"thinking":"twelve bytes"}}`, 12},
	{"Ollama, generate", `{"response":"twelve bytes","done":false}`, 12},
	{"llama.cpp", `{"content":"twelve bytes","stop":false}`, 12},
}

// What a stream has said so far can be asked for at any time, also of a provider that reports no usage.
func TestTheTextOfAStreamIsSeenAsItComes(t *testing.T) {
	var have, want []string
	for _, tt := range streamedCases {
		have = append(have, tt.of)
		m := llm.NewMeter(llm.OpenAI, 200, fields("Content-Type", "application/x-ndjson"))
		for i := 1; i <= 3; i++ {
			for _, c := range []byte(tt.event + "\n") { // In pieces of a byte.
				_, _ = m.Write([]byte{c})
			}
			text, _, ok := m.Seen()
			require.Equal(t, i*tt.want, text, "%s: %s", tt.of, tt.event)
			require.False(t, ok)
		}
	}
	for _, place := range llm.StreamedPlaces() {
		require.NotEmpty(t, place[1], "%s has a source", place[0])
		want = append(want, place[0])
	}
	slices.Sort(have)
	slices.Sort(want)
	require.Equal(t, slices.Compact(want), slices.Compact(have), "each place has a case")

	// The input is known from the start at Anthropic.
	m := llm.NewMeter(llm.Anthropic, 200, fields("Content-Type", sse))
	_, _ = m.Write([]byte(started + `data: {"type":"content_block_delta","delta":{"text":"abc"}}` + "\n\n"))
	text, u, ok := m.Seen()
	require.True(t, ok)
	require.Equal(t, 3, text)
	require.Equal(t, llm.Usage{Input: 25}, u)

	// A model's events that Bedrock wraps, and a stream of Gemini's that is an array.
	wrapped := base64.StdEncoding.EncodeToString([]byte(`{"type":"content_block_delta","delta":{"text":"abc"}}`))
	m = llm.NewMeter(llm.Bedrock, 200, fields("Content-Type", amazon))
	_, _ = m.Write([]byte(message("chunk", `{"bytes":"`+wrapped+`","p":"abcdef"}`)))
	text, _, _ = m.Seen()
	require.Equal(t, 3, text)
	m = llm.NewMeter(llm.Gemini, 200, fields("Content-Type", "application/json"))
	_, _ = m.Write([]byte(`[` + geminiChunk(1)))
	text, _, _ = m.Seen()
	require.Equal(t, len(`[{"\`), text)
}

// An error in a stream with the status 200 is a refusal if it says that a limit is reached, and costs nothing. Other errors are no
// refusals. What has been produced is not free.
func TestAnErrorBehindAStatusOf200(t *testing.T) {
	const limit = "Rate limit reached for gpt-5 on tokens per min (TPM). Please try again in 14.036s."
	text := `data: {"type":"content_block_delta","delta":{"text":"abc"}}` + "\n\n"
	q := llm.Quota{Requests: 1000, Tokens: 1000}
	for _, tt := range []struct {
		name, source      string
		p                 llm.Provider
		contentType, body string
		refused           bool
		hold              time.Duration
		cost              int
	}{
		{
			"response.failed", "openai/codex#10055", llm.OpenAI, sse,
			`event: response.created` + "\n" + `data: {"type":"response.created","response":{"error":null,"usage":null}}` + "\n\n" +
				`event: response.failed` + "\n" + `data: {"type":"response.failed","response":{"status":"failed","error":{"code":"rate_limit_exceeded","message":"` + limit + `"},"usage":null}}` + "\n\n",
			true, 14_036 * time.Millisecond, 0,
		},
		{"an event error of Responses", "platform.openai.com, 2026", llm.OpenAI, sse, `data: {"type":"error","code":"rate_limit_exceeded","message":"` + limit + `"}` + "\n\n", true, 14_036 * time.Millisecond, 0},
		{"Chat Completions", "qwen-code#11216", llm.OpenAI, sse, `data: {"error":{"message":"` + limit + `","type":"tokens","code":"rate_limit_exceeded"}}` + "\n\n" + done, true, 14_036 * time.Millisecond, 0},
		{"Anthropic", "better-ccflare#388", llm.Anthropic, sse, started + "event: error\n" + `data: {"type":"error","error":{"type":"rate_limit_error","message":"This request would exceed your limit"}}` + "\n\n", true, 0, 0},
		{"Anthropic, the type in event alone", "better-ccflare#388", llm.Anthropic, sse, "event: error\n" + `data: {"error":{"type":"rate_limit_error","message":"x"}}` + "\n\n", true, 0, 0},
		{"Anthropic, in the middle", "", llm.Anthropic, sse, started + text + "event: error\n" + `data: {"type":"error","error":{"type":"rate_limit_error","message":"x"}}` + "\n\n", true, 0, -1},
		{"Anthropic, an overload before anything", "", llm.Anthropic, sse, overload, false, 0, 0},
		{"Anthropic, an overload behind the start", "", llm.Anthropic, sse, started + overload, false, 0, -1},
		{"a quota that is used up", "promptfoo#10866", llm.OpenAI, sse, `data: {"error":{"message":"You exceeded your current quota, please try again in 5s","code":"insufficient_quota"}}` + "\n\n", true, 0, 0},
		{"Gemini", "", llm.Gemini, sse, `data: {"error":{"code":429,"status":"RESOURCE_EXHAUSTED","details":[{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"7s"}]}}` + "\n\n", true, 7 * time.Second, 0},
		{"Bedrock", bedrockErrors, llm.Bedrock, amazon, exception("throttlingException", `{"message":"Too many tokens"}`), true, 0, 0},
		{"a body with an error", "", llm.OpenAI, "application/json", `{"error":{"message":"model overloaded","type":"server_error"}}`, false, 0, 0},
		{"a body with an error that is a text", "", llm.OpenAI, "application/json", `{"error":"model overloaded"}`, false, 0, 0},
		{"a body with an error of a limit", "", llm.OpenAI, "application/json", `{"error":{"message":"` + limit + `","code":429}}`, true, 14_036 * time.Millisecond, 0},
		{"a body without an error", "", llm.OpenAI, "application/json", `{"error":null,"usage":{"input_tokens":100,"output_tokens":100}}`, false, 0, 200_000},
		{"a failure that was counted", "", llm.OpenAI, "application/json", `{"status":"failed","error":{"code":"server_error"},"usage":{"input_tokens":100,"output_tokens":100}}`, false, 0, 200_000},
		{"an answer about errors", "", llm.OpenAI, sse, `data: {"choices":[{"delta":{"content":"{\"error\":{\"code\":\"rate_limit_exceeded\"}}"}}]}` + "\n\n" + last + done, false, 0, 29_000},
	} {
		m := llm.NewMeter(tt.p, 200, fields("Content-Type", tt.contentType))
		_, _ = m.Write([]byte(tt.body))
		m.End(true)
		hold, refused := m.Refused()
		require.Equal(t, tt.refused, refused, "%s (%s)", tt.name, tt.source)
		require.Equal(t, tt.hold, hold, tt.name)
		require.Equal(t, tt.cost, m.Cost(q), tt.name)
	}
}

// exception returns a message of an Amazon event stream that is an error.
func exception(kind, payload string) string {
	return behind("\x0f:exception-type\x07\x00"+string(rune(len(kind)))+kind, "", payload)
}

// A call for which no model ran gives back what was reserved for the answer, and the input where the provider does not count it.
func TestWhatACallCostsForWhichNoModelRan(t *testing.T) {
	asked := llm.Usage{Input: 100, Output: 8000}
	q := llm.Quota{Requests: 1000, Input: 10_000, Output: 8000}
	const request, input = 1000, 10_000
	for _, tt := range []struct {
		status int
		want   int
	}{
		{401, request}, {402, request}, {403, request}, {404, request}, {405, request}, {413, request}, {415, request},
		{400, input}, {422, input}, {500, input}, {502, input}, {503, input}, {504, input}, {529, input},
		{429, 0}, {200, -1}, {418, -1},
	} {
		for name, p := range map[string]llm.Provider{"Anthropic": llm.Anthropic, "Gemini (google-gemini/gemini-cli#15184)": llm.Gemini} {
			m := llm.NewMeter(p, tt.status, http.Header{})
			m.Asked(asked)
			m.End(true)
			require.Equal(t, tt.want, m.Cost(q), "%s, %d (sourcegraph#51879, sample-agentic-ai-acceleration-kr#83)", name, tt.status)
		}
	}
	m := llm.NewMeter(llm.OpenAI, 400, http.Header{})
	m.Asked(asked)
	require.Equal(t, request, m.Cost(q), "a compatible server counts nothing")
	m = llm.NewMeter(llm.Bedrock, 400, http.Header{})
	m.Asked(asked)
	require.Equal(t, request, m.Cost(q), "Bedrock counts what was used")
	m = llm.NewMeter(llm.Anthropic, 400, http.Header{})
	require.Equal(t, -1, m.Cost(q), "what it has asked for is unknown")
}

// A request that makes no model run costs a request's share, whatever usage its response has: that of another call.
func TestUsageOfAnotherCallIsNotChargedAgain(t *testing.T) {
	m := llm.NewMeter(llm.OpenAI, 200, fields("Content-Type", "application/json"))
	m.Asked(llm.Usage{})
	_, _ = m.Write([]byte(`{"object":"response","status":"completed","usage":{"input_tokens":12,"output_tokens":30}}`))
	m.End(true)
	u, ok := m.Usage()
	require.True(t, ok)
	require.Equal(t, llm.Usage{}, u)
	require.Equal(t, 1000, m.Cost(llm.Quota{Requests: 1000, Tokens: 1000}))
}

func BenchmarkMeterOfAStream(b *testing.B) {
	event := []byte(fmt.Sprintf("data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{\"content\":%q}}],\"usage\":null}\n\n", " word"))
	m := llm.NewMeter(llm.OpenAI, 200, fields("Content-Type", sse))
	b.SetBytes(int64(len(event)))
	b.ReportAllocs()
	for b.Loop() {
		_, _ = m.Write(event)
	}
}

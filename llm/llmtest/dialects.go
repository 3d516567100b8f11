package llmtest

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"example.com/leakybucket/llm"
)

// text returns a text of so many tokens.
func text(tokens int) string { return strings.Repeat("word", tokens) }

// all returns the text of a whole answer, when all of it has been produced.
func all(next func() int) (answer string) {
	var b strings.Builder
	for n := next(); n > 0; n = next() {
		b.WriteString(text(n))
	}
	return b.String()
}

func encode(document any) []byte {
	text, err := json.Marshal(document)
	if err != nil {
		panic(err) // All documents are this package's.
	}
	return text
}

// sse writes one event of a text/event-stream.
func sse(w *writer, name string, document any) {
	line := ""
	if name != "" {
		line = "event: " + name + "\n"
	}
	w.piece([]byte(line + "data: " + string(encode(document)) + "\n\n"))
}

// usual is a dialect that counts calls when they begin, unless they are refused, and has no rate-limit headers.
type usual struct{}

func (usual) perOutput(int) llm.Quota                { return llm.Quota{} }
func (usual) atEnd(Call, llm.Usage) llm.Quota        { return llm.Quota{} }
func (usual) countsRefused() bool                    { return false }
func (usual) header(http.Header, *limits, time.Time) {}

type openAI struct{ usual }

func (openAI) parse(r *http.Request, body []byte) (c Call, ok bool) {
	o := parseJSON(body)
	c.Responses = strings.HasSuffix(r.URL.Path, "/responses")
	c.Most = max(o.number("max_tokens"), o.number("max_completion_tokens"), o.number("max_output_tokens")) * max(1, o.number("n"))
	c.Stream, _ = o["stream"].(bool)
	c.wantsUsage, _ = o.in("stream_options")["include_usage"].(bool)
	return c, o != nil && (c.Responses || strings.HasSuffix(r.URL.Path, "/chat/completions"))
}

// "Your rate limit is calculated as the maximum of max_tokens and the estimated number of tokens based on the character count of
// your request" (platform.openai.com/docs/guides/rate-limits, as quoted in 2026-11). Nothing there says that any of it is given back.
func (openAI) atStart(c Call) llm.Quota { return llm.Quota{Requests: 1, Tokens: max(c.Most, c.Input)} }

// "Unsuccessful requests contribute to your per-minute limit" (the same page).
func (openAI) countsRefused() bool { return true }

// The fields of the same page: limits, remaining amounts, and Go durations until they are full, as in 1s or 6m0s.
func (openAI) header(h http.Header, l *limits, now time.Time) {
	for name, b := range map[string]counter{"Requests": l.requests, "Tokens": l.tokens} {
		if b.size() > 0 {
			h.Set("X-Ratelimit-Limit-"+name, strconv.Itoa(b.size()))
			h.Set("X-Ratelimit-Remaining-"+name, strconv.Itoa(b.remaining(now)))
			h.Set("X-Ratelimit-Reset-"+name, b.untilFull(now).Round(time.Millisecond).String())
		}
	}
}

// OpenAI's clients read retry-after-ms first, then retry-after
// (openai-go v3.98.0, internal/requestconfig/requestconfig.go, 2026).
func (openAI) refuse(w http.ResponseWriter, wait time.Duration) {
	if wait > 0 {
		ms := int64(math.Ceil(float64(wait) / float64(time.Millisecond)))
		w.Header().Set("Retry-After-Ms", strconv.FormatInt(ms, 10))
		w.Header().Set("Retry-After", strconv.FormatInt((ms+999)/1000, 10))
	}
	writeJSON(w, http.StatusTooManyRequests, object{"error": object{
		"message": fmt.Sprintf("Rate limit reached. Please try again in %v.", wait), "type": "tokens", "param": nil, "code": "rate_limit_exceeded",
	}})
}

func (openAI) fail(w http.ResponseWriter, status int) {
	writeJSON(w, status, object{"error": object{"message": http.StatusText(status), "type": "server_error", "param": nil, "code": nil}})
}

// A stream has its usage in the chunk before [DONE], with stream_options.include_usage alone; it is null in the others
// (openai.com's OpenAPI description 2.3.0, 2025).
func (openAI) answer(w *writer, _ *http.Request, c Call, u llm.Usage, next func() int) {
	if c.Responses {
		responses(w, c, u, next)
		return
	}
	usage := object{
		"prompt_tokens": u.Input + u.CacheRead, "completion_tokens": u.Output, "total_tokens": u.Input + u.CacheRead + u.Output,
		"prompt_tokens_details": object{"cached_tokens": u.CacheRead},
	}
	of := func(kind string, choices []object, usage any) object {
		return object{"id": "chatcmpl-1", "object": kind, "created": 1, "model": "test", "choices": choices, "usage": usage}
	}
	if !c.Stream {
		message := object{"role": "assistant", "content": all(next)}
		w.whole(of("chat.completion", []object{{"index": 0, "message": message, "finish_reason": "stop"}}, usage))
		return
	}
	w.begin("text/event-stream; charset=utf-8")
	for n := next(); n > 0; n = next() {
		sse(w, "", of("chat.completion.chunk", []object{{"index": 0, "delta": object{"content": text(n)}, "finish_reason": nil}}, nil))
	}
	sse(w, "", of("chat.completion.chunk", []object{{"index": 0, "delta": object{}, "finish_reason": "stop"}}, nil))
	if c.wantsUsage {
		sse(w, "", of("chat.completion.chunk", []object{}, usage))
	}
	w.piece([]byte("data: [DONE]\n\n"))
}

// responses writes an answer of Responses. Its streams number their events, and the last of them, with the usage, has
// the whole answer (the events of openai-go v3.98.0, responses/response.go, 2026).
func responses(w *writer, c Call, u llm.Usage, next func() int) {
	response := func(status string, output []object, usage any) object {
		return object{
			"id": "resp_1", "object": "response", "created_at": 1, "status": status, "error": nil, "incomplete_details": nil, "instructions": nil,
			"model": "test", "output": output, "parallel_tool_calls": true, "tool_choice": "auto", "tools": []object{}, "metadata": object{}, "usage": usage,
		}
	}
	part := func(text string) object {
		return object{"type": "output_text", "text": text, "annotations": []object{}}
	}
	item := func(status string, content ...object) object {
		return object{"id": "msg_1", "type": "message", "role": "assistant", "status": status, "content": append([]object{}, content...)}
	}
	completed := func(text string) object {
		return response("completed", []object{item("completed", part(text))}, object{
			"input_tokens": u.Input + u.CacheRead, "input_tokens_details": object{"cached_tokens": u.CacheRead},
			"output_tokens": u.Output, "output_tokens_details": object{"reasoning_tokens": 0}, "total_tokens": u.Input + u.CacheRead + u.Output,
		})
	}
	if !c.Stream {
		w.whole(completed(all(next)))
		return
	}
	w.begin("text/event-stream; charset=utf-8")
	number := 0
	event := func(kind string, fields object) {
		fields["type"], fields["sequence_number"] = kind, number
		number++
		sse(w, kind, fields)
	}
	inItem := func(kind string, fields object) {
		fields["item_id"], fields["output_index"], fields["content_index"] = "msg_1", 0, 0
		event(kind, fields)
	}
	event("response.created", object{"response": response("in_progress", []object{}, nil)})
	event("response.in_progress", object{"response": response("in_progress", []object{}, nil)})
	event("response.output_item.added", object{"output_index": 0, "item": item("in_progress")})
	inItem("response.content_part.added", object{"part": part("")})
	whole := ""
	for n := next(); n > 0; n = next() {
		whole += text(n)
		inItem("response.output_text.delta", object{"delta": text(n), "logprobs": []object{}})
	}
	inItem("response.output_text.done", object{"text": whole, "logprobs": []object{}})
	inItem("response.content_part.done", object{"part": part(whole)})
	event("response.output_item.done", object{"output_index": 0, "item": item("completed", part(whole))})
	event("response.completed", object{"response": completed(whole)})
}

// compatible is a server with an API of OpenAI's form that says nothing of its limits. It counts what was used: input when a call
// begins, and output as it is produced.
type compatible struct{ openAI }

func (compatible) atStart(c Call) llm.Quota {
	return llm.Quota{Requests: 1, Tokens: c.Input, Input: c.Input, Output: 1}
}

func (compatible) perOutput(tokens int) llm.Quota { return llm.Quota{Output: tokens, Tokens: tokens} }

// The first token was counted twice.
func (compatible) atEnd(Call, llm.Usage) llm.Quota { return llm.Quota{Output: 1} }

func (compatible) countsRefused() bool                    { return false }
func (compatible) header(http.Header, *limits, time.Time) {}

type anthropic struct{ usual }

func (anthropic) parse(r *http.Request, body []byte) (c Call, ok bool) {
	o := parseJSON(body)
	c.Most = o.number("max_tokens")
	c.Stream, _ = o["stream"].(bool)
	return c, o != nil && c.Most > 0 && strings.HasSuffix(r.URL.Path, "/v1/messages")
}

// Input counts when a call begins. A first token of output must fit, too. That counts when it is produced
// (docs.claude.com/en/api/rate-limits: OTPM is evaluated in real time as tokens are produced, and max_tokens does not
// factor; tokenmix.ai/blog/claude-rate-exceeded-error-5-fixes-2026 verified it on 2026-06-04).
func (anthropic) atStart(c Call) llm.Quota {
	counted := c.Input - c.cached // For most models cached input does not count (the same page).
	return llm.Quota{Requests: 1, Input: counted, Tokens: counted, Output: 1}
}

func (anthropic) perOutput(tokens int) llm.Quota { return llm.Quota{Output: tokens, Tokens: tokens} }

// Cached input comes back. The first token was counted twice.
func (anthropic) atEnd(c Call, u llm.Usage) llm.Quota {
	return llm.Quota{Input: u.CacheRead - c.cached, Tokens: u.CacheRead - c.cached, Output: 1}
}

// The fields as recorded on 2025-08-21 (rdrr.io/cran/tidyllm, tests/testthat/claude): instants in RFC 3339. Remaining
// tokens are rounded to thousands (docs.claude.com/en/api/rate-limits).
func (anthropic) header(h http.Header, l *limits, now time.Time) {
	h.Set("Date", now.UTC().Format(http.TimeFormat))
	for name, b := range map[string]counter{"Requests": l.requests, "Tokens": l.tokens, "Input-Tokens": l.input, "Output-Tokens": l.output} {
		if b.size() == 0 {
			continue
		}
		remaining := b.remaining(now)
		if name != "Requests" {
			remaining = (remaining + 500) / 1000 * 1000
		}
		h.Set("Anthropic-Ratelimit-"+name+"-Limit", strconv.Itoa(b.size()))
		h.Set("Anthropic-Ratelimit-"+name+"-Remaining", strconv.Itoa(remaining))
		h.Set("Anthropic-Ratelimit-"+name+"-Reset", now.Add(b.untilFull(now)).UTC().Format(time.RFC3339))
	}
}

// A refusal says in whole seconds when to come back (the same page).
func (anthropic) refuse(w http.ResponseWriter, wait time.Duration) {
	if wait > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(int64((wait+time.Second-1)/time.Second), 10))
	}
	writeJSON(w, http.StatusTooManyRequests, object{"type": "error", "error": object{"type": "rate_limit_error", "message": "too many tokens"}})
}

// 529 is an overload, and says no time (docs.claude.com/en/api/errors).
func (anthropic) fail(w http.ResponseWriter, status int) {
	kind := "api_error"
	if status == 529 {
		kind = "overloaded_error"
	}
	writeJSON(w, status, object{"type": "error", "error": object{"type": kind, "message": "Overloaded"}})
}

// The events of a stream: message_start has the usage of the input, message_delta the output so far
// (docs.claude.com/en/docs/build-with-claude/streaming).
func (anthropic) answer(w *writer, _ *http.Request, c Call, u llm.Usage, next func() int) {
	message := func(content []object, stop any, output int) object {
		return object{
			"id": "msg_1", "type": "message", "role": "assistant", "model": "test", "content": content, "stop_reason": stop, "stop_sequence": nil,
			"usage": object{"input_tokens": u.Input, "cache_read_input_tokens": u.CacheRead, "cache_creation_input_tokens": 0, "output_tokens": output},
		}
	}
	if !c.Stream {
		w.whole(message([]object{{"type": "text", "text": all(next)}}, "end_turn", u.Output))
		return
	}
	w.begin("text/event-stream; charset=utf-8")
	sse(w, "message_start", object{"type": "message_start", "message": message([]object{}, nil, 1)})
	sse(w, "content_block_start", object{"type": "content_block_start", "index": 0, "content_block": object{"type": "text", "text": ""}})
	sse(w, "ping", object{"type": "ping"})
	for n := next(); n > 0; n = next() {
		sse(w, "content_block_delta", object{"type": "content_block_delta", "index": 0, "delta": object{"type": "text_delta", "text": text(n)}})
	}
	sse(w, "content_block_stop", object{"type": "content_block_stop", "index": 0})
	sse(w, "message_delta", object{"type": "message_delta", "delta": object{"stop_reason": "end_turn", "stop_sequence": nil}, "usage": object{"output_tokens": u.Output}})
	sse(w, "message_stop", object{"type": "message_stop"})
}

type gemini struct{ usual }

func (gemini) parse(r *http.Request, body []byte) (c Call, ok bool) {
	o := parseJSON(body)
	c.Most = o.in("generationConfig").number("maxOutputTokens") * max(1, o.in("generationConfig").number("candidateCount"))
	c.Stream = strings.HasSuffix(r.URL.Path, ":streamGenerateContent")
	return c, o != nil && (c.Stream || strings.HasSuffix(r.URL.Path, ":generateContent"))
}

// "Requests per minute (RPM), tokens per minute (input) (TPM)" (ai.google.dev/gemini-api/docs/rate-limits, as quoted in 2026).
func (gemini) atStart(c Call) llm.Quota {
	return llm.Quota{Requests: 1, Input: c.Input, Tokens: c.Input}
}

// A refusal says in its body when to come back, as in github.com/browserbase/mcp-server-browserbase/issues/129, 2025-11.
func (gemini) refuse(w http.ResponseWriter, wait time.Duration) {
	details := []object{{"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": []object{{
		"quotaMetric": "generativelanguage.googleapis.com/generate_content_paid_tier_input_token_count",
		"quotaId":     "GenerateContentPaidTierInputTokensPerModelPerMinute",
	}}}}
	if wait > 0 {
		seconds := strconv.FormatFloat(wait.Seconds(), 'f', -1, 64) + "s"
		details = append(details, object{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": seconds})
	}
	writeJSON(w, http.StatusTooManyRequests, object{"error": object{
		"code": http.StatusTooManyRequests, "message": "You exceeded your current quota.", "status": "RESOURCE_EXHAUSTED", "details": details,
	}})
}

func (gemini) fail(w http.ResponseWriter, status int) {
	writeJSON(w, status, object{"error": object{"code": status, "message": "The model is overloaded.", "status": "UNAVAILABLE"}})
}

// Each chunk of a stream has the usage so far. Without alt=sse the stream is an array of JSON
// (ai.google.dev/api/generate-content).
func (gemini) answer(w *writer, r *http.Request, c Call, u llm.Usage, next func() int) {
	prompt := u.Input + u.CacheRead
	chunk := func(answer string, output int, stop bool) []byte {
		candidate := object{"index": 0, "content": object{"role": "model", "parts": []object{{"text": answer}}}}
		if stop {
			candidate["finishReason"] = "STOP"
		}
		return encode(object{"candidates": []object{candidate}, "modelVersion": "test", "usageMetadata": object{
			"promptTokenCount": prompt, "cachedContentTokenCount": u.CacheRead, "candidatesTokenCount": output, "totalTokenCount": prompt + output,
		}})
	}
	if !c.Stream {
		answer := all(next)
		w.begin("application/json; charset=UTF-8")
		w.piece(chunk(answer, u.Output, true))
		return
	}
	before, between, after := "data: ", "\r\n\r\ndata: ", "\r\n\r\n"
	if r.URL.Query().Get("alt") == "sse" {
		w.begin("text/event-stream")
	} else {
		before, between, after = "[", ",\r\n", "]"
		w.begin("application/json; charset=UTF-8")
	}
	for n, sent := next(), 0; n > 0; n = next() {
		sent += n
		w.piece(append([]byte(before), chunk(text(n), sent, sent == u.Output)...))
		before = between
	}
	w.piece([]byte(after))
}

type bedrock struct{ usual }

// unbounded is the output that Bedrock reserves for a request without a bound: the most that the model can write,
// 64,000 tokens for Claude Sonnet (repost.aws/articles/ARfUsSkaWeSLiWZbv0OVSG1Q, read in 2026-11).
const unbounded = 64_000

func (bedrock) parse(r *http.Request, body []byte) (c Call, ok bool) {
	o := parseJSON(body)
	if c.Most = o.in("inferenceConfig").number("maxTokens"); c.Most == 0 {
		c.Most = unbounded
	}
	c.Stream = strings.HasSuffix(r.URL.Path, "/converse-stream")
	return c, o != nil && (c.Stream || strings.HasSuffix(r.URL.Path, "/converse"))
}

// A call reserves the input and max_tokens when it begins, and takes "InputTokenCount + CacheWriteInputTokens +
// (OutputTokenCount x burndown rate)" when it has ended (docs.aws.amazon.com/bedrock/latest/userguide/quotas-token-burndown.html, read in 2026-11).
func (bedrock) atStart(c Call) llm.Quota { return llm.Quota{Requests: 1, Tokens: c.Input + c.Most} }

func (bedrock) atEnd(c Call, u llm.Usage) llm.Quota {
	return llm.Quota{Tokens: c.Input + c.Most - u.Input - c.outputFactor*u.Output}
}

// A refusal does not say when to come back (docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Converse.html, errors).
func (bedrock) refuse(w http.ResponseWriter, _ time.Duration) {
	w.Header().Set("X-Amzn-Errortype", "ThrottlingException")
	writeJSON(w, http.StatusTooManyRequests, object{"message": "Too many tokens, please wait before trying again."})
}

func (bedrock) fail(w http.ResponseWriter, status int) {
	w.Header().Set("X-Amzn-Errortype", "ServiceUnavailableException")
	writeJSON(w, status, object{"message": http.StatusText(status)})
}

// A stream is a row of binary messages, the last of which has the usage
// (docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_ConverseStream.html).
func (bedrock) answer(w *writer, _ *http.Request, c Call, u llm.Usage, next func() int) {
	usage := object{
		"inputTokens": u.Input, "outputTokens": u.Output, "totalTokens": u.Input + u.CacheRead + u.Output,
		"cacheReadInputTokens": u.CacheRead, "cacheWriteInputTokens": 0,
	}
	if !c.Stream {
		content := []object{{"text": all(next)}}
		w.whole(object{
			"output": object{"message": object{"role": "assistant", "content": content}}, "stopReason": "end_turn",
			"usage": usage, "metrics": object{"latencyMs": 1},
		})
		return
	}
	w.begin("application/vnd.amazon.eventstream")
	w.piece(Message("messageStart", encode(object{"role": "assistant"})))
	for n := next(); n > 0; n = next() {
		w.piece(Message("contentBlockDelta", encode(object{"contentBlockIndex": 0, "delta": object{"text": text(n)}})))
	}
	w.piece(Message("messageStop", encode(object{"stopReason": "end_turn"})))
	w.piece(Message("metadata", encode(object{"usage": usage, "metrics": object{"latencyMs": 1}})))
}

// Message returns an event of application/vnd.amazon.eventstream with a JSON payload
// (docs.aws.amazon.com/lexv2/latest/dg/event-stream-encoding.html, read in 2026-11).
func Message(event string, payload []byte) []byte {
	var headers []byte
	for _, h := range [][2]string{{":event-type", event}, {":content-type", "application/json"}, {":message-type", "event"}} {
		headers = append(headers, byte(len(h[0])))
		headers = append(headers, h[0]...)
		headers = append(headers, 7) // a text
		headers = binary.BigEndian.AppendUint16(headers, uint16(len(h[1])))
		headers = append(headers, h[1]...)
	}
	const overhead = 16
	message := binary.BigEndian.AppendUint32(nil, uint32(overhead+len(headers)+len(payload)))
	message = binary.BigEndian.AppendUint32(message, uint32(len(headers)))
	message = binary.BigEndian.AppendUint32(message, crc32.ChecksumIEEE(message))
	message = append(message, headers...)
	message = append(message, payload...)
	return binary.BigEndian.AppendUint32(message, crc32.ChecksumIEEE(message))
}

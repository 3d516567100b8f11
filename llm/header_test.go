package llm_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/llm"
)

// fields makes a header of names and values in turn.
func fields(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

// Where the forms of fields come from.
const (
	openAIGuide    = "platform.openai.com/docs/guides/rate-limits, table of header fields, as quoted in 2026-11"
	openAIClient   = "openai-go v3.98.0, internal/requestconfig/requestconfig_test.go, 2026"
	azure          = "learn.microsoft.com/answers/questions/5625878, 2025-11"
	groq           = "console.groq.com/docs/rate-limits.md, 2026"
	mistral        = "rdrr.io/cran/tidyllm, its source, 2025"
	anthropicDocs  = "docs.claude.com/en/api/rate-limits, as quoted in 2026-06"
	anthropicSeen  = "rdrr.io/cran/tidyllm, tests/testthat/claude, recorded on 2025-08-21"
	geminiRefusal  = "github.com/browserbase/mcp-server-browserbase/issues/129, 2025-11"
	geminiWholeDay = "the research of this project: a limit per day, 2026"
	bedrockErrors  = "docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Converse.html, 2026-11"
	rfc9110        = "RFC 9110, section 10.2.3"
	ours           = "made up, as no server should send it"
)

func TestWhatIsLeft(t *testing.T) {
	for _, tt := range []struct {
		name, source string
		p            llm.Provider
		h            http.Header
		want         []llm.Left
	}{
		{
			"OpenAI", openAIGuide, llm.OpenAI,
			fields("x-ratelimit-limit-requests", "60", "x-ratelimit-limit-tokens", "150000",
				"x-ratelimit-remaining-requests", "59", "x-ratelimit-remaining-tokens", "149984",
				"x-ratelimit-reset-requests", "1s", "x-ratelimit-reset-tokens", "6m0s"),
			[]llm.Left{{llm.Requests, 60, 59}, {llm.Tokens, 150_000, 149_984}},
		},
		{
			"Azure, unknown", azure, llm.OpenAI,
			fields("x-ratelimit-limit-tokens", "-1", "x-ratelimit-remaining-tokens", "-1", "x-ratelimit-reset-tokens", "0"),
			nil,
		},
		{
			"Groq, where requests are per day", groq, llm.OpenAI,
			fields("x-ratelimit-limit-requests", "14400", "x-ratelimit-remaining-requests", "14370",
				"x-ratelimit-limit-tokens", "18000", "x-ratelimit-remaining-tokens", "17997"),
			[]llm.Left{{llm.Requests, 14_400, 14_370}, {llm.Tokens, 18_000, 17_997}},
		},
		{
			"Mistral", mistral, llm.OpenAI,
			fields("x-ratelimitbysize-limit-minute", "500000", "x-ratelimitbysize-remaining-minute", "499900", "ratelimitbysize-reset", "28"),
			[]llm.Left{{llm.Tokens, 500_000, 499_900}},
		},
		{
			"Anthropic", anthropicSeen, llm.Anthropic,
			fields("anthropic-ratelimit-input-tokens-limit", "80000", "anthropic-ratelimit-input-tokens-remaining", "80000",
				"anthropic-ratelimit-output-tokens-limit", "16000", "anthropic-ratelimit-output-tokens-remaining", "16000",
				"anthropic-ratelimit-requests-limit", "1000", "anthropic-ratelimit-requests-remaining", "999",
				"anthropic-ratelimit-tokens-limit", "96000", "anthropic-ratelimit-tokens-remaining", "96000"),
			[]llm.Left{{llm.Requests, 1000, 999}, {llm.Tokens, 96_000, 96_000}, {llm.Input, 80_000, 80_000}, {llm.Output, 16_000, 16_000}},
		},
		{"Gemini does not say", geminiRefusal, llm.Gemini, fields("x-ratelimit-remaining-tokens", "1"), nil},
		{"Bedrock does not say", bedrockErrors, llm.Bedrock, fields("x-ratelimit-remaining-tokens", "1"), nil},
		{"no limit said", ours, llm.OpenAI, fields("x-ratelimit-remaining-tokens", "7"), []llm.Left{{llm.Tokens, 0, 7}}},
		{"blanks", ours, llm.OpenAI, fields("x-ratelimit-remaining-tokens", " 7 "), []llm.Left{{llm.Tokens, 0, 7}}},
		{"no number", ours, llm.OpenAI, fields("x-ratelimit-remaining-tokens", "many"), nil},
		{"a fraction", ours, llm.OpenAI, fields("x-ratelimit-remaining-tokens", "7.5"), nil},
		{"too large", ours, llm.OpenAI, fields("x-ratelimit-remaining-tokens", "9223372036854775808"), nil},
		{"a malformed limit", ours, llm.OpenAI, fields("x-ratelimit-limit-tokens", "x", "x-ratelimit-remaining-tokens", "7"), nil},
		{"one of two", ours, llm.OpenAI, fields("x-ratelimit-remaining-requests", "x", "x-ratelimit-remaining-tokens", "0"), []llm.Left{{llm.Tokens, 0, 0}}},
		{"Cerebras", "inference-docs.cerebras.ai/support/rate-limits, 2026-11", llm.OpenAI, fields("x-ratelimit-limit-requests-day", "14400", "x-ratelimit-remaining-requests-day", "14000", "x-ratelimit-limit-tokens-minute", "60000", "x-ratelimit-remaining-tokens-minute", "59000"), []llm.Left{{llm.Tokens, 60_000, 59_000}}},
		{"nothing", ours, llm.Anthropic, nil, nil},
	} {
		require.Equal(t, tt.want, tt.p.Left(tt.h), "%s (%s)", tt.name, tt.source)
	}
}

// date is the instant of the responses below.
const date = "Thu, 21 Aug 2025 12:41:00 GMT"

func TestHowLongARefusalAsksToHoldBack(t *testing.T) {
	const (
		retryInfo = `{"error":{"code":429,"status":"RESOURCE_EXHAUSTED","details":[
			{"@type":"type.googleapis.com/google.rpc.Help","links":[{"url":"https://ai.google.dev/gemini-api/docs/rate-limits"}]},
			{"@type":"type.googleapis.com/google.rpc.QuotaFailure","violations":[{"quotaValue":"4000000"}]},
			{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"DELAY"}]}}`
	)
	delay := func(d string) string { return strings.Replace(retryInfo, "DELAY", d, 1) }
	for _, tt := range []struct {
		name, source string
		p            llm.Provider
		status       int
		h            http.Header
		body         string
		want         time.Duration
	}{
		{"milliseconds", openAIClient, llm.OpenAI, 429, fields("retry-after-ms", "125", "retry-after", "1"), "", 125 * time.Millisecond},
		{"milliseconds with a fraction", openAIClient, llm.OpenAI, 429, fields("retry-after-ms", "1.5"), "", 1500 * time.Microsecond},
		{"negative milliseconds", openAIClient, llm.OpenAI, 429, fields("retry-after-ms", "-1", "retry-after", "0.5"), "", 500 * time.Millisecond},
		{"seconds", rfc9110, llm.OpenAI, 429, fields("retry-after", "20"), "", 20 * time.Second},
		{"seconds with a fraction", openAIClient, llm.OpenAI, 429, fields("retry-after", "0.25"), "", 250 * time.Millisecond},
		{"no number", openAIClient, llm.OpenAI, 429, fields("retry-after", "NaN"), "", time.Second},
		{"infinite", openAIClient, llm.OpenAI, 429, fields("retry-after", "+Inf"), "", time.Second},
		{"more than there is", openAIClient, llm.OpenAI, 429, fields("retry-after", "1e100"), "", 365 * 24 * time.Hour},
		{"a date", rfc9110, llm.Anthropic, 429, fields("retry-after", "Thu, 21 Aug 2025 12:41:07 GMT"), "", 7 * time.Second},
		{"a date that has passed", rfc9110, llm.Anthropic, 429, fields("retry-after", "Thu, 21 Aug 2025 12:40:07 GMT"), "", time.Second},
		{"the reset of what is used up", openAIGuide, llm.OpenAI, 429, fields("x-ratelimit-remaining-requests", "0", "x-ratelimit-reset-requests", "1s"), "", time.Second},
		{"in minutes", openAIGuide, llm.OpenAI, 429, fields("x-ratelimit-remaining-tokens", "0", "x-ratelimit-reset-tokens", "6m0s"), "", 6 * time.Minute},
		{"in milliseconds", openAIGuide, llm.OpenAI, 429, fields("x-ratelimit-remaining-tokens", "0", "x-ratelimit-reset-tokens", "12ms"), "", 12 * time.Millisecond},
		{"with a fraction", groq, llm.OpenAI, 429, fields("x-ratelimit-remaining-tokens", "0", "x-ratelimit-reset-tokens", "2m59.56s"), "", 179_560 * time.Millisecond},
		{"in seconds without a unit", azure, llm.OpenAI, 429, fields("x-ratelimit-remaining-tokens", "0", "x-ratelimit-reset-tokens", "37"), "", 37 * time.Second},
		{"unknown", azure, llm.OpenAI, 429, fields("x-ratelimit-remaining-tokens", "-1", "x-ratelimit-reset-tokens", "0"), "", time.Second},
		{"what is not used up does not count", openAIGuide, llm.OpenAI, 429, fields("x-ratelimit-remaining-tokens", "10", "x-ratelimit-reset-tokens", "6m0s"), "", time.Second},
		{
			"the later of two", openAIGuide, llm.OpenAI, 429,
			fields("x-ratelimit-remaining-requests", "0", "x-ratelimit-reset-requests", "1s", "x-ratelimit-remaining-tokens", "0", "x-ratelimit-reset-tokens", "20s"),
			"", 20 * time.Second,
		},
		{
			"retry-after is nearer than the reset", groq, llm.OpenAI, 429,
			fields("retry-after", "2", "x-ratelimit-remaining-tokens", "0", "x-ratelimit-reset-tokens", "20s"), "", 2 * time.Second,
		},
		{"Mistral", mistral, llm.OpenAI, 429, fields("x-ratelimitbysize-remaining-minute", "0", "ratelimitbysize-reset", "28"), "", 28 * time.Second},
		{
			"RFC 3339", anthropicSeen, llm.Anthropic, 429,
			fields("anthropic-ratelimit-output-tokens-remaining", "0", "anthropic-ratelimit-output-tokens-reset", "2025-08-21T12:41:30Z"), "", 30 * time.Second,
		},
		{
			"RFC 3339 in the past", anthropicSeen, llm.Anthropic, 429,
			fields("anthropic-ratelimit-tokens-remaining", "0", "anthropic-ratelimit-tokens-reset", "2025-08-21T12:40:59Z"), "", time.Second,
		},
		{"Anthropic's retry-after", anthropicDocs, llm.Anthropic, 429, fields("retry-after", "13"), "", 13 * time.Second},
		{"overloaded", anthropicDocs, llm.Anthropic, 529, nil, `{"type":"error","error":{"type":"overloaded_error"}}`, 0},
		{"overloaded, with a time", ours, llm.Anthropic, 529, fields("retry-after", "5"), "", 5 * time.Second},
		{
			"an overload is no matter of limits", ours, llm.Anthropic, 529,
			fields("anthropic-ratelimit-tokens-remaining", "0", "anthropic-ratelimit-tokens-reset", "2025-08-21T12:41:30Z"), "", 0,
		},
		{"RetryInfo", geminiRefusal, llm.Gemini, 429, nil, delay("46s"), 46 * time.Second},
		{"RetryInfo with a fraction", geminiRefusal, llm.Gemini, 429, nil, delay("47.434392449s"), 47_434_392_449},
		{"RetryInfo of hours", geminiWholeDay, llm.Gemini, 429, nil, delay("10h17m5.7s"), 10*time.Hour + 17*time.Minute + 5700*time.Millisecond},
		{"RetryInfo in an array", ours, llm.Gemini, 429, nil, "[" + delay("46s") + "\n]", 46 * time.Second},
		{"RetryInfo of nothing", ours, llm.Gemini, 429, nil, delay("-4s"), time.Second},
		{"RetryInfo without a unit", ours, llm.Gemini, 429, nil, delay("46"), time.Second},
		{"another body", ours, llm.Gemini, 429, nil, "<html>", time.Second},
		{"an array of something else", ours, llm.Gemini, 429, nil, "[7]", time.Second},
		{"overloaded Gemini", geminiRefusal, llm.Gemini, 503, nil, `{"error":{"code":503,"status":"UNAVAILABLE"}}`, 0},
		{"Cerebras, per minute", "qwen-code#670", llm.OpenAI, 429, fields("x-ratelimit-reset-tokens-minute", "11.38"), "", 11_380 * time.Millisecond},
		{
			"Cerebras, of several limits", "inference-docs.cerebras.ai/support/rate-limits, 2026-11", llm.OpenAI, 429,
			fields("x-ratelimit-remaining-requests-day", "14000", "x-ratelimit-reset-requests-day", "33011.38", "x-ratelimit-remaining-tokens-minute", "0", "x-ratelimit-reset-tokens-minute", "11.38"),
			"", 11_380 * time.Millisecond,
		},
		{"Cerebras, a day that is not said to be used up", ours, llm.OpenAI, 429, fields("x-ratelimit-reset-requests-day", "33011.38"), "", time.Second},
		{"Cerebras, a day that is used up", ours, llm.OpenAI, 429, fields("x-ratelimit-remaining-requests-day", "0", "x-ratelimit-reset-requests-day", "33011"), "", 33_011 * time.Second},
		{"OpenRouter, in milliseconds since 1970", "withcoral/coral#89", llm.OpenAI, 429, fields("x-ratelimit-remaining", "0", "x-ratelimit-reset", "1755780072000"), "", 12 * time.Second},
		{
			"OpenRouter, in the body", "openrouter.ai/docs/api-reference/limits, 2026", llm.OpenAI, 429, nil,
			`{"error":{"message":"Rate limit exceeded: free-models-per-min","code":429,"metadata":{"headers":{"X-RateLimit-Limit":"20","X-RateLimit-Remaining":"0","X-RateLimit-Reset":"1755780072000"}}}}`, 12 * time.Second,
		},
		{"GitHub, in seconds since 1970", "RocketChat/docs-old#1358", llm.OpenAI, 429, fields("x-ratelimit-remaining", "0", "x-ratelimit-reset", "1755780072"), "", 12 * time.Second},
		{"a date", ours, llm.OpenAI, 429, fields("x-ratelimit-remaining", "0", "x-ratelimit-reset", "Thu, 21 Aug 2025 12:41:12 GMT"), "", 12 * time.Second},
		{"RateLimit", "huggingface.co/docs/hub/rate-limits, 2026; draft-ietf-httpapi-ratelimit-headers-11", llm.OpenAI, 429, fields("ratelimit", `"api";r=0;t=12`), "", 12 * time.Second},
		{"RateLimit, with something left", ours, llm.OpenAI, 429, fields("ratelimit", `"api";r=5;t=12`), "", time.Second},
		{"since 1970, in the past", ours, llm.OpenAI, 429, fields("x-ratelimit-remaining", "0", "x-ratelimit-reset", "1755780059"), "", time.Second},
		{"retry-after since 1970", ours, llm.OpenAI, 429, fields("retry-after", "1755780072"), "", 12 * time.Second},
		{
			"a time in the text", "decolua/9router#3612", llm.OpenAI, 429, nil,
			`{"error":{"message":"Rate limit reached for gpt-5 in organization org-x on tokens per min (TPM): Limit 30000, Used 30000. Please try again in 14.036s. Visit https://platform.openai.com","type":"tokens","code":"rate_limit_exceeded"}}`, 14_036 * time.Millisecond,
		},
		{"in the text, minutes", "sub2api#5658", llm.OpenAI, 429, nil, `{"error":{"message":"Please try again in 6m0s."}}`, 6 * time.Minute},
		{"in the text, milliseconds", ours, llm.OpenAI, 429, nil, `{"error":{"message":"Please try again in 360ms."}}`, 360 * time.Millisecond},
		{"in the text, in words", azure, llm.OpenAI, 429, nil, `{"error":{"code":"429","message":"Requests have exceeded call rate limit. Please retry after 26 seconds."}}`, 26 * time.Second},
		{"in the text, an error that is a text", ours, llm.OpenAI, 429, nil, `{"error":"slow down, retry in 2 minutes"}`, 2 * time.Minute},
		{"in the text, at the root", ours, llm.Bedrock, 429, nil, `{"message":"Too many requests, please wait 12 seconds"}`, 12 * time.Second},
		{"a number in the text that is no time", ours, llm.OpenAI, 429, nil, `{"error":{"message":"Limit 30000. Please try again later than 3 calls"}}`, time.Second},
		{"a field counts before the text", ours, llm.OpenAI, 429, fields("retry-after", "3"), `{"error":{"message":"Please try again in 14s."}}`, 3 * time.Second},
		{"the text of an overload", ours, llm.OpenAI, 503, nil, `{"error":{"message":"Please try again in 14s."}}`, 0},

		{"a quota that is used up", "2389-research/tracker#547", llm.OpenAI, 429, nil, `{"error":{"message":"You exceeded your current quota, please check your plan and billing details.","type":"insufficient_quota","param":null,"code":"insufficient_quota"}}`, 0},
		{"a limit of billing", "NousResearch/hermes-agent#93455", llm.OpenAI, 429, nil, `{"error":{"code":"billing_hard_limit_reached"}}`, 0},
		{"a plan that is used up", "senpi#1969", llm.OpenAI, 429, fields("retry-after", "5"), `{"error":{"type":"usage_limit_reached","message":"The usage limit has been reached","resets_in_seconds":5}}`, 0},
		{"x-should-retry: false", openAIClient, llm.OpenAI, 429, fields("x-should-retry", "false", "retry-after", "5"), "", 0},
		{"x-should-retry: true", openAIClient, llm.OpenAI, 429, fields("x-should-retry", "true", "retry-after", "5"), "", 5 * time.Second},
		{"x-should-retry: false, of an overload", openAIClient, llm.Anthropic, 529, fields("x-should-retry", "false", "retry-after", "5"), "", 0},
		{"RESOURCE_EXHAUSTED without RetryInfo", "google-gemini/gemini-cli#22994", llm.Gemini, 429, nil, `{"error":{"code":429,"message":"Your prepayment credits are depleted.","status":"RESOURCE_EXHAUSTED"}}`, 0},
		{"and in an array", "promptfoo#10866", llm.Gemini, 429, nil, `[{"error":{"code":429,"message":"Resource has been exhausted (e.g. check quota).","status":"RESOURCE_EXHAUSTED"}}]`, 0},
		{"Vertex AI asks to try again", "google-gemini/gemini-cli#14811", llm.Gemini, 429, nil, `{"error":{"code":429,"message":"Resource exhausted. Please try again later.","status":"RESOURCE_EXHAUSTED"}}`, time.Second},
		{
			"the requests of a day", "google-gemini/gemini-cli#10925", llm.Gemini, 429, nil,
			strings.Replace(delay("46s"), `{"quotaValue":"4000000"}`, `{"quotaId":"GenerateRequestsPerDayPerProjectPerModel-FreeTier","quotaValue":"50"}`, 1), 0,
		},
		{"Bedrock", bedrockErrors, llm.Bedrock, 429, fields("x-amzn-errortype", "ThrottlingException"), `{"message":"Too many tokens"}`, time.Second},
		{"an answer", ours, llm.OpenAI, 200, fields("retry-after", "20"), "", 0},
		{"an error", ours, llm.OpenAI, 500, fields("retry-after", "20"), "", 0},
	} {
		for _, compressed := range []bool{false, true} {
			h := tt.h.Clone()
			if h == nil {
				h = http.Header{}
			}
			h.Set("Date", date)
			sent := tt.body
			if compressed {
				h.Set("Content-Encoding", "gzip")
				sent = zipped(tt.body)
			}
			r := &http.Response{StatusCode: tt.status, Header: h, Body: io.NopCloser(strings.NewReader(sent))}
			require.Equal(t, tt.want, tt.p.HoldFor(r), "%s (%s)", tt.name, tt.source)
			read, err := io.ReadAll(r.Body)
			require.NoError(t, err)
			require.Equal(t, sent, string(read), tt.name)
		}
	}
}

func zipped(text string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write([]byte(text)) // A Buffer never fails.
	_ = z.Close()
	return b.String()
}

// A body that is long or that fails can be read as if nobody had looked at it.
func TestARefusalStaysReadable(t *testing.T) {
	long := `{"error":{}}` + strings.Repeat(" ", 1<<20)
	r := &http.Response{StatusCode: 429, Header: http.Header{}, Body: io.NopCloser(io.MultiReader(strings.NewReader(long), iotest.ErrReader(errBroken)))}
	require.Equal(t, time.Second, llm.Gemini.HoldFor(r))
	read, err := io.ReadAll(r.Body)
	require.Equal(t, errBroken, err)
	require.True(t, long == string(read))

	r.Body = nil
	require.Equal(t, time.Second, llm.Gemini.HoldFor(r))
}

func FuzzHoldFor(f *testing.F) {
	f.Add(429, "20", "1.5", "0", "6m0s", `{"error":{"details":[{"@type":"google.rpc.RetryInfo","retryDelay":"46s"}]}}`)
	f.Add(529, date, "", "0", "2025-08-21T12:41:30Z", "[")
	f.Add(429, "-1", "1e999", "0", "9223372036854775808", "")
	f.Add(429, "1755780072", "", "", "11.38", `{"error":{"code":429,"message":"try again in 6m0s","metadata":{"headers":{"x-ratelimit-reset":"1755780072000"}}}}`)
	f.Add(429, "", "", "", "", `{"error":"retry after 26 seconds","type":[],"response":7}`)
	f.Fuzz(func(t *testing.T, status int, after, afterMs, remaining, reset, body string) {
		for name, p := range providers {
			h := fields("Retry-After", after, "Retry-After-Ms", afterMs, "Date", date,
				"X-Ratelimit-Remaining-Tokens", remaining, "X-Ratelimit-Reset-Tokens", reset,
				"Anthropic-Ratelimit-Tokens-Remaining", remaining, "Anthropic-Ratelimit-Tokens-Reset", reset)
			r := &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(body))}
			d := p.HoldFor(r)
			require.True(t, 0 <= d && d <= 365*24*time.Hour, "%v", d)
			if status != 429 && status != 503 && status != 529 {
				require.Zero(t, d, name)
			}
			read, err := io.ReadAll(r.Body)
			require.NoError(t, err)
			require.Equal(t, body, string(read))
		}
	})
}

func FuzzUntilReset(f *testing.F) {
	for _, text := range []string{"1s", "6m0s", "12ms", "-1s", "37", "1e300", "2025-08-21T12:41:30Z", "9999-12-31T23:59:59+23:59", "NaN", "0x1p-2"} {
		f.Add(text)
	}
	now := time.Date(2025, 8, 21, 12, 41, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, text string) {
		for _, parse := range []func(string, time.Time) time.Duration{llm.UntilReset, llm.RetryAfter} {
			d := parse(text, now)
			require.True(t, 0 <= d && d <= 365*24*time.Hour, "%v", d)
		}
		if d, err := time.ParseDuration(text); err == nil && d > 0 && d < time.Hour {
			require.Equal(t, d, llm.UntilReset(text, now))
		}
	})
}

func FuzzLeft(f *testing.F) {
	f.Add("60", "59")
	f.Add("-1", "-1")
	f.Add("", "9223372036854775808")
	f.Fuzz(func(t *testing.T, limit, remaining string) {
		for _, p := range providers {
			for _, l := range p.Left(fields("X-Ratelimit-Limit-Tokens", limit, "X-Ratelimit-Remaining-Tokens", remaining,
				"Anthropic-Ratelimit-Tokens-Limit", limit, "Anthropic-Ratelimit-Tokens-Remaining", remaining)) {
				require.Equal(t, llm.Tokens, l.Kind)
				require.GreaterOrEqual(t, l.Limit, 0)
				require.GreaterOrEqual(t, l.Remaining, 0)
			}
		}
	})
}

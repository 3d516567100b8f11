package llm

import (
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// A Provider describes how an API counts tokens and reports them. For an API that differs from
// the ones here, copy a similar one and replace a function. A function may be nil: without
// Estimate a call costs a request's share, without Usage the estimate stands.
//
// [OpenAI] charges calls at their start and refunds nothing. For a compatible API that has
// rate-limit headers, and counts the usage, such as Groq's, replace Counts and Counted:
//
//	groq := llm.OpenAI
//	groq.Counts = llm.AsUsed
//	groq.Counted = func(u llm.Usage) llm.Usage {
//		u.CacheRead = 0 // "Cached tokens do not count towards your rate limits."
//		return u
//	}
type Provider struct {
	// Estimate returns the most that a call may use, by the body of its request. It leaves the body
	// readable, byte for byte. A request for which it returns an error is not sent, and fails with
	// [shaper.ErrNegativeCost]. Of a body without GetBody only the first 1 MiB is read before it is sent. The rest is scanned as
	// it passes, so Estimate may be called again when it has passed, and returns what the whole asks for.
	Estimate func(*http.Request) (Usage, error)

	// Counted returns the part of a usage that counts towards the provider's limits, for example
	// without the tokens that were read from a cache. It is applied to estimates and to reported
	// usage. A negative number counts as 0. nil means that everything counts.
	Counted func(Usage) Usage

	// Counts says when the provider counts a call.
	Counts Counting

	// OutputFactor returns how many tokens the provider counts for a token of a model's output, when a call has ended. nil means
	// 1 for each model.
	OutputFactor func(model string) int

	// Usage returns the usage in a JSON body or in one event of a stream; ok reports whether there is any.
	// Of a stream the last event with usage counts. Where it has 0, the number of an earlier event
	// stands, because some APIs report the input first and the output last.
	Usage func(event []byte) (u Usage, ok bool)

	// Left returns the remaining amounts in the rate-limit headers of a response, without the
	// malformed ones.
	Left func(http.Header) []Left

	// HoldFor returns for how long a response asks callers to hold back; 0: it does not, or no wait cures what it is about, such as
	// a credit that is used up. It leaves the body readable. Of a refusal the first 64 KiB are read, for at most 5 seconds.
	HoldFor func(*http.Response) time.Duration
}

// A Counting says when a provider counts the tokens of a call, and what comes back when it has ended.
type Counting int

const (
	// AsUsed counts a call as if its usage had been known when it began. Output may count as it is produced.
	AsUsed Counting = iota

	// AtStart counts what a call asks for when it begins, and nothing comes back: the estimate stands, if the response has
	// rate-limit headers. A response without them is from a compatible server, and its call settles with the whole usage.
	AtStart

	// Returned counts what a call asks for when it begins. What was too much comes back when it has ended, also what has drained
	// meanwhile.
	Returned

	// Rolling counts as AsUsed, in each rolling minute: the provider has no bucket that drains.
	Rolling
)

// A Kind names a limit.
type Kind string

// The limits that a provider may have, as in [Quota].
const (
	Requests Kind = "requests"
	Tokens   Kind = "tokens"
	Input    Kind = "input-tokens"
	Output   Kind = "output-tokens"
)

// A Left is the remaining amount of a limit, by a response.
type Left struct {
	Kind      Kind
	Limit     int // per a span that need not be a minute; 0: unknown
	Remaining int
}

// Scarcest returns the smallest remaining amount, in cost units of q, for [shaper.Shaper.AtMost]; ok reports
// whether any is known. A limit that q does not have is left out, as calls cost no share of it.
func (q Quota) Scarcest(left []Left) (n int, ok bool) {
	n = math.MaxInt
	for _, l := range left {
		if limit := q.of(l.Kind); limit > 0 && l.Remaining >= 0 {
			n, ok = min(n, share(l.Remaining, limit)), true
		}
	}
	return n, ok
}

// of returns the limit of a kind, 0 if there is none.
func (q Quota) of(k Kind) int {
	switch k {
	case Requests:
		return q.Requests
	case Tokens:
		return q.Tokens
	case Input:
		return q.Input
	case Output:
		return q.Output
	}
	return 0
}

// A count is an integer of at least 0 in a JSON document, which may be written as 120, 120.0 or 1.2e2: JSON has one type of
// number. Anything else, such as a negative number, a fraction, a text, or an overflow, is unknown, and does not keep the rest
// of the document from being read.
type count struct {
	n     int
	known bool
}

// UnmarshalJSON never returns an error.
func (c *count) UnmarshalJSON(text []byte) error {
	*c = count{}
	n, err := strconv.Atoi(string(text))
	if err != nil {
		const most = 1 << 53 // A larger float need not be the integer that was written.
		f, err := strconv.ParseFloat(string(text), 64)
		if n = int(f); err != nil || !(f >= 0 && f < most) || float64(n) != f {
			return nil
		}
	}
	if n >= 0 {
		*c = count{n: n, known: true}
	}
	return nil
}

// A ceiling is the most output tokens that a request allows; 0 if it is missing or malformed. A
// number that overflows is the largest int: Quota.Cost bounds it.
type ceiling int

// UnmarshalJSON never returns an error.
func (c *ceiling) UnmarshalJSON(text []byte) error {
	if n, _ := strconv.ParseFloat(string(text), 64); n > 0 { // It is 0 for a text that is no number, and infinite for an overflow.
		*c = math.MaxInt
		if n < math.MaxInt32 {
			*c = ceiling(math.Ceil(n))
		}
	}
	return nil
}

// decode reads a JSON document, and reports whether it is one. A field of an unexpected type does
// not keep the others from being read.
func decode(document []byte, into any) bool {
	err := json.Unmarshal(document, into)
	if _, mistyped := err.(*json.UnmarshalTypeError); mistyped {
		return true
	}
	return err == nil
}

// without returns total − part, but at least 0.
func without(total, part int) int { return max(0, total-max(0, part)) }

// OpenAI is the API of OpenAI: Chat Completions, Responses, Completions and Embeddings. Azure, Groq, Mistral
// and many others have APIs of the same form.
//
// OpenAI charges a call at its start and refunds nothing. So the estimate stands, and more calls
// fit only with a smaller max_completion_tokens. A body without any is counted by its length
// alone. A response without rate-limit headers is from a compatible server, such as vLLM or
// Ollama, and its call settles with the reported usage. Others count in other ways:
//
//   - Azure adds the prompt to max_tokens, so let Counted be nil;
//   - Groq counts the usage without cached tokens, so replace Counts and Counted as shown at [Provider].
//
// A stream of Chat Completions reports usage only if stream_options.include_usage is set.
var OpenAI = Provider{
	Estimate: func(r *http.Request) (Usage, error) {
		input, a, err := asked(r, openAITariff)
		return Usage{Input: input, Output: times(a.most, a.times)}, err
	},

	// "Your rate limit is calculated as the maximum of max_tokens and the estimated number of tokens
	// based on the character count of your request" (platform.openai.com/docs/guides/rate-limits, as
	// quoted in 2026-11). With n=100 it is a hundred times max_tokens
	// (community.openai.com/t/token-per-minute-rate-limit-for-gpt4-issues/360359, 2023-09).
	Counted: func(u Usage) Usage {
		input := sum(u.Input, u.CacheRead, u.CacheWrite)
		return Usage{Input: input, Output: without(u.Output, input)}
	},

	Counts: AtStart,

	Usage: usageAt(openAIPlaces),

	Left: func(h http.Header) []Left { return leftOf(h, openAIFields) },

	HoldFor: func(r *http.Response) time.Duration { return holdFor(r, openAIFields) },
}

// A reset is a Go duration, as in 1s, 6m0s or 12ms, until the limit is full again. Azure was
// seen to send a number of seconds (learn.microsoft.com/answers/questions/5625878, 2025-11), as
// does Mistral (tidyllm's source, 2025). The third row has Mistral's fields.
var openAIFields = []limitFields{
	{Requests, "X-Ratelimit-Limit-Requests", "X-Ratelimit-Remaining-Requests", "X-Ratelimit-Reset-Requests"},
	{Tokens, "X-Ratelimit-Limit-Tokens", "X-Ratelimit-Remaining-Tokens", "X-Ratelimit-Reset-Tokens"},
	{Tokens, "X-Ratelimitbysize-Limit-Minute", "X-Ratelimitbysize-Remaining-Minute", "Ratelimitbysize-Reset"},
	perSpan(Requests, "Requests-Minute"), perSpan(Tokens, "Tokens-Minute"), // Cerebras, in seconds: qwen-code#670
}

// Anthropic is the Messages API of Anthropic. It counts requests, input and output, in a
// [Quota]'s Requests, Input and Output. Cache reads do not count, for most models.
//
// Anthropic counts output as it is produced, whatever max_tokens is. So Estimate, which reserves
// max_tokens, reserves too much until the call has ended. If answers are much shorter, let [Estimates] learn how long they are.
var Anthropic = Provider{
	Estimate: func(r *http.Request) (Usage, error) {
		input, a, err := asked(r, anthropicTariff)
		return Usage{Input: input, Output: int(a.most)}, err
	},

	// "cache_read_input_tokens do not count towards ITPM" for most models; input_tokens and
	// cache_creation_input_tokens do; OTPM is "evaluated in real time" and "max_tokens does not
	// factor" (docs.claude.com/en/api/rate-limits, as quoted in 2026-06).
	Counted: func(u Usage) Usage {
		u.CacheRead = 0
		return u
	},

	Usage: usageAt(anthropicPlaces),

	Left: func(h http.Header) []Left { return leftOf(h, anthropicFields) },

	HoldFor: func(r *http.Response) time.Duration { return holdFor(r, anthropicFields) },
}

// The fields as seen on 2025-08-21 (tidyllm's recorded answers): numbers, and instants in
// RFC 3339. Remaining tokens are rounded to thousands.
var anthropicFields = []limitFields{anthropicField(Requests), anthropicField(Tokens), anthropicField(Input), anthropicField(Output)}

func anthropicField(k Kind) limitFields {
	field := "Anthropic-Ratelimit-" + string(k)
	return limitFields{k, field + "-Limit", field + "-Remaining", field + "-Reset"}
}

// Gemini is the API of Gemini, of Google's AI Studio and of Vertex AI. It counts requests and input, in a
// [Quota]'s Requests and Input. A Quota has no limits per day; a refusal says if one is used up.
var Gemini = Provider{
	Estimate: func(r *http.Request) (Usage, error) {
		input, a, err := asked(r, geminiTariff)
		return Usage{Input: input, Output: times(a.most, a.times)}, err
	},

	// Limits are "requests per minute (RPM), tokens per minute (input) (TPM), requests per day (RPD)"
	// (ai.google.dev/gemini-api/docs/rate-limits, as quoted in 2026). The name of the metric in a
	// refusal is generate_content_paid_tier_input_token_count
	// (github.com/browserbase/mcp-server-browserbase/issues/129, 2025-11).
	Counted: func(u Usage) Usage {
		u.Output = 0
		return u
	},

	Counts: Rolling, // "If your RPM limit is 20, making 21 requests within a minute will result in an error" (the same page).

	Usage: usageAt(geminiPlaces),

	Left: func(http.Header) []Left { return nil }, // Gemini does not say.

	HoldFor: func(r *http.Response) time.Duration { return holdFor(r, nil) },
}

// bedrockOutput is the output that Bedrock reserves for a request without a bound: the most that
// the model can write, 64,000 tokens for Claude Sonnet
// (repost.aws/articles/ARfUsSkaWeSLiWZbv0OVSG1Q, read in 2026-11).
const bedrockOutput = 64_000

// Bedrock is the runtime of Amazon Bedrock: Converse and InvokeModel, plain and streamed. It
// counts requests and tokens, in a [Quota]'s Requests and Tokens. It reserves the input and the
// most tokens of the answer when a call begins, and settles when the call ends. So bound the answer: a request without
// a bound is taken to reserve 64,000 tokens.
//
// For some models an output token counts as 5 when the call has ended (OutputFactor).
var Bedrock = Provider{
	Estimate: func(r *http.Request) (Usage, error) {
		input, a, err := asked(r, anthropicTariff)
		output := a.most
		if output == 0 && r.URL != nil && isInference(r.URL.Path) {
			output = bedrockOutput
		}
		return Usage{Input: input, Output: int(output)}, err
	},

	// At the end of a call "InputTokenCount + CacheWriteInputTokens + (OutputTokenCount x burndown rate)" count
	// (docs.aws.amazon.com/bedrock/latest/userguide/quotas-token-burndown.html, read in 2026-11).
	Counted: func(u Usage) Usage {
		u.CacheRead = 0
		return u
	},

	Counts: Returned,

	OutputFactor: bedrockFactor,

	Usage: func(event []byte) (u Usage, ok bool) {
		if u, ok = usageOfBedrock(event); ok {
			return u, ok
		}
		inner, wrapped := unwrapped(event, nil) // InvokeModelWithResponseStream wraps the model's events.
		if wrapped == nil {
			return Usage{}, false
		}
		return usageOfBedrock(inner)
	},

	Left: func(http.Header) []Left { return nil }, // Bedrock does not say.

	HoldFor: func(r *http.Response) time.Duration { return holdFor(r, nil) },
}

// bedrockFactor returns the burndown rate of a model's output: 5 for Claude 3.7 Sonnet, Sonnet 4 and Opus 4, and 1 for all others
// (docs.aws.amazon.com/bedrock/latest/userguide/quotas-token-burndown.html, read in 2026-11). Later ones of Claude are taken to
// have it, too: a factor that is too great costs some of the quota, and one that is too small brings refusals.
func bedrockFactor(model string) int {
	_, claude, ok := strings.Cut(model, "anthropic.claude-")
	if !ok {
		return 1
	}
	for _, before := range []string{"v2", "instant", "3-haiku", "3-sonnet", "3-opus", "3-5-"} {
		if strings.HasPrefix(claude, before) {
			return 1
		}
	}
	return 5
}

// isInference reports whether a path is a call of a model that writes an answer. Models that embed or rank texts
// write none. They are known by their names: amazon.titan-embed-text-v2:0, cohere.embed-english-v3, amazon.rerank-v1:0
// (github.com/onyx-dot-app/onyx/issues/4730, github.com/logancyang/obsidian-copilot/discussions/2383).
func isInference(path string) bool {
	if strings.Contains(path, "embed") || strings.Contains(path, "rerank") {
		return false
	}
	for _, end := range []string{"/converse", "/converse-stream", "/invoke", "/invoke-with-response-stream"} {
		if strings.HasSuffix(path, end) {
			return true
		}
	}
	return false
}

var usageOfBedrock = usageAt(bedrockPlaces)

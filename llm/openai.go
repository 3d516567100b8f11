package llm

import (
	"net/http"
	"time"
)

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

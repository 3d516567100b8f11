package llm

import (
	"bytes"
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
		input, a, err := asked(r)
		most := max(a.MaxTokens, a.MaxCompletionTokens, a.MaxOutputTokens)
		return Usage{Input: input, Output: times(most, max(a.N, a.BestOf))}, err
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

	Usage: func(event []byte) (u Usage, ok bool) {
		if !bytes.Contains(event, []byte(`"usage"`)) {
			return Usage{}, false // Most events of a stream need no decoding.
		}
		var e struct {
			Object   string
			Usage    openAIUsage
			Response struct{ Usage openAIUsage } // the events response.completed and the like
		}
		if !decode(event, &e) || e.Object == "batch" { // A batch has the usage of all its calls, whose limits are others.
			return Usage{}, false
		}
		if u, ok = e.Usage.usage(); ok {
			return u, true
		}
		return e.Response.Usage.usage()
	},

	Left: func(h http.Header) []Left { return leftOf(h, openAIFields) },

	HoldFor: func(r *http.Response) time.Duration { return holdFor(r, openAIFields, nil) },
}

// A reset is a Go duration, as in 1s, 6m0s or 12ms, until the limit is full again. Azure was
// seen to send a number of seconds (learn.microsoft.com/answers/questions/5625878, 2025-11), as
// does Mistral (tidyllm's source, 2025). The last row has Mistral's fields.
var openAIFields = []limitFields{
	{Requests, "X-Ratelimit-Limit-Requests", "X-Ratelimit-Remaining-Requests", "X-Ratelimit-Reset-Requests"},
	{Tokens, "X-Ratelimit-Limit-Tokens", "X-Ratelimit-Remaining-Tokens", "X-Ratelimit-Reset-Tokens"},
	{Tokens, "X-Ratelimitbysize-Limit-Minute", "X-Ratelimitbysize-Remaining-Minute", "Ratelimitbysize-Reset"},
}

// An openAIUsage has the names of Chat Completions and of Responses.
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

package llm

import (
	"net/http"
	"time"
)

// Anthropic is the Messages API of Anthropic. It counts requests, input and output, in a
// [Quota]'s Requests, Input and Output. Cache reads do not count, for most models.
//
// Anthropic counts output as it is produced, whatever max_tokens is. So Estimate, which reserves
// max_tokens, reserves too much until the call has ended. If answers are much shorter, replace
// Estimate by a function whose Output is about the usual length of an answer.
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

package llm

import (
	"bytes"
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
		input, a, err := asked(r)
		return Usage{Input: input, Output: int(max(a.MaxTokens, a.MaxTokensToSample))}, err
	},

	// "cache_read_input_tokens do not count towards ITPM" for most models; input_tokens and
	// cache_creation_input_tokens do; OTPM is "evaluated in real time" and "max_tokens does not
	// factor" (docs.claude.com/en/api/rate-limits, as quoted in 2026-06).
	Counted: func(u Usage) Usage {
		u.CacheRead = 0
		return u
	},

	Usage: anthropicUsage,

	Left: func(h http.Header) []Left { return leftOf(h, anthropicFields) },

	HoldFor: func(r *http.Response) time.Duration { return holdFor(r, anthropicFields, nil) },
}

// The fields as seen on 2025-08-21 (tidyllm's recorded answers): numbers, and instants in
// RFC 3339. Remaining tokens are rounded to thousands.
var anthropicFields = []limitFields{anthropicField(Requests), anthropicField(Tokens), anthropicField(Input), anthropicField(Output)}

func anthropicField(k Kind) limitFields {
	field := "Anthropic-Ratelimit-" + string(k)
	return limitFields{k, field + "-Limit", field + "-Remaining", field + "-Reset"}
}

// anthropicUsage reads the usage of a message, the input in the event message_start, and the output so far
// in message_delta, which may repeat the input. The output in message_start is a first token or
// two. It is left out: a stream that breaks off must not settle with that.
func anthropicUsage(event []byte) (u Usage, ok bool) {
	if !bytes.Contains(event, []byte(`"usage"`)) {
		return Usage{}, false
	}
	type usage struct {
		Input      count `json:"input_tokens"`
		Output     count `json:"output_tokens"`
		CacheRead  count `json:"cache_read_input_tokens"`
		CacheWrite count `json:"cache_creation_input_tokens"`
	}
	var e struct {
		Type    string
		Usage   usage
		Message struct{ Usage usage }
	}
	if !decode(event, &e) {
		return Usage{}, false
	}
	reported := e.Usage
	if e.Type == "message_start" {
		reported = e.Message.Usage
		reported.Output.n = 0
		ok = reported.Input.known
	} else {
		ok = reported.Output.known && (reported.Input.known || e.Type == "message_delta")
	}
	if !ok {
		return Usage{}, false
	}
	return Usage{
		Input: reported.Input.n, Output: reported.Output.n,
		CacheRead: reported.CacheRead.n, CacheWrite: reported.CacheWrite.n,
	}, true
}

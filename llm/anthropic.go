package llm

import (
	"bytes"
	"net/http"
	"time"
)

// Anthropic is the Messages API of Anthropic. It counts requests, input and output, in a
// [Quota]'s Requests, Input and Output. Cache reads do not count, for most models.
//
// Output counts as it is produced, and max_tokens does not matter to Anthropic. So to reserve
// max_tokens, as Estimate does, is to reserve too much until the call has ended. If answers
// are much shorter than that, replace Estimate by one whose Output is about what answers take.
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
// RFC 3339. What remains of tokens is rounded to thousands.
var anthropicFields = []limitFields{anthropicField(Requests), anthropicField(Tokens), anthropicField(Input), anthropicField(Output)}

func anthropicField(k Kind) limitFields {
	field := "Anthropic-Ratelimit-" + string(k)
	return limitFields{k, field + "-Limit", field + "-Remaining", field + "-Reset"}
}

// anthropicUsage reads the usage of a message, of the event message_start, which has that of the input, and
// of message_delta, which has that of the output so far and may repeat the input. The output
// that message_start tells is a first token or two, so it is left out: a stream that breaks off
// must not settle with that.
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

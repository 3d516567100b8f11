package llm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// Gemini is the API of Gemini, of Google's AI Studio and of Vertex AI. It counts requests and input, in a
// [Quota]'s Requests and Input. A Quota has no limits per day; a refusal says if one is used up.
var Gemini = Provider{
	Estimate: func(r *http.Request) (Usage, error) {
		input, a, err := asked(r)
		return Usage{Input: input, Output: times(a.GenerationConfig.MaxOutputTokens, a.GenerationConfig.CandidateCount)}, err
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

	// In a stream each chunk has the usage so far. The prompt includes cached tokens, and the
	// candidates do not include thoughts
	// (hexdocs.pm/geminix/Geminix.V1beta.UsageMetadata.html, 2025).
	Usage: func(event []byte) (u Usage, ok bool) {
		if !bytes.Contains(event, []byte(`"usageMetadata"`)) {
			return Usage{}, false
		}
		var e struct {
			UsageMetadata struct {
				Prompt     count `json:"promptTokenCount"`
				Tools      count `json:"toolUsePromptTokenCount"`
				Candidates count `json:"candidatesTokenCount"`
				Thoughts   count `json:"thoughtsTokenCount"`
				Cached     count `json:"cachedContentTokenCount"`
				Total      count `json:"totalTokenCount"`
			}
		}
		if !decode(event, &e) {
			return Usage{}, false
		}
		m := e.UsageMetadata
		if !m.Prompt.known || !m.Candidates.known && !m.Total.known {
			return Usage{}, false
		}
		read := min(m.Cached.n, m.Prompt.n)
		input := sum(m.Prompt.n-read, m.Tools.n)
		output := sum(m.Candidates.n, m.Thoughts.n)
		if !m.Candidates.known {
			output = without(m.Total.n, sum(input, read))
		}
		return Usage{Input: input, CacheRead: read, Output: output}, true
	},

	Left: func(http.Header) []Left { return nil }, // Gemini does not say.

	HoldFor: func(r *http.Response) time.Duration { return holdFor(r, nil, retryInfo) },
}

// retryInfo returns the time of a google.rpc.RetryInfo in the body of a refusal, as in 5.7s or 10h17m5.7s. The
// body may be an array of one element, as for a stream without alt=sse.
func retryInfo(body []byte) time.Duration {
	var refusals []struct {
		Error struct {
			Details []struct {
				Type       string `json:"@type"`
				RetryDelay string
			}
		}
	}
	if body = bytes.TrimSpace(body); !bytes.HasPrefix(body, []byte("[")) {
		body = fmt.Appendf(nil, "[%s]", body)
	}
	if json.Unmarshal(body, &refusals) != nil {
		return 0
	}
	longest := time.Duration(0)
	for _, r := range refusals {
		for _, d := range r.Error.Details {
			if strings.HasSuffix(d.Type, "google.rpc.RetryInfo") {
				span, _ := goDuration(d.RetryDelay)
				longest = max(longest, span)
			}
		}
	}
	return longest
}

package llm

import (
	"net/http"
	"time"
)

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

package llm

import (
	"net/http"
	"strings"
	"time"
)

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

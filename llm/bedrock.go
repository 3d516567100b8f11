package llm

import (
	"bytes"
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
		input, a, err := asked(r)
		output := max(a.InferenceConfig.MaxTokens, a.InferenceConfig.MaxNewTokens, a.MaxTokens, a.MaxTokensToSample,
			a.MaxGenLen, a.TextGenerationConfig.MaxTokenCount)
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
		if u, ok = bedrockUsage(event); ok || !bytes.Contains(event, []byte(`"bytes"`)) {
			return u, ok
		}
		// InvokeModelWithResponseStream wraps the model's events.
		var e struct{ Bytes []byte }
		if !decode(event, &e) {
			return Usage{}, false
		}
		return bedrockUsage(e.Bytes)
	},

	Left: func(http.Header) []Left { return nil }, // Bedrock does not say.

	HoldFor: func(r *http.Response) time.Duration { return holdFor(r, nil, nil) },
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

// bedrockUsage reads the usage of Converse, of its event metadata, of a model of Anthropic's, or the metrics that
// Bedrock adds to the last event of a model. Input tokens do not include cached ones
// (github.com/anomalyco/opencode/pull/38427, 2026).
func bedrockUsage(event []byte) (u Usage, ok bool) {
	if !bytes.Contains(event, []byte(`"usage"`)) && !bytes.Contains(event, []byte(`"amazon-bedrock-invocationMetrics"`)) {
		return Usage{}, false
	}
	var e struct {
		Usage struct {
			Input      count `json:"inputTokens"`
			Output     count `json:"outputTokens"`
			CacheRead  count `json:"cacheReadInputTokens"`
			CacheWrite count `json:"cacheWriteInputTokens"`
		}
		Metrics struct {
			Input      count `json:"inputTokenCount"`
			Output     count `json:"outputTokenCount"`
			CacheRead  count `json:"cacheReadInputTokenCount"`
			CacheWrite count `json:"cacheWriteInputTokenCount"`
		} `json:"amazon-bedrock-invocationMetrics"`
	}
	if !decode(event, &e) {
		return Usage{}, false
	}
	if c := e.Usage; c.Input.known && c.Output.known {
		return Usage{Input: c.Input.n, Output: c.Output.n, CacheRead: c.CacheRead.n, CacheWrite: c.CacheWrite.n}, true
	}
	if m := e.Metrics; m.Input.known && m.Output.known {
		return Usage{Input: m.Input.n, Output: m.Output.n, CacheRead: m.CacheRead.n, CacheWrite: m.CacheWrite.n}, true
	}
	return anthropicUsage(event)
}

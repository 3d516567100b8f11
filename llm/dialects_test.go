package llm_test

import (
	"io"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/llm"
	"example.com/leakybucket/llm/llmtest"
)

// A spoken is a provider, as this package sees it and as it is in memory.
type spoken struct {
	llm.Provider
	llmtest.Dialect
}

var dialects = []spoken{
	{llm.OpenAI, llmtest.OpenAI},
	{llm.Anthropic, llmtest.Anthropic},
	{llm.Gemini, llmtest.Gemini},
	{llm.Bedrock, llmtest.Bedrock},
}

// What each provider in memory says is what this package reads.
func TestFieldsAndUsageOfTheProvidersInMemory(t *testing.T) {
	q := llm.Quota{Requests: 60, Tokens: 60_000, Input: 50_000, Output: 40_000}
	ofOpenAI := []llm.Left{{llm.Requests, 60, 59}, {llm.Tokens, 60_000, 59_000}}
	for _, d := range []struct {
		spoken
		responses bool
		left      []llm.Left
	}{
		{dialects[0], false, ofOpenAI},
		{dialects[0], true, ofOpenAI},
		{dialects[1], false, []llm.Left{{llm.Requests, 60, 59}, {llm.Tokens, 60_000, 60_000}, {llm.Input, 50_000, 50_000}, {llm.Output, 40_000, 40_000}}}, // rounded
		{dialects[2], false, nil},
		{dialects[3], false, nil},
	} {
		for _, compressed := range []bool{false, true} {
			for _, stream := range []bool{false, true} {
				synctest.Test(t, func(t *testing.T) {
					s := llmtest.New(llmtest.Config{Dialect: d.Dialect, Quota: q, Answer: func(llmtest.Call) llmtest.Answer {
						return llmtest.Answer{Output: 400, CacheRead: 50, Gzip: compressed}
					}})
					r := llmtest.NewRequest(t.Context(), d.Dialect, llmtest.Call{Input: 200, Most: 1000, Stream: stream, Responses: d.responses})
					estimate, err := d.Estimate(r)
					require.NoError(t, err)
					require.Equal(t, llm.Usage{Input: 200, Output: 1000}, estimate)
					response, err := s.RoundTrip(r)
					require.NoError(t, err)
					require.Equal(t, d.left, d.Left(response.Header))
					result := llm.ReadAlong(response, d.Usage, 0)
					_, err = io.Copy(io.Discard, response.Body)
					require.NoError(t, err)
					require.NoError(t, response.Body.Close())
					u, ok := result()
					require.True(t, ok)
					require.Equal(t, s.Stats().Used, u, "%s responses=%v stream=%v gzip=%v", d.Dialect, d.responses, stream, compressed)
				})
			}
		}
	}
}

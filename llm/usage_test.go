package llm_test

import (
	"encoding/base64"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/llm"
	"example.com/leakybucket/shaper"
)

func TestUsageOfBodiesAndEvents(t *testing.T) {
	bytesOf := func(event string) string {
		return `{"bytes":"` + base64.StdEncoding.EncodeToString([]byte(event)) + `"}`
	}
	for _, tt := range []struct {
		name  string
		p     llm.Provider
		event string
		want  llm.Usage
		ok    bool
	}{
		{
			"Chat Completions", llm.OpenAI,
			`{"id":"x","choices":[],"usage":{"prompt_tokens":19,"completion_tokens":10,"total_tokens":29,"prompt_tokens_details":{"cached_tokens":4}}}`,
			llm.Usage{Input: 15, CacheRead: 4, Output: 10}, true,
		},
		{"a chunk", llm.OpenAI, `{"id":"x","choices":[{"delta":{"content":"a"}}],"usage":null}`, llm.Usage{}, false},
		{"an answer about usage", llm.OpenAI, `{"choices":[{"delta":{"content":"\"usage\""}}]}`, llm.Usage{}, false},
		{"Embeddings", llm.OpenAI, `{"data":[],"usage":{"prompt_tokens":8,"total_tokens":8}}`, llm.Usage{Input: 8}, true},
		{
			"Responses", llm.OpenAI, `{"object":"response","usage":{"input_tokens":36,"input_tokens_details":{"cached_tokens":6},"output_tokens":87,"total_tokens":123}}`,
			llm.Usage{Input: 30, CacheRead: 6, Output: 87}, true,
		},
		{
			"Responses, streamed", llm.OpenAI,
			`{"type":"response.completed","response":{"usage":{"input_tokens":36,"output_tokens":87,"total_tokens":123}}}`,
			llm.Usage{Input: 36, Output: 87}, true,
		},
		{
			"xAI, with thoughts in the total alone", llm.OpenAI,
			`{"usage":{"prompt_tokens":32,"completion_tokens":9,"total_tokens":135,"completion_tokens_details":{"reasoning_tokens":94}}}`,
			llm.Usage{Input: 32, Output: 103}, true,
		},
		{"a total that is too small", llm.OpenAI, `{"usage":{"prompt_tokens":8,"completion_tokens":9,"total_tokens":9}}`, llm.Usage{Input: 8, Output: 9}, true},
		{
			"a batch, whose calls have limits of their own", llm.OpenAI,
			`{"object":"batch","status":"completed","usage":{"input_tokens":277233,"output_tokens":833670,"total_tokens":1110903}}`, llm.Usage{}, false,
		},
		{
			"all of the prompt from the cache", llm.OpenAI, `{"usage":{"prompt_tokens":8,"prompt_tokens_details":{"cached_tokens":8},"completion_tokens":9}}`,
			llm.Usage{CacheRead: 8, Output: 9}, true,
		},
		{"a field of another type", llm.OpenAI, `{"object":7,"usage":{"prompt_tokens":8,"completion_tokens":9}}`, llm.Usage{Input: 8, Output: 9}, true},
		{"Responses, begun", llm.OpenAI, `{"type":"response.created","response":{"usage":null}}`, llm.Usage{}, false},
		{"more cached than there was", llm.OpenAI, `{"usage":{"prompt_tokens":8,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":9}}}`, llm.Usage{CacheRead: 8, Output: 1}, true},
		{"no output", llm.OpenAI, `{"usage":{"prompt_tokens":8}}`, llm.Usage{}, false},
		{"no input", llm.OpenAI, `{"usage":{"completion_tokens":8,"total_tokens":9}}`, llm.Usage{}, false},
		{"negative", llm.OpenAI, `{"usage":{"prompt_tokens":-8,"completion_tokens":8}}`, llm.Usage{}, false},
		{"negative output", llm.OpenAI, `{"usage":{"prompt_tokens":8,"completion_tokens":-8,"total_tokens":0}}`, llm.Usage{}, false},
		{"too large", llm.OpenAI, `{"usage":{"prompt_tokens":8,"completion_tokens":9223372036854775808}}`, llm.Usage{}, false},
		{"a fraction", llm.OpenAI, `{"usage":{"prompt_tokens":8,"completion_tokens":1.5}}`, llm.Usage{}, false},
		{"a text", llm.OpenAI, `{"usage":{"prompt_tokens":"8","completion_tokens":8}}`, llm.Usage{}, false},
		{"another form", llm.OpenAI, `{"usage":[8]}`, llm.Usage{}, false},
		{"cut off", llm.OpenAI, `{"usage":{"prompt_tokens":8,"completion_tokens":8}`, llm.Usage{}, false},

		{
			"Messages", llm.Anthropic,
			`{"type":"message","usage":{"input_tokens":2095,"cache_creation_input_tokens":2051,"cache_read_input_tokens":2052,"output_tokens":503}}`,
			llm.Usage{Input: 2095, CacheWrite: 2051, CacheRead: 2052, Output: 503}, true,
		},
		{
			"message_start has no output yet", llm.Anthropic,
			`{"type":"message_start","message":{"usage":{"input_tokens":25,"output_tokens":1}}}`, llm.Usage{Input: 25}, true,
		},
		{
			"message_delta", llm.Anthropic, `{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":15}}`,
			llm.Usage{Output: 15}, true,
		},
		{
			"message_delta with input", llm.Anthropic, `{"type":"message_delta","usage":{"input_tokens":10682,"cache_read_input_tokens":3,"output_tokens":510}}`,
			llm.Usage{Input: 10_682, CacheRead: 3, Output: 510}, true,
		},
		{"a ping", llm.Anthropic, `{"type":"ping"}`, llm.Usage{}, false},
		{"half a message", llm.Anthropic, `{"type":"message","usage":{"output_tokens":15}}`, llm.Usage{}, false},
		{"a malformed start", llm.Anthropic, `{"type":"message_start","message":{"usage":{"input_tokens":-1}}}`, llm.Usage{}, false},
		{"a malformed delta", llm.Anthropic, `{"type":"message_delta","usage":{"output_tokens":null}}`, llm.Usage{}, false},

		{
			"generateContent", llm.Gemini,
			`{"candidates":[],"usageMetadata":{"promptTokenCount":100,"cachedContentTokenCount":60,"candidatesTokenCount":20,"thoughtsTokenCount":30,"toolUsePromptTokenCount":5,"totalTokenCount":155}}`,
			llm.Usage{Input: 45, CacheRead: 60, Output: 50}, true,
		},
		{"thoughts alone", llm.Gemini, `{"usageMetadata":{"promptTokenCount":100,"thoughtsTokenCount":30,"totalTokenCount":130}}`, llm.Usage{Input: 100, Output: 30}, true},
		{"a total that is the prompt", llm.Gemini, `{"usageMetadata":{"promptTokenCount":20,"totalTokenCount":20}}`, llm.Usage{Input: 20}, true},
		{"a total below the prompt", llm.Gemini, `{"usageMetadata":{"promptTokenCount":20,"totalTokenCount":19}}`, llm.Usage{Input: 20}, true},
		{"no prompt", llm.Gemini, `{"usageMetadata":{"candidatesTokenCount":20,"totalTokenCount":120}}`, llm.Usage{}, false},
		{"no answer", llm.Gemini, `{"usageMetadata":{"promptTokenCount":20}}`, llm.Usage{}, false},
		{"no usage", llm.Gemini, `{"candidates":[]}`, llm.Usage{}, false},
		{"no JSON", llm.Gemini, `"usageMetadata"`, llm.Usage{}, false},

		{
			"Converse", llm.Bedrock,
			`{"usage":{"inputTokens":30,"outputTokens":628,"totalTokens":658,"cacheReadInputTokens":7,"cacheWriteInputTokens":8},"metrics":{"latencyMs":1275}}`,
			llm.Usage{Input: 30, Output: 628, CacheRead: 7, CacheWrite: 8}, true,
		},
		{"InvokeModel, Claude", llm.Bedrock, `{"type":"message","usage":{"input_tokens":3,"output_tokens":4}}`, llm.Usage{Input: 3, Output: 4}, true},
		{
			"InvokeModel, streamed", llm.Bedrock,
			bytesOf(`{"type":"message_stop","amazon-bedrock-invocationMetrics":{"inputTokenCount":3,"outputTokenCount":4,"cacheReadInputTokenCount":5}}`),
			llm.Usage{Input: 3, Output: 4, CacheRead: 5}, true,
		},
		{"InvokeModel, a delta", llm.Bedrock, bytesOf(`{"type":"message_delta","usage":{"output_tokens":4}}`), llm.Usage{Output: 4}, true},
		{"InvokeModel, a chunk", llm.Bedrock, bytesOf(`{"type":"ping"}`), llm.Usage{}, false},
		{"Converse, without the output", llm.Bedrock, `{"usage":{"inputTokens":3}}`, llm.Usage{}, false},
		{"Converse, without the input", llm.Bedrock, `{"usage":{"outputTokens":3}}`, llm.Usage{}, false},
		{"InvokeModel, metrics without the output", llm.Bedrock, `{"amazon-bedrock-invocationMetrics":{"inputTokenCount":3}}`, llm.Usage{}, false},
		{"InvokeModel, metrics without the input", llm.Bedrock, `{"amazon-bedrock-invocationMetrics":{"outputTokenCount":3}}`, llm.Usage{}, false},
		{"bytes that are none", llm.Bedrock, `{"bytes":"%"}`, llm.Usage{}, false},
		{"half", llm.Bedrock, `{"usage":{"inputTokens":30}}`, llm.Usage{}, false},
		{"no JSON either", llm.Bedrock, `"usage"`, llm.Usage{}, false},
	} {
		u, ok := tt.p.Usage([]byte(tt.event))
		require.Equal(t, tt.ok, ok, tt.name)
		require.Equal(t, tt.want, u, tt.name)
	}
}

// Whatever an event says, a usage has no negative number, and is not empty.
func FuzzUsage(f *testing.F) {
	f.Add([]byte(`{"usage":{"prompt_tokens":19,"completion_tokens":10,"prompt_tokens_details":{"cached_tokens":4}}}`))
	f.Add([]byte(`{"type":"message_start","message":{"usage":{"input_tokens":25,"output_tokens":1}}}`))
	f.Add([]byte(`{"usageMetadata":{"promptTokenCount":100,"cachedContentTokenCount":60,"totalTokenCount":9223372036854775807}}`))
	f.Add([]byte(`{"bytes":"eyJ1c2FnZSI6e319","usage":{"inputTokens":1,"outputTokens":-1}}`))
	for _, tt := range usageCases {
		f.Add([]byte(tt.event))
	}
	f.Fuzz(func(t *testing.T, event []byte) {
		for _, p := range providers {
			u, ok := p.Usage(event)
			require.True(t, u.Input >= 0 && u.Output >= 0 && u.CacheRead >= 0 && u.CacheWrite >= 0, "%+v", u)
			if !ok {
				require.Equal(t, llm.Usage{}, u)
			}
		}
	})
}

func TestLimitsAreMillionthsOfAMinute(t *testing.T) {
	q := llm.Quota{Requests: 500, Tokens: 90_000}
	for _, tt := range []struct {
		burst time.Duration
		want  int
	}{{0, 0}, {time.Second, 16_666}, {30 * time.Second, 500_000}, {time.Minute, 1_000_000}} {
		l, err := q.Limits(tt.burst, 10)
		require.NoError(t, err)
		require.Equal(t, shaper.Limits{Rate: 1e6 / 60.0, Burst: tt.want, Depth: 10}, l)
		require.NoError(t, l.Validate())
	}
}

func TestLimitsOfWhatIsNoQuota(t *testing.T) {
	for _, tt := range []struct {
		q     llm.Quota
		burst time.Duration
		depth int
		want  string
	}{
		{llm.Quota{}, time.Second, 1, "llm: the Quota has no limit"},
		{llm.Quota{Requests: -1}, time.Second, 1, "llm: Quota: requests is -1, must not be negative"},
		{llm.Quota{Requests: 1, Output: -2}, time.Second, 1, "llm: Quota: output is -2, must not be negative"},
		{llm.Quota{Tokens: 1}, -1, 1, "llm: Quota: burst is -1ns, must be from 0s to 1m"},
		{llm.Quota{Tokens: 1}, time.Minute + 1, 1, "llm: Quota: burst is 1m0.000000001s, must be from 0s to 1m"},
		{llm.Quota{Tokens: 1}, time.Second, -1, "shaper: Limits.Depth is -1, must not be negative"},
	} {
		_, err := tt.q.Limits(tt.burst, tt.depth)
		require.EqualError(t, err, tt.want)
	}
}

func TestWeightsOfTeamsAreRead(t *testing.T) {
	for _, tt := range []struct {
		text string
		want map[string]int
		says string
	}{
		{"", map[string]int{}, ""},
		{"gold=4, a=b = 1000,=2", map[string]int{"gold": 4, "a=b": 1000, "": 2}, ""},
		{"gold", nil, `"gold", must be a team, = and a number, as in gold=4`},
		{"gold=0", nil, `"gold=0", must be a number from 1 to 1000`},
		{"gold=1001", nil, `"gold=1001", must be a number from 1 to 1000`},
		{"gold=x", nil, `"gold=x", must be a number from 1 to 1000`},
		{"a=1,a =2", nil, `the team "a" is said twice`},
	} {
		weights, err := llm.ParseWeights(tt.text)
		require.Equal(t, tt.want, weights)
		if tt.says != "" {
			require.EqualError(t, err, tt.says)
		}
	}
}

func TestACallCostsTheLargestOfItsShares(t *testing.T) {
	const most = math.MaxInt
	q := llm.Quota{Requests: 500, Tokens: 90_000, Input: 60_000, Output: 30_000}
	for _, tt := range []struct {
		name string
		q    llm.Quota
		u    llm.Usage
		want int
	}{
		{"of requests", q, llm.Usage{Input: 10, Output: 10}, 2000},
		{"of tokens", llm.Quota{Requests: 500, Tokens: 90_000}, llm.Usage{Input: 900, Output: 360}, 14_000},
		{"rounded up", llm.Quota{Requests: 500, Tokens: 90_000}, llm.Usage{Input: 900, Output: 361}, 14_012},
		{"of input", q, llm.Usage{Input: 2000, Output: 100}, 33_334},
		{"of output", q, llm.Usage{Input: 100, Output: 2000}, 66_667},
		{"the cache is input", q, llm.Usage{Input: 1000, CacheRead: 500, CacheWrite: 500}, 33_334},
		{"of what is no limit", llm.Quota{Requests: 1000}, llm.Usage{Input: most, Output: most}, 1000},
		{"nothing is free", llm.Quota{Tokens: 90_000}, llm.Usage{}, 1},
		{"nor below 0", q, llm.Usage{Input: -most, Output: math.MinInt, CacheRead: -1}, 2000},
		{"negative tokens take nothing away", q, llm.Usage{Input: 6000, CacheRead: -5000}, 100_000},
		{"more than a minute has", q, llm.Usage{Input: 61_000}, 1_000_000},
		{"a sum beyond an int", q, llm.Usage{Input: most, Output: most, CacheRead: most, CacheWrite: most}, 1_000_000},
		{"a product beyond an int", llm.Quota{Tokens: most}, llm.Usage{Input: most / 2}, 500_000},
		{"the largest limit", llm.Quota{Tokens: most}, llm.Usage{Input: 1}, 1},
		{"a negative limit is none", llm.Quota{Requests: 10, Tokens: -1}, llm.Usage{Input: 1000}, 100_000},
	} {
		require.Equal(t, tt.want, tt.q.Cost(tt.u), tt.name)
	}
}

// Whatever the numbers are, the cost is what fractions without bounds say.
func TestCostsAreExact(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	number := func() int { return random.IntN(math.MaxInt) >> random.IntN(63) }
	share := func(limit int, numbers ...int) *big.Int {
		n := new(big.Int)
		if limit == 0 {
			return n
		}
		for _, number := range numbers {
			n.Add(n, big.NewInt(int64(number)))
		}
		n.Mul(n, big.NewInt(1_000_000))
		return n.Add(n, big.NewInt(int64(limit-1))).Div(n, big.NewInt(int64(limit)))
	}
	for range 20_000 {
		q := llm.Quota{Requests: number(), Tokens: number(), Input: number(), Output: number()}
		u := llm.Usage{Input: number(), Output: number(), CacheRead: number(), CacheWrite: number()}
		want := slices.MaxFunc([]*big.Int{
			big.NewInt(1), share(q.Requests, 1), share(q.Tokens, u.Input, u.CacheRead, u.CacheWrite, u.Output),
			share(q.Input, u.Input, u.CacheRead, u.CacheWrite), share(q.Output, u.Output),
		}, (*big.Int).Cmp)
		if million := big.NewInt(1_000_000); want.Cmp(million) > 0 {
			want = million
		}
		require.Equal(t, int(want.Int64()), q.Cost(u), "%+v %+v", q, u)
	}
}

func TestParseModelQuota(t *testing.T) {
	for _, tt := range []struct {
		text, pattern string
		want          llm.Quota
		wrong         string // in the error
	}{
		{"claude-sonnet-*: 1000 requests, 400k in, 80k out", "claude-sonnet-*", llm.Quota{Requests: 1000, Input: 400_000, Output: 80_000}, ""},
		{" anthropic.claude-sonnet-4-20250514-v1:0 :1.5M tokens", "anthropic.claude-sonnet-4-20250514-v1:0", llm.Quota{Tokens: 1_500_000}, ""},
		{"default: 50 requests, 1 input, 2 output", "default", llm.Quota{Requests: 50, Input: 1, Output: 2}, ""},
		{"1000 requests", "", llm.Quota{}, `"1000 requests", must be a pattern`},
		{": 1000 requests", "", llm.Quota{}, "must be a pattern"},
		{" : 1000 requests", "", llm.Quota{}, `" : 1000 requests", must be a pattern`},
		{"m: requests", "", llm.Quota{}, `"requests", must be a number and a word`},
		{"m: 5 requests,", "", llm.Quota{}, `"", must be a number and a word`},
		{"m: 5 calls", "", llm.Quota{}, `"calls" is no limit`},
		{"m: 5 in, 6 input", "", llm.Quota{}, `"input" is said twice`},
		{"m: 0 in", "", llm.Quota{}, `"0", must be a whole number`},
		{"m: -5 in", "", llm.Quota{}, `"-5", must be`},
		{"m: 1.5 in", "", llm.Quota{}, `"1.5", must be`},
		{"m: 5kk in", "", llm.Quota{}, `"5kk", must be`},
		{"m: k in", "", llm.Quota{}, `"k", must be`},
		{"m: 1e3 in", "", llm.Quota{}, `"1e3", must be`},
		{"m: 3000M in", "", llm.Quota{}, `"3000M", must be`},
	} {
		pattern, q, err := llm.ParseModelQuota(tt.text)
		if tt.wrong != "" {
			require.ErrorContains(t, err, tt.wrong, tt.text)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, tt.pattern, pattern)
		require.Equal(t, tt.want, q)
	}
}

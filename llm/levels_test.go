package llm_test

import (
	"io"
	"math"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/llm"
	"example.com/leakybucket/llm/llmtest"
	"example.com/leakybucket/shaper"
)

// A quota has a level for each of its limits, in the units of the limit.
func TestAQuotaHasALevelForEachLimit(t *testing.T) {
	window := func(n, burst int) shaper.Limits {
		l, err := shaper.Window(n, time.Minute, burst)
		require.NoError(t, err)
		return l
	}
	for _, tt := range []struct {
		p      llm.Provider
		q      llm.Quota
		limits shaper.Limits
		meters []shaper.Meter
	}{
		{llm.Anthropic, llm.Quota{Requests: 1000, Input: 400_000, Output: 80_000}, shaper.Limits{Rate: 1000. / 60, Burst: 500, Depth: 9}, []shaper.Meter{
			{Name: "input-tokens", Rate: 400_000. / 60, Burst: 200_000}, {Name: "output-tokens", Rate: 80_000. / 60, Burst: 40_000}}},
		{llm.Bedrock, llm.Quota{Requests: 60, Tokens: 6000}, shaper.Limits{Rate: 1, Burst: 30, Depth: 9}, []shaper.Meter{
			{Name: "tokens", Rate: 100, Burst: 3000, Returns: true}}},
		{llm.OpenAI, llm.Quota{Tokens: 6000}, shaper.Limits{Rate: 100, Burst: 3000, Depth: 9}, []shaper.Meter{{Name: "requests", Rate: math.MaxFloat64}}},
		{llm.Gemini, llm.Quota{Requests: 60, Input: 6000}, shaper.Limits{Rate: window(60, 30).Rate, Burst: 30, Slack: shaper.DefaultSlack, Depth: 9}, []shaper.Meter{
			{Name: "input-tokens", Rate: window(6000, 3000).Rate, Burst: 3000}}},
		{llm.Gemini, llm.Quota{Requests: 1}, shaper.Limits{Rate: 1. / 61, Depth: 9}, []shaper.Meter{{Name: "tokens", Rate: math.MaxFloat64}}},
	} {
		limits, meters, err := (&llm.Levels{Provider: tt.p, Quota: tt.q}).Limits(30*time.Second, 9)
		require.NoError(t, err)
		require.Equal(t, tt.limits, limits)
		require.Equal(t, tt.meters, meters)
	}
	_, _, err := (&llm.Levels{}).Limits(0, 9)
	require.ErrorContains(t, err, "the Quota has no limit")
	_, _, err = (&llm.Levels{Quota: llm.Quota{Input: -1}}).Limits(0, 9)
	require.ErrorContains(t, err, "input is -1")
}

// leveled is a client of a provider in memory, within levels of 60,000 a minute, and more at once than any test takes.
type leveled struct {
	*shaper.Transport
	line   *shaper.Shaper
	server *llmtest.Server
	dialect
}

type dialect = llmtest.Dialect

func newLeveled(t *testing.T, p llm.Provider, d llmtest.Dialect, e *llm.Estimates, answer llmtest.Answer) *leveled {
	q := llm.Quota{Requests: 60_000, Input: 60_000, Output: 60_000}
	if d != llmtest.Anthropic {
		q = llm.Quota{Requests: 60_000, Tokens: 60_000}
	}
	l := &llm.Levels{Provider: p, Quota: q, Estimates: e}
	limits, meters, err := l.Limits(time.Minute, 9)
	require.NoError(t, err)
	s, err := shaper.New(limits, shaper.WithMeters(meters...))
	require.NoError(t, err)
	c := &leveled{l.Transport(s), s, llmtest.New(llmtest.Config{Dialect: d, Quota: q, Answer: func(llmtest.Call) llmtest.Answer { return answer }}), d}
	c.Base = c.server
	return c
}

func (c *leveled) levels() (levels []int) {
	levels = append(levels, int(c.line.Stats().Level+0.5))
	for _, m := range c.line.Meters() {
		levels = append(levels, int(m.Level+0.5))
	}
	return levels
}

// begin begins a call of 200 tokens that asks for 10,000.
func (c *leveled) begin(t *testing.T, stream bool) io.ReadCloser {
	r, err := c.RoundTrip(llmtest.NewRequest(t.Context(), c.dialect, llmtest.Call{Input: 200, Most: 10_000, Stream: stream}))
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, r.StatusCode)
	return r.Body
}

// What a call reserves, and what stays when it has ended, is what its provider counts; time does not pass.
func TestLevelsAreAMirrorOfWhatProvidersCount(t *testing.T) {
	compatible := llm.OpenAI
	compatible.Counted = nil
	five := llm.Bedrock
	five.OutputFactor = func(model string) int { return map[string]int{"m": 5}[model] }
	for name, tt := range map[string]struct {
		p             llm.Provider
		d             llmtest.Dialect
		learns        bool
		begins, first []int // of a first call
		second        []int // what a second one adds, when it begins
	}{
		"OpenAI":                    {llm.OpenAI, llmtest.OpenAI, false, []int{1, 10_000}, []int{1, 10_000}, []int{1, 10_000}},
		"Anthropic, as asked":       {llm.Anthropic, llmtest.Anthropic, false, []int{1, 200, 10_000}, []int{1, 150, 400}, []int{1, 200, 10_000}},
		"Anthropic, learned":        {llm.Anthropic, llmtest.Anthropic, true, []int{1, 200, 1000}, []int{1, 150, 400}, []int{1, 150, 400}},
		"compatible, learned":       {compatible, llmtest.Compatible, true, []int{1, 1200}, []int{1, 600}, []int{1, 600}},
		"Bedrock":                   {llm.Bedrock, llmtest.Bedrock, false, []int{1, 10_200}, []int{1, 550}, []int{1, 10_200}},
		"Bedrock, a factor of five": {five, llmtest.Bedrock, false, []int{1, 10_200}, []int{1, 150 + 2000}, []int{1, 10_200}},
	} {
		for _, stream := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				var e *llm.Estimates
				if tt.learns {
					e = new(llm.Estimates)
				}
				c := newLeveled(t, tt.p, tt.d, e, llmtest.Answer{Output: 400, CacheRead: 50})
				body := c.begin(t, stream)
				require.Equal(t, tt.begins, c.levels(), name)
				_, err := io.Copy(io.Discard, body)
				require.NoError(t, err)
				require.NoError(t, body.Close())
				require.Equal(t, tt.first, c.levels(), name)
				body = c.begin(t, stream)
				defer body.Close()
				for i, n := range c.levels() {
					require.Equal(t, tt.first[i]+tt.second[i], n, name)
				}
			})
		}
	}
}

// What the first answer reports of its input at its start counts for the calls that come before its end.
func TestTheFirstAnswerTellsOfInputAtItsStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newLeveled(t, llm.Anthropic, llmtest.Anthropic, new(llm.Estimates), llmtest.Answer{Output: 400, CacheRead: 150, Took: time.Minute})
		first := c.begin(t, true)
		defer first.Close()
		require.Equal(t, []int{1, 200, 1000}, c.levels())
		_, err := io.ReadFull(first, make([]byte, 400)) // The event message_start is shorter.
		require.NoError(t, err)
		second := c.begin(t, true)
		defer second.Close()
		require.Equal(t, []int{2, 250, 2000}, c.levels())
	})
}

// Output beyond the estimate is charged as it comes, and only once.
func TestOutputBeyondTheEstimateIsChargedWhileItStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newLeveled(t, llm.Anthropic, llmtest.Anthropic, new(llm.Estimates), llmtest.Answer{Output: 4000})
		body := c.begin(t, true)
		require.Equal(t, []int{1, 200, 1000}, c.levels())
		text, most := make([]byte, 4<<10), 0
		for {
			_, err := body.Read(text)
			most = max(most, c.levels()[2])
			if err == io.EOF {
				break
			}
			require.NoError(t, err)
		}
		require.Equal(t, 4000, most, "a word of llmtest's is a token of four bytes")
		require.NoError(t, body.Close())
		require.Equal(t, []int{1, 200, 4000}, c.levels())
	})
}

// A caller that leaves in mid-stream has taken the input, and the output that has come, but for an API that gives nothing back. It is no
// sample.
func TestACallerThatLeavesTakesWhatHasCome(t *testing.T) {
	compatible := llm.OpenAI
	compatible.Counted = nil
	for name, tt := range map[string]struct {
		p    llm.Provider
		d    llmtest.Dialect
		want []int
	}{
		"OpenAI":     {llm.OpenAI, llmtest.OpenAI, []int{1, 10_000}},
		"Anthropic":  {llm.Anthropic, llmtest.Anthropic, []int{1, 150, 50}},
		"compatible": {compatible, llmtest.Compatible, []int{1, 250}},
		"Bedrock":    {llm.Bedrock, llmtest.Bedrock, []int{1, 250}},
	} {
		synctest.Test(t, func(t *testing.T) {
			e := new(llm.Estimates)
			c := newLeveled(t, tt.p, tt.d, e, llmtest.Answer{Output: 400, CacheRead: 50, Took: time.Minute})
			body := c.begin(t, true)
			text := make([]byte, 64<<10)
			for range 10 { // What comes at once: the first eighth of the answer, after which the next takes seconds.
				done := make(chan struct{})
				go func() {
					_, _ = body.Read(text)
					close(done)
				}()
				synctest.Wait()
				select {
				case <-done:
					continue
				default:
				}
				break
			}
			require.NoError(t, body.Close())
			synctest.Wait()
			require.Equal(t, tt.want, c.levels(), name)
			require.Equal(t, 1000, e.Estimate("", "m", llm.Usage{Input: 200, Output: 10_000}).Output, "it is no sample")
		})
	}
}

// What the operator says of a call that does not bound its answer is for each of several answers, and comes before what is known of Bedrock.
func TestWhatACallAsksForThatDoesNotBoundItsAnswer(t *testing.T) {
	compatible := llm.OpenAI
	compatible.Counted = nil
	for _, tt := range []struct {
		p          llm.Provider
		path, body string
		want       int
	}{
		{compatible, "/v1/chat/completions", `{"messages":[],"n":3}`, 12_000},
		{llm.Bedrock, "/model/m/converse", `{"messages":[]}`, 4000},
		{llm.Bedrock, "/model/m/converse", `{"messages":[],"inferenceConfig":{"maxTokens":64000}}`, 64_000},
	} {
		l := &llm.Levels{Provider: tt.p, Quota: llm.Quota{Tokens: 1_000_000}, Unasked: 4000}
		r, err := http.NewRequest(http.MethodPost, "http://api"+tt.path, strings.NewReader(tt.body))
		require.NoError(t, err)
		c, err := l.Call("", "m", r)
		require.NoError(t, err)
		require.Equal(t, tt.want, c.Estimate().Output, tt.body)
	}
}

// An API of OpenAI's form may say by the fields of its answers that it charges what calls ask for, as Azure does.
func TestAnAPIThatSaysWhatIsLeftIsReservedWhatCallsAsk(t *testing.T) {
	compatible := llm.OpenAI
	compatible.Counted = nil
	synctest.Test(t, func(t *testing.T) {
		c := newLeveled(t, compatible, llmtest.OpenAI, new(llm.Estimates), llmtest.Answer{Output: 400})
		for _, want := range []int{1200, 1200 + 10_200} {
			body := c.begin(t, true)
			_, err := io.Copy(io.Discard, body)
			require.NoError(t, err)
			require.NoError(t, body.Close())
			require.GreaterOrEqual(t, c.levels()[1], want)
		}
	})
}

// What an answer says is left goes to the level of its limit, if it is about that.
func TestWhatIsLeftGoesToTheLevelOfItsLimit(t *testing.T) {
	q := llm.Quota{Requests: 600, Input: 60_000, Output: 6000}
	for _, tt := range []struct {
		left []llm.Left
		want []float64
	}{
		{[]llm.Left{{llm.Requests, 600, 100}, {llm.Input, 60_000, 1000}, {llm.Output, 6000, 6000}}, []float64{200, 29_000, 0}},
		{[]llm.Left{{llm.Requests, 50, 0}, {llm.Input, 0, 29_999}, {llm.Tokens, 1, 0}}, []float64{0, 1, 0}},
		{[]llm.Left{{llm.Output, 6000, 2999}, {llm.Output, 6000, 2998}, {llm.Input, 60_000, -1}}, []float64{0, 0, 2}},
		{nil, []float64{0, 0, 0}},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := &llm.Levels{Provider: llm.Provider{Left: func(http.Header) []llm.Left { return tt.left }}, Quota: q}
			limits, meters, err := l.Limits(30*time.Second, 9)
			require.NoError(t, err)
			s, err := shaper.New(limits, shaper.WithMeters(meters...))
			require.NoError(t, err)
			l.Left(s, nil)
			require.Equal(t, tt.want, []float64{s.Stats().Level, s.Meters()[0].Level, s.Meters()[1].Level})
		})
	}
}

// The models whose output counts five times at Bedrock, by their page, and those behind them.
func TestBedrocksBurndownRates(t *testing.T) {
	for model, want := range map[string]int{
		"anthropic.claude-3-7-sonnet-20250219-v1:0": 5, "us.anthropic.claude-sonnet-4-20250514-v1:0": 5, "anthropic.claude-opus-4-1-20250805-v1:0": 5,
		"anthropic.claude-3-5-sonnet-20241022-v2:0": 1, "anthropic.claude-3-haiku-20240307-v1:0": 1, "anthropic.claude-v2:1": 1,
		"anthropic.claude-instant-v1": 1, "amazon.nova-pro-v1:0": 1, "": 1,
	} {
		require.Equal(t, want, llm.Bedrock.OutputFactor(model), model)
	}
}

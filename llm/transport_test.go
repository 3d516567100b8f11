package llm_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/llm"
	"example.com/leakybucket/llm/llmtest"
	"example.com/leakybucket/shaper"
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

// A paced is a client of a provider in memory, paced within a quota.
type paced struct {
	spoken
	server *llmtest.Server
	shaper *shaper.Shaper
	*shaper.Transport
}

func newPaced(t testing.TB, d spoken, q llm.Quota, burst time.Duration, answer func(llmtest.Call) llmtest.Answer) *paced {
	limits, err := q.Limits(burst, 1000)
	require.NoError(t, err)
	s, err := shaper.New(limits)
	require.NoError(t, err)
	p := &paced{d, llmtest.New(llmtest.Config{Dialect: d.Dialect, Quota: q, Answer: answer}), s, llm.Transport(s, q, d.Provider)}
	p.Base = p.server
	return p
}

// call calls, reads the whole answer, and returns its status.
func (p *paced) call(t testing.TB, c llmtest.Call) int {
	response, err := p.RoundTrip(llmtest.NewRequest(context.Background(), p.Dialect, c))
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, response.Body)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	return response.StatusCode
}

// Any number of callers are never refused by the provider, and use all that it allows, although a call takes
// a third of what it reserves.
func TestCallersAreNeverRefusedAndUseTheQuota(t *testing.T) {
	tokens := func(q llm.Quota) int { return q.Tokens }
	for i, tt := range []struct {
		q    llm.Quota
		most int                 // tokens of an answer
		of   func(llm.Quota) int // the limit that is used up first
	}{
		{llm.Quota{Requests: 500, Tokens: 90_000}, 1500, tokens},
		{llm.Quota{Requests: 500, Input: 90_000, Output: 24_000}, 600, func(q llm.Quota) int { return q.Output }},
		{llm.Quota{Requests: 500, Input: 60_000}, 1500, func(q llm.Quota) int { return q.Input }},
		{llm.Quota{Requests: 500, Tokens: 90_000}, 1500, tokens},
	} {
		d := dialects[i]
		t.Run(string(d.Dialect), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(1, 2)) // Answer is called by one goroutine at a time.
				p := newPaced(t, d, tt.q, 30*time.Second, func(llmtest.Call) llmtest.Answer {
					first := time.Duration(random.Int64N(int64(time.Second)))
					return llmtest.Answer{
						Output: 100 + random.IntN(200),
						First:  first, Took: first + time.Second + time.Duration(random.Int64N(int64(6*time.Second))),
					}
				})
				if d.Counts == llm.Rolling {
					p.server = llmtest.New(llmtest.Config{Dialect: d.Dialect, Quota: llm.Quota{Requests: 750, Input: 90_000}}) // See docs/llm.md.
					p.Base = p.server
				}
				var all sync.WaitGroup
				end := time.Now().Add(2 * time.Minute)
				for i := range 150 {
					all.Go(func() {
						for time.Now().Before(end) {
							if status := p.call(t, llmtest.Call{Input: 500, Most: tt.most, Stream: i%2 == 0}); status != http.StatusOK {
								t.Errorf("status %d", status)
								return
							}
						}
					})
				}
				time.Sleep(time.Until(end))
				synctest.Wait()
				used := float64(tt.of(p.server.Stats().Counted)) / float64(tt.of(tt.q)*2)
				all.Wait()
				require.Zero(t, p.server.Stats().Refused)
				require.Zero(t, p.shaper.Stats().Refused)
				// The rate allows two minutes' quota, and the burst half a minute's.
				require.True(t, 1.125 < used && used <= 1.25, "%v of the quota", used)
			})
		})
	}
}

// level returns the level of the bucket, in cost units.
func (p *paced) level() int { return int(p.shaper.Stats().Level) }

// A call reserves what its body asks for. It settles with what its answer reports when the answer has ended, and with
// nothing else. OpenAI gives nothing back, and says what is left. A server that only has the form of OpenAI's API says
// nothing of the kind, and a call of it settles with all that it has used. What each provider in memory says is what this
// package reads.
func TestACallSettlesWhenItsAnswerEnds(t *testing.T) {
	ofOpenAI := []llm.Left{{llm.Requests, 500, 499}, {llm.Tokens, 90_000, 89_000}}
	for _, tt := range []struct {
		spoken
		responses         bool
		q                 llm.Quota
		left              []llm.Left
		reserved, settled int
	}{
		{dialects[0], false, llm.Quota{Requests: 500, Tokens: 90_000}, ofOpenAI, 11_112, 11_112}, // max(1000, 200) of 90,000, for good
		{dialects[0], true, llm.Quota{Requests: 500, Tokens: 90_000}, ofOpenAI, 11_112, 11_112},
		{dialects[0], false, llm.Quota{Requests: 500, Tokens: 90_000}, nil, 11_112, 6667}, // 600 of 90,000, with what was cached
		{
			dialects[1], false, llm.Quota{Requests: 500, Input: 60_000, Output: 24_000},
			[]llm.Left{{llm.Requests, 500, 499}, {llm.Input, 60_000, 60_000}, {llm.Output, 24_000, 24_000}}, // rounded
			41_667, 16_667, // 1,000 and 400 of 24,000
		},
		{dialects[2], false, llm.Quota{Requests: 500, Input: 60_000}, nil, 3334, 3334},    // 200 of 60,000
		{dialects[3], false, llm.Quota{Requests: 500, Tokens: 90_000}, nil, 13_334, 6112}, // 1,200 and 550 of 90,000
	} {
		for _, compressed := range []bool{false, true} {
			for _, stream := range []bool{false, true} {
				name := fmt.Sprintf("%s responses=%v stream=%v gzip=%v", tt.Dialect, tt.responses, stream, compressed)
				synctest.Test(t, func(t *testing.T) {
					answer := func(llmtest.Call) llmtest.Answer {
						return llmtest.Answer{Output: 400, CacheRead: 50, Gzip: compressed}
					}
					p := newPaced(t, tt.spoken, tt.q, 30*time.Second, answer)
					if tt.left == nil { // Without limits the provider says nothing of them.
						p.server = llmtest.New(llmtest.Config{Dialect: tt.Dialect, Answer: answer})
						p.Base = p.server
					}
					r := llmtest.NewRequest(t.Context(), tt.Dialect, llmtest.Call{Input: 200, Most: 1000, Stream: stream, Responses: tt.responses})
					estimate, err := tt.Estimate(r)
					require.NoError(t, err)
					require.Equal(t, llm.Usage{Input: 200, Output: 1000}, estimate, name)
					response, err := p.RoundTrip(r)
					require.NoError(t, err)
					require.Equal(t, tt.left, tt.Left(response.Header), name)
					require.Equal(t, tt.reserved, p.level(), name)
					require.Equal(t, tt.reserved, p.shaper.Stats().Reserved)

					meter := llm.NewMeter(tt.Provider, response.StatusCode, response.Header)
					_, err = io.Copy(meter, response.Body)
					require.NoError(t, err)
					meter.End(true)
					u, ok := meter.Usage()
					require.True(t, ok, name)
					require.Equal(t, p.server.Stats().Used, u, name)
					require.Equal(t, tt.settled, p.level(), name)
					require.Zero(t, p.shaper.Stats().Reserved)
					require.NoError(t, response.Body.Close())
					require.Equal(t, tt.settled, p.level(), name)
				})
			}
		}
	}
}

// The estimate stands if an answer breaks, or is closed before any text: what the call has taken is unknown. After an error no more
// than the input does.
func TestTheEstimateStandsIfTheUsageIsUnknown(t *testing.T) {
	q := llm.Quota{Requests: 500, Input: 60_000, Output: 24_000}
	c := llmtest.Call{Input: 200, Most: 1000, Stream: true}
	for name, tt := range map[string]struct {
		answer llmtest.Answer
		read   func(io.ReadCloser) error
	}{
		"broken":          {llmtest.Answer{Breaks: true}, func(body io.ReadCloser) error { _, err := io.Copy(io.Discard, body); return err }},
		"closed":          {llmtest.Answer{}, func(body io.ReadCloser) error { _, err := io.CopyN(io.Discard, body, 500); return err }},
		"an error":        {llmtest.Answer{Status: 500}, func(body io.ReadCloser) error { _, err := io.Copy(io.Discard, body); return err }},
		"an overload":     {llmtest.Answer{Status: 529}, func(body io.ReadCloser) error { _, err := io.Copy(io.Discard, body); return err }},
		"not read at all": {llmtest.Answer{}, func(io.ReadCloser) error { return nil }},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := newPaced(t, dialects[1], q, 30*time.Second, func(llmtest.Call) llmtest.Answer { return tt.answer })
			response, err := p.RoundTrip(llmtest.NewRequest(t.Context(), p.Dialect, c))
			require.NoError(t, err)
			if err = tt.read(response.Body); tt.answer.Breaks {
				require.Equal(t, io.ErrUnexpectedEOF, err)
			} else {
				require.NoError(t, err, name)
			}
			require.NoError(t, response.Body.Close())
			want := 41_667
			if tt.answer.Status != 0 {
				want = 3334
			}
			require.Equal(t, want, p.level(), name)
			require.Zero(t, p.shaper.Stats().Reserved, name)
			require.True(t, p.shaper.Stats().HeldUntil.IsZero(), "%s: no hold is guessed", name)
		})
	}
}

// Whoever calls with a wrong key or for a model that is not there must not keep the others waiting for what was reserved.
func TestACallForWhichNoModelRanTakesARequestsShare(t *testing.T) {
	for _, d := range dialects {
		for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound} {
			synctest.Test(t, func(t *testing.T) {
				q := llm.Quota{Requests: 500, Tokens: 90_000}
				p := newPaced(t, d, q, 30*time.Second, func(llmtest.Call) llmtest.Answer { return llmtest.Answer{Status: status} })
				require.Equal(t, status, p.call(t, llmtest.Call{Input: 200, Most: 1000}))
				require.Equal(t, 2000, p.level(), "%s, %d", d.Dialect, status)
			})
		}
	}
}

// A refused call has taken nothing, and all others wait until the provider wants more.
func TestARefusalHoldsTheLineAndCostsNothing(t *testing.T) {
	for i, said := range []time.Duration{20 * time.Second, 20 * time.Second, time.Minute, time.Second} {
		d := dialects[i]
		d.Left = nil
		synctest.Test(t, func(t *testing.T) {
			q := llm.Quota{Requests: 3}
			p := newPaced(t, d, llm.Quota{Requests: 1000}, time.Minute, nil)
			p.server = llmtest.New(llmtest.Config{Dialect: d.Dialect, Quota: q})
			p.Base = p.server
			for range 3 {
				require.Equal(t, http.StatusOK, p.call(t, llmtest.Call{Input: 100, Most: 100}))
			}
			before := p.level()
			require.Equal(t, http.StatusTooManyRequests, p.call(t, llmtest.Call{Input: 100, Most: 100}))
			require.Equal(t, before, p.level())
			require.Zero(t, p.shaper.Stats().Reserved)
			start := time.Now()
			status := p.call(t, llmtest.Call{Input: 100, Most: 100})
			require.Equal(t, said, time.Since(start).Round(time.Millisecond), string(d.Dialect))
			if said > time.Second {
				require.Equal(t, http.StatusOK, status)
			}
		})
	}
}

// A 429 that does not say when to come back is held for a second and sent again, as the gateway does.
func TestARefusalWithoutATimeIsSentAgainAfterASecond(t *testing.T) {
	for _, d := range dialects {
		synctest.Test(t, func(t *testing.T) {
			attempts := 0
			p := newPaced(t, d, llm.Quota{Requests: 1000}, time.Minute, nil)
			p.Retry = true
			p.Base = roundTrip(func(r *http.Request) (*http.Response, error) {
				if attempts++; attempts == 1 {
					return &http.Response{StatusCode: http.StatusTooManyRequests, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
				}
				return p.server.RoundTrip(r)
			})
			begun := time.Now()
			require.Equal(t, http.StatusOK, p.call(t, llmtest.Call{Input: 100, Most: 100}), d.Dialect)
			require.Equal(t, 2, attempts)
			require.Equal(t, time.Second, time.Since(begun))
		})
	}
}

// What is left counts in units of the quota that the client keeps to, which may be a part of the
// provider's; and not at all for a limit that the client does not have.
func TestWhatIsLeftCountsInSharesOfTheQuota(t *testing.T) {
	left := []llm.Left{
		{Kind: llm.Requests, Limit: 14_400, Remaining: 14_000}, {Kind: llm.Tokens, Limit: 90_000, Remaining: 9000},
		{Kind: llm.Input, Limit: 10, Remaining: 0}, {Kind: "else", Limit: 10, Remaining: 0}, {Kind: llm.Tokens, Remaining: -1},
	}
	for _, tt := range []struct {
		q    llm.Quota
		want int
	}{
		{llm.Quota{Requests: 500, Tokens: 90_000}, 400_000},
		{llm.Quota{Requests: 500, Tokens: 30_000}, 200_000},
		{llm.Quota{Requests: 500, Tokens: 9000}, 2000}, // the cost of a call
		{llm.Quota{Requests: 500}, 2000},
		{llm.Quota{Requests: 500, Input: 1_000_000}, 500_000},
	} {
		p := llm.Provider{Left: func(http.Header) []llm.Left { return left }}
		synctest.Test(t, func(t *testing.T) {
			q := tt.q
			d := spoken{p, llmtest.OpenAI}
			paced := newPaced(t, d, q, 30*time.Second, nil)
			paced.Base = llmtest.New(llmtest.Config{Dialect: llmtest.OpenAI})
			require.Equal(t, http.StatusOK, paced.call(t, llmtest.Call{}))
			require.Equal(t, tt.want, paced.level(), "%+v", q)
		})
	}
}

// A Provider without functions knows nothing: a call costs its share of the requests.
func TestAProviderWithoutFunctions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPaced(t, spoken{llm.Provider{}, llmtest.OpenAI}, llm.Quota{Requests: 500, Tokens: 90_000}, 30*time.Second, nil)
		require.Equal(t, http.StatusOK, p.call(t, llmtest.Call{Input: 1000, Most: 1000}))
		require.Equal(t, 2000, p.level())

		d := dialects[3]
		d.Counted = nil
		p = newPaced(t, d, llm.Quota{Requests: 500, Tokens: 90_000}, 30*time.Second, func(llmtest.Call) llmtest.Answer {
			return llmtest.Answer{Output: 100, CacheRead: 50}
		})
		require.Equal(t, http.StatusOK, p.call(t, llmtest.Call{Input: 800, Most: 1000}))
		require.Equal(t, 10_000, p.level(), "everything counts")
	})
}

// answering is a RoundTripper that has one response.
type answering struct{ *http.Response }

func (a answering) RoundTrip(*http.Request) (*http.Response, error) { return a.Response, nil }

// A body that can have no usage stays what it is: after an upgrade it can be written to, and a response without a body need not be
// closed to be settled.
func TestABodyThatHasNoUsageStaysAsItIs(t *testing.T) {
	client, server := net.Pipe()
	defer server.Close()
	for status, body := range map[int]io.ReadCloser{http.StatusSwitchingProtocols: client, http.StatusOK: http.NoBody} {
		p := newPaced(t, dialects[0], llm.Quota{Requests: 500}, 30*time.Second, nil)
		p.Base = answering{&http.Response{StatusCode: status, Header: http.Header{}, Body: body}}
		response, err := p.RoundTrip(llmtest.NewRequest(t.Context(), p.Dialect, llmtest.Call{}))
		require.NoError(t, err)
		if status == http.StatusSwitchingProtocols {
			require.Implements(t, (*io.Writer)(nil), response.Body)
			require.NoError(t, response.Body.Close())
		}
		require.Zero(t, p.shaper.Stats().Reserved, status)
	}
}

// A request that can't be estimated is not sent.
func TestARequestThatCannotBeEstimated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := dialects[3]
		d.Estimate = func(*http.Request) (llm.Usage, error) { return llm.Usage{}, errBroken }
		p := newPaced(t, d, llm.Quota{Tokens: 90_000}, 30*time.Second, nil)
		_, err := p.RoundTrip(llmtest.NewRequest(t.Context(), d.Dialect, llmtest.Call{}))
		require.Equal(t, shaper.ErrNegativeCost, err)
		require.Zero(t, p.server.Stats())
	})
}

// A bomb is not sent, and the error says why.
func TestABombIsNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPaced(t, dialects[1], llm.Quota{Tokens: 90_000}, 30*time.Second, nil)
		r := llmtest.NewRequest(t.Context(), p.Dialect, llmtest.Call{})
		bomb := codings["zstd"](strings.Repeat("x", 65<<20))
		r.Body, r.GetBody, r.ContentLength = io.NopCloser(strings.NewReader(bomb)), nil, int64(len(bomb))
		r.Header.Set("Content-Encoding", "zstd")
		_, err := p.RoundTrip(r)
		require.ErrorIs(t, err, llm.ErrBomb)
		require.ErrorIs(t, err, shaper.ErrNegativeCost)
		require.Zero(t, p.server.Stats())
		require.Zero(t, p.level())
	})
}

// A roundTrip is a RoundTripper.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// What a call costs for which no model ran, of each provider: what was reserved for the answer comes back, and the input where the
// provider does not count it. (sourcegraph#51879, sample-agentic-ai-acceleration-kr#83, google-gemini/gemini-cli#15184)
func TestACallForWhichNoModelRanGivesItsAnswerBack(t *testing.T) {
	for _, d := range dialects {
		for _, status := range []int{400, 402, 405, 413, 415, 422, 500, 503, 529} {
			synctest.Test(t, func(t *testing.T) {
				p := newPaced(t, d, llm.Quota{Requests: 1000, Tokens: 100_000}, 30*time.Second, func(llmtest.Call) llmtest.Answer { return llmtest.Answer{Status: status} })
				require.Equal(t, status, p.call(t, llmtest.Call{Input: 200, Most: 8000}))
				want := 1000
				if counts := d.Dialect == llmtest.Anthropic || d.Dialect == llmtest.Gemini; counts && (status == 400 || status == 422 || status >= 500) {
					want = 2000
				}
				require.Equal(t, want, p.level(), "%s, %d", d.Dialect, status)
			})
		}
	}
}

// A refusal in a stream holds the line, if it has a time that a call may wait, and costs nothing.
func TestARefusalInAStreamHoldsTheLine(t *testing.T) {
	for said, hold := range map[string]time.Duration{"14.036s": 14_036 * time.Millisecond, "1h0m0s": 0} {
		synctest.Test(t, func(t *testing.T) {
			q := llm.Quota{Requests: 1000, Tokens: 100_000}
			limits, err := q.Limits(30*time.Second, 1000)
			require.NoError(t, err)
			limits.MaxWait = 30 * time.Second
			s, err := shaper.New(limits)
			require.NoError(t, err)
			transport := llm.Transport(s, q, llm.OpenAI)
			transport.Base = roundTrip(func(r *http.Request) (*http.Response, error) {
				body := `data: {"type":"response.failed","response":{"error":{"code":"rate_limit_exceeded","message":"Please try again in ` + said + `."}}}` + "\n\n"
				return &http.Response{StatusCode: 200, Header: fields("Content-Type", sse), Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
			})
			response, err := transport.RoundTrip(llmtest.NewRequest(t.Context(), llmtest.OpenAI, llmtest.Call{Input: 200, Most: 8000, Stream: true}))
			require.NoError(t, err)
			_, err = io.Copy(io.Discard, response.Body)
			require.NoError(t, err)
			require.NoError(t, response.Body.Close())
			st := s.Stats()
			require.Zero(t, st.Level)
			held := time.Duration(0)
			if !st.HeldUntil.IsZero() {
				held = time.Until(st.HeldUntil)
			}
			require.Equal(t, hold, held)
		})
	}
}

// An error in place of the text of an answer ends it: what was reserved for the text comes back.
func TestAnErrorInPlaceOfAnAnswer(t *testing.T) {
	text := `data: {"type":"content_block_delta","delta":{"text":"` + strings.Repeat("word ", 80) + `"}}` + "\n\n"
	for name, tt := range map[string]struct {
		body string
		want int
	}{
		"before anything":    {overload, 0},
		"behind the start":   {started + overload, 25 * 10},
		"in the middle":      {started + text + overload, (25 + 100) * 10},
		"it only breaks off": {started, (200 + 4000) * 10},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := newPaced(t, dialects[1], llm.Quota{Tokens: 100_000}, 30*time.Second, nil)
			p.Base = answering{&http.Response{StatusCode: 200, Header: fields("Content-Type", sse), Body: io.NopCloser(strings.NewReader(tt.body))}}
			p.call(t, llmtest.Call{Input: 200, Most: 4000, Stream: true})
			require.Equal(t, tt.want, p.level(), name)
		})
	}
}

// A refusal that asks for longer than a call may wait holds nobody.
func TestARefusalForLongerThanACallMayWaitHoldsNobody(t *testing.T) {
	for after, hold := range map[string]time.Duration{"90": 90 * time.Second, "101": 0} {
		synctest.Test(t, func(t *testing.T) {
			q := llm.Quota{Requests: 1000}
			limits, err := q.Limits(30*time.Second, 1000)
			require.NoError(t, err)
			limits.MaxWait = 100 * time.Second
			s, err := shaper.New(limits)
			require.NoError(t, err)
			transport := llm.Transport(s, q, llm.OpenAI)
			transport.Base = answering{&http.Response{StatusCode: 429, Header: fields("Retry-After", after), Body: http.NoBody}}
			response, err := transport.RoundTrip(llmtest.NewRequest(t.Context(), llmtest.OpenAI, llmtest.Call{}))
			require.NoError(t, err)
			require.Equal(t, 429, response.StatusCode)
			held := time.Duration(0)
			if until := s.Stats().HeldUntil; !until.IsZero() {
				held = time.Until(until)
			}
			require.Equal(t, hold, held)
		})
	}
}

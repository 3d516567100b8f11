package gateway_test

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/llm"
	"example.com/leakybucket/llm/gateway"
	"example.com/leakybucket/shaper"
)

// newFullRig returns a gateway whose next call leaves in 1.2 s, and whose line has no place for another.
func newFullRig(t *testing.T, provider string, spread time.Duration) *rig {
	q := llm.Quota{Requests: 50, Tokens: 1_000_000}
	g := newRig(t, provider, q, http.NotFoundHandler(), func(c *gateway.Config, l *shaper.Limits) {
		l.Burst, l.Depth, c.RetrySpread = 0, 1, spread
	})
	require.Equal(t, 404, g.call("gold", request(t.Context(), provider, 10, 10, false)).Code)
	go g.call("gold", request(t.Context(), provider, 10, 10, false))
	synctest.Wait()
	return g
}

// A refusal is in the form of the provider's own, and says when to come back as its clients expect.
func TestARefusalIsInTheFormOfTheProvider(t *testing.T) {
	const message = "Too many requests are waiting already."
	openAI := `{"error":{"message":"` + message + `","type":"requests","param":null,"code":"rate_limit_exceeded"}}`
	forms := map[string]string{
		"openai": openAI, "openai-compatible": openAI,
		"anthropic": `{"type":"error","error":{"type":"rate_limit_error","message":"` + message + `"}}`,
		"gemini": `{"error":{"code":429,"message":"` + message + `","status":"RESOURCE_EXHAUSTED",
			"details":[{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"1.2s"}]}}`,
		"bedrock": `{"message":"` + message + `"}`,
	}
	require.Len(t, forms, len(gateway.Providers()))
	for provider, form := range forms {
		t.Run(provider, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newFullRig(t, provider, 0)
				w := g.call("gold", request(t.Context(), provider, 10, 10, false))
				require.Equal(t, 429, w.Code)
				require.JSONEq(t, form, w.Body.String())
				require.Equal(t, "2", w.Header().Get("Retry-After"))
				require.Equal(t, "1200", w.Header().Get("Retry-After-Ms"))
				require.Equal(t, "no-store", w.Header().Get("Cache-Control"))
				if provider == "bedrock" {
					require.Equal(t, "ThrottlingException", w.Header().Get("X-Amzn-Errortype"))
				}
				require.Equal(t, 429, g.last(t).Status)
				require.Zero(t, g.last(t).Duration)
				require.Equal(t, uint64(1), g.Ledger().Status(time.Now(), 1).Teams[0].Refused)
			})
		})
	}
}

// Each library waits as long as a refusal says, or does not send the call again, unless nothing that an answer may say makes it. The
// rules are those of the sources that docs/gateway.md names.
func TestALibraryWaitsOrStops(t *testing.T) {
	const stops, backsOff = -1, 0 // else it waits for the time, in milliseconds
	number := func(h http.Header, field string) float64 {
		n, err := strconv.ParseFloat(h.Get(field), 64)
		if err != nil {
			return 0
		}
		return n
	}
	said := func(h http.Header) float64 { return cmp.Or(number(h, "Retry-After-Ms"), 1000*number(h, "Retry-After")) }
	// upTo heeds times up to one, and X-Should-Retry, as what Stainless generates does.
	upTo := func(most time.Duration) func(http.Header) float64 {
		return func(h http.Header) float64 {
			switch ms := said(h); {
			case h.Get("X-Should-Retry") == "false":
				return stops
			case ms > float64(most.Milliseconds()):
				return backsOff
			default:
				return ms
			}
		}
	}
	for library, tt := range map[string]struct {
		provider string
		does     func(http.Header) float64
		want     [4]float64 // after 1.2 s, 60 s, 90 s, and an hour
	}{
		"openai-node":               {"openai", upTo(time.Minute), [4]float64{1200, 60_000, stops, stops}},
		"openai-python, openai-go":  {"openai", upTo(2 * time.Minute), [4]float64{1200, 60_000, stops, stops}},
		"anthropic, before 2026":    {"anthropic", upTo(time.Minute), [4]float64{1200, 60_000, stops, stops}},
		"anthropic, Go, TypeScript": {"anthropic", upTo(math.MaxInt64), [4]float64{1200, 60_000, stops, stops}},
		"LiteLLM": {"openai-compatible", func(h http.Header) float64 {
			if s := number(h, "Retry-After"); s <= 60 {
				return 1000 * s
			}
			return backsOff
		}, [4]float64{2000, 60_000, backsOff, backsOff}},
		"Vercel AI SDK": {"openai", func(h http.Header) float64 {
			if ms := said(h); ms < 60_000 {
				return ms
			}
			return backsOff
		}, [4]float64{1200, backsOff, backsOff, backsOff}},
		"aws-sdk-go-v2, backoff of 1 s": {"bedrock", func(h http.Header) float64 { return max(1000, min(6000, number(h, "X-Amz-Retry-After"))) }, [4]float64{1200, 6000, 6000, 6000}},
	} {
		for i, after := range []time.Duration{1200 * time.Millisecond, time.Minute, 90 * time.Second, time.Hour} {
			g := newRig(t, tt.provider, llm.Quota{Requests: 50, Tokens: 1000}, http.NotFoundHandler(), nil)
			w := httptest.NewRecorder()
			g.WriteError(w, request(t.Context(), tt.provider, 1, 1, false), &shaper.RejectError{Reason: shaper.ErrQueueFull, RetryAfter: after})
			require.Equal(t, http.StatusTooManyRequests, w.Code)
			require.Equal(t, tt.want[i], tt.does(w.Header()), "%s, after %v", library, after)
		}
	}
}

// Whoever writes the answer, a call that was refused is told as such, and not as one whose caller has gone.
func TestARefusalOfAnotherWriterIsNoted(t *testing.T) {
	g := newRig(t, "openai", llm.Quota{Requests: 50}, http.NotFoundHandler(), func(c *gateway.Config, _ *shaper.Limits) {
		c.Refuse = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusTeapot) }
	})
	require.NoError(t, g.line.Close())
	require.Equal(t, http.StatusTeapot, g.call("gold", request(t.Context(), "openai", 10, 10, false)).Code)
	require.Equal(t, http.StatusServiceUnavailable, g.last(t).Status)
	require.Equal(t, uint64(1), g.Ledger().Status(time.Now(), 1).Refused)
}

// While as many calls run as may, it is unknown when the next can. A client must not use up its retries at once.
func TestNoClientIsAskedToComeBackAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		g := newRig(t, "gemini", llm.Quota{Requests: 60_000}, next, func(_ *gateway.Config, l *shaper.Limits) { l.InFlight, l.Depth = 1, 1 })
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range 2 {
			go g.call("gold", request(ctx, "gemini", 10, 10, false))
		}
		synctest.Wait()
		w := g.call("gold", request(ctx, "gemini", 10, 10, false))
		require.Equal(t, 429, w.Code)
		require.Equal(t, "1", w.Header().Get("Retry-After"))
		require.Equal(t, "1000", w.Header().Get("Retry-After-Ms"))
		require.Contains(t, w.Body.String(), `"retryDelay":"1s"`)
	})
}

// Callers that were refused together are asked to come back apart, in the fields and in the body.
func TestARetrySpreadIsInTheBodyToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newFullRig(t, "gemini", 10*time.Second)
		said := map[float64]bool{}
		for range 20 {
			w := g.call("gold", request(t.Context(), "gemini", 10, 10, false))
			after, err := strconv.ParseFloat(w.Header().Get("Retry-After-Ms"), 64)
			require.NoError(t, err)
			require.True(t, 1200 <= after && after <= 11_200, "%v ms", after)
			require.Equal(t, fmt.Sprint(math.Ceil(after/1000)), w.Header().Get("Retry-After"))
			delay, err := time.ParseDuration(regexp.MustCompile(`"retryDelay":"(.*?)"`).FindStringSubmatch(w.Body.String())[1])
			require.NoError(t, err)
			require.InDelta(t, after, delay.Seconds()*1000, 1)
			said[after] = true
		}
		require.Greater(t, len(said), 10)
	})
}

// What an answer is encoded in must be readable for the gateway, and acceptable for the caller.
func TestOnlyGzipIsAskedForWhereItIsAccepted(t *testing.T) {
	for accepted, asked := range map[string]string{
		"": "", "gzip": "gzip", "br, GZIP;q=0.5": "gzip", "gzip;q=1": "gzip", "br;q=1,gzip": "gzip",
		"gzip;q=0": "identity", "gzip;Q=0": "identity", "gzip; q=0.000, br": "identity", "br": "identity", "identity": "identity", "not-gzip": "identity",
	} {
		next := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			require.Equal(t, asked, r.Header.Get("Accept-Encoding"), accepted)
		})
		r := request(t.Context(), "openai", 10, 10, false)
		if accepted != "" {
			r.Header.Set("Accept-Encoding", accepted)
		}
		newRig(t, "openai", llm.Quota{Requests: 50}, next, nil).call("gold", r)
	}
}

// The handler behind the gateway may have no answer of the provider. Then the caller gets one in the provider's format.
func TestAProviderThatCannotBeReached(t *testing.T) {
	for _, status := range []int{502, 503, 504} {
		var g *rig
		g = newRig(t, "anthropic", llm.Quota{Requests: 50}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			require.True(t, g.WriteUnreachable(w, status))
			require.False(t, g.WriteUnreachable(w, status), "once")
		}), nil)
		w := g.call("gold", request(t.Context(), "anthropic", 10, 10, false))
		require.Equal(t, status, w.Code)
		require.JSONEq(t, `{"type":"error","error":{"type":"api_error","message":"The provider can't be reached, or did not answer in time."}}`, w.Body.String())
		require.Len(t, w.Header().Values("Server-Timing"), 1)
		require.Equal(t, status, g.last(t).Status)
		require.Zero(t, g.Ledger().Status(time.Now(), 1).Refused, "it is no refusal of the gateway")
		require.Positive(t, g.line.Stats().Level, "nothing is free")
	}
}

// A call that is sent again has its estimate once in the bucket and in the ledger, and what the first answer was is not its usage.
func TestACallThatIsSentAgainIsChargedOnce(t *testing.T) {
	for _, status := range []int{429, 503, 529} {
		synctest.Test(t, func(t *testing.T) {
			attempts := 0
			g := newRig(t, "anthropic", llm.Quota{Tokens: 100_000}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if attempts++; attempts == 1 {
					w.Header().Set("Retry-After", "1")
					w.WriteHeader(status)
				}
			}), nil)
			g.call("gold", request(t.Context(), "anthropic", 1000, 4000, false))
			require.Equal(t, 2, attempts)
			require.InDelta(t, 50_000, g.line.Stats().Level, 1)
			require.Equal(t, uint64(5000), g.Ledger().Status(time.Now(), 1).Hour.Tokens)
			require.Nil(t, g.last(t).Actual, "the estimate stands")
		})
	}
}

// What else is refused is in the words of each provider, too, by which its clients choose what to do.
func TestWhatElseIsRefused(t *testing.T) {
	words := map[string][]string{ // in the order of the causes below
		"openai":    {`"type":"invalid_request_error"`, `"type":"invalid_request_error"`, `"type":"invalid_request_error"`, `"type":"server_error"`},
		"anthropic": {`"type":"authentication_error"`, `"type":"request_too_large"`, `"type":"timeout_error"`, `"type":"api_error"`},
		"gemini":    {`"status":"UNAUTHENTICATED"`, `"status":"INVALID_ARGUMENT"`, `"status":"DEADLINE_EXCEEDED"`, `"status":"UNAVAILABLE"`},
		"bedrock":   {"AccessDeniedException", "ValidationException", "ModelTimeoutException", "ServiceUnavailableException"},
	}
	words["openai-compatible"] = words["openai"]
	require.Len(t, words, len(gateway.Providers()))
	for i, refused := range []struct {
		name    string
		prepare func(g *rig, r *http.Request)
		status  int
		message string
	}{
		{"no token", func(_ *rig, r *http.Request) { r.Header.Set("No-Token", "1") }, 401, "no valid token"},
		{"long body", func(_ *rig, r *http.Request) { r.Body = http.MaxBytesReader(nil, r.Body, 10) }, 413, "too long"},
		{"broken body", func(_ *rig, r *http.Request) { r.Body = io.NopCloser(iotest.ErrReader(io.ErrUnexpectedEOF)) }, 408, "did not come"},
		{"end of server", func(g *rig, _ *http.Request) { _ = g.line.Close() }, 503, ""},
	} {
		for provider, word := range words {
			name := refused.name + " " + provider
			g := newRig(t, provider, llm.Quota{Requests: 50}, http.NotFoundHandler(), func(c *gateway.Config, _ *shaper.Limits) {
				c.Team = func(r *http.Request) (string, bool) { return "gold", r.Header.Get("No-Token") == "" }
			})
			r := request(t.Context(), provider, 100, 10, false)
			refused.prepare(g, r)
			w := g.call("gold", r)
			require.Equal(t, refused.status, w.Code, name)
			require.Contains(t, w.Body.String(), refused.message, name)
			require.Contains(t, w.Body.String()+w.Header().Get("X-Amzn-Errortype"), word[i], name)
			require.Equal(t, strings.HasPrefix(provider, "openai") && refused.status == 401, strings.Contains(w.Body.String(), `"code":"invalid_api_key"`), name)
			require.Equal(t, refused.status, g.last(t).Status, name)
			require.Zero(t, g.line.Stats().Departed, name)
		}
	}
}

// A call that none of several replicas could serve is told so in the words of its provider. Nobody is told to send one again that the
// provider may have answered.
func TestACallThatNoReplicaCouldServe(t *testing.T) {
	for _, provider := range gateway.Providers() {
		g := newRig(t, provider, llm.Quota{Requests: 50}, http.NotFoundHandler(), nil)
		for status, want := range map[int]struct{ message, after string }{
			502: {"the provider may have answered it", ""},
			503: {"No replica of the gateway can serve the call just now", "3"},
		} {
			after, _ := strconv.Atoi(want.after)
			w := httptest.NewRecorder()
			g.WriteUnavailable(w, status, time.Duration(after)*time.Second)
			require.Equal(t, status, w.Code)
			require.Contains(t, w.Body.String(), want.message)
			require.Equal(t, want.after, w.Header().Get("Retry-After"))
			require.Equal(t, "application/json", w.Header().Get("Content-Type"))
			word := map[string][2]string{
				"anthropic": {`"type":"api_error"`, `"type":"api_error"`}, "gemini": {`"status":"INTERNAL"`, `"status":"UNAVAILABLE"`},
				"bedrock": {"InternalServerException", "ServiceUnavailableException"},
			}[provider]
			if word == [2]string{} {
				word = [2]string{`"type":"server_error"`, `"type":"server_error"`}
			}
			require.Contains(t, w.Body.String()+w.Header().Get("X-Amzn-Errortype"), word[status-502], provider)
		}
	}
}

// Whoever has the error of a call can have it told, be it a refusal or not.
func TestAnErrorThatIsNoRefusalIsToldToo(t *testing.T) {
	g := newRig(t, "openai", llm.Quota{Requests: 50}, http.NotFoundHandler(), nil)
	for _, err := range []error{io.ErrUnexpectedEOF, fmt.Errorf("line: %w", io.ErrClosedPipe)} {
		w := httptest.NewRecorder()
		g.WriteError(w, request(t.Context(), "openai", 10, 10, false), err)
		require.Equal(t, 503, w.Code)
		require.JSONEq(t, `{"error":{"message":"The request could not be admitted.","type":"server_error","param":null,"code":null}}`, w.Body.String())
		require.Equal(t, "1", w.Header().Get("Retry-After"))
	}
}

// A call without a body, as for the list of models, has nothing that could be read after a refusal, or be missing when it is sent
// again.
func TestACallWithoutABody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		g := newRig(t, "openai", llm.Quota{Requests: 50}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if asked++; asked == 1 {
				w.Header().Set("Retry-After", "2")
				w.WriteHeader(http.StatusTooManyRequests)
			}
		}), func(c *gateway.Config, _ *shaper.Limits) {
			c.Team = func(r *http.Request) (string, bool) { return "gold", r.Header.Get("No-Token") == "" }
		})
		models := func() *http.Request {
			return httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/models", nil)
		}
		require.Equal(t, 200, g.call("gold", models()).Code)
		require.Equal(t, 2, asked)

		refused := models()
		refused.Header.Set("No-Token", "1")
		w := g.call("gold", refused)
		require.Equal(t, 401, w.Code)
		require.Empty(t, w.Header().Get("Connection"), "the connection can be used again")
	})
}

// The provider's fields say what others have taken, so a caller gets fields about the gateway's bucket.
func TestTheFieldsAboutLimitsAreThoseOfTheBucket(t *testing.T) {
	for provider, want := range map[string]http.Header{
		"openai": {
			"X-Ratelimit-Limit-Requests": {"50"}, "X-Ratelimit-Remaining-Requests": {"24"}, "X-Ratelimit-Reset-Requests": {"1.2s"},
			"X-Ratelimit-Limit-Tokens": {"10000"}, "X-Ratelimit-Remaining-Tokens": {"4800"}, "X-Ratelimit-Reset-Tokens": {"1.2s"},
		},
		"anthropic": {
			"Anthropic-Ratelimit-Requests-Limit": {"50"}, "Anthropic-Ratelimit-Requests-Remaining": {"24"}, "Anthropic-Ratelimit-Requests-Reset": {"2000-01-01T00:00:02Z"},
			"Anthropic-Ratelimit-Tokens-Limit": {"10000"}, "Anthropic-Ratelimit-Tokens-Remaining": {"4800"}, "Anthropic-Ratelimit-Tokens-Reset": {"2000-01-01T00:00:02Z"},
		},
		"gemini": {},
	} {
		synctest.Test(t, func(t *testing.T) {
			next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				for _, field := range []string{"X-Ratelimit-Remaining-Input-Tokens", "X-Ratelimitbysize-Limit-Month", "Anthropic-Ratelimit-Output-Tokens-Limit", "X-Request-Id"} {
					w.Header().Set(field, "7")
				}
				w.WriteHeader(200)
			})
			g := newRig(t, provider, llm.Quota{Requests: 50, Tokens: 10_000}, next, nil)
			got := g.call("gold", request(t.Context(), provider, 50, 10, false)).Header()
			require.Equal(t, "7", got.Get("X-Request-Id"))
			got.Del("X-Request-Id")
			got.Del("Server-Timing")
			require.Equal(t, want, got, provider)
		})
	}
}

// While a call waits, the line is held, as many calls run as may, or no more may come, nothing is left that another could have at once.
func TestNothingIsLeftWhileACallWaitsOrTheLineIsHeld(t *testing.T) {
	for name, prepare := range map[string]func(t *testing.T, g *rig){
		"a call waits": func(t *testing.T, g *rig) {
			go func() { _ = g.line.For("batch").WaitN(t.Context(), g.line.Stats().Limits.Burst) }()
		},
		"held":    func(_ *testing.T, g *rig) { g.line.Hold(time.Minute) },
		"closed":  func(t *testing.T, g *rig) { require.NoError(t, g.line.Close()) },
		"neither": func(*testing.T, *rig) {},
		"no seat": func(*testing.T, *rig) {},
	} {
		synctest.Test(t, func(t *testing.T) {
			var g *rig
			g = newRig(t, "openai", llm.Quota{Requests: 50}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				prepare(t, g)
				synctest.Wait()
				w.WriteHeader(200)
			}), func(_ *gateway.Config, l *shaper.Limits) {
				if name == "no seat" {
					l.InFlight = 1
				}
			})
			w := g.call("gold", request(t.Context(), "openai", 50, 10, false))
			want := map[string][2]string{"a call waits": {"0", "1.2s"}, "closed": {"0", "1.2s"}, "no seat": {"0", "1.2s"}, "held": {"0", "1m0s"}, "neither": {"24", "1.2s"}}[name]
			require.Equal(t, want, [2]string{w.Header().Get("X-Ratelimit-Remaining-Requests"), w.Header().Get("X-Ratelimit-Reset-Requests")}, name)
			time.Sleep(time.Hour)
		})
	}
}

// Somebody else may use the quota, too. What the provider says is left, the bucket has at most.
func TestTheBucketFollowsWhatTheProviderSaysIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left := "24"
		g := newRig(t, "openai", llm.Quota{Requests: 50}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Ratelimit-Remaining-Requests", left)
			w.WriteHeader(200)
		}), nil)
		g.call("gold", request(t.Context(), "openai", 10, 10, false))
		require.InDelta(t, 20_000, g.line.Stats().Level, 0)
		left = "3"
		g.call("gold", request(t.Context(), "openai", 10, 10, false))
		require.InDelta(t, 440_000, g.line.Stats().Level, 0)
	})
}

// A call that began before the quota was raised may hear of more than it knows of. That says nothing of a bucket that has grown since.
func TestWhatIsLeftOfALargerQuotaLowersNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := llm.Quota{Requests: 50}
		var g *rig
		g = newRig(t, "openai", q, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			limits, err := gateway.Limits(llm.Quota{Requests: 500}, gateway.Scale(q, llm.Quota{Requests: 500}), 30*time.Second, 1000)
			require.NoError(t, err)
			require.NoError(t, g.line.SetLimits(limits))
			w.Header().Set("X-Ratelimit-Remaining-Requests", "490")
			w.WriteHeader(200)
		}), nil)
		w := g.call("gold", request(t.Context(), "openai", 10, 10, false))
		require.InDelta(t, 20_000, g.line.Stats().Level, 0)
		require.Equal(t, "50", w.Header().Get("X-Ratelimit-Remaining-Requests"), "of 50, as the call knows of no more")
	})
}

// After a 429 all calls wait for as long as it asks, and the call itself is sent again ahead of its team's others.
func TestARefusalOfTheProviderHoldsTheLineAndIsSentAgain(t *testing.T) {
	for name, refusal := range map[string]struct {
		provider string
		status   int
		header   map[string]string
		body     string
		pause    time.Duration // 0: it is passed on
	}{
		"429 with a time":     {"openai", 429, map[string]string{"Retry-After-Ms": "2500", "X-Ratelimit-Remaining-Tokens": "0"}, "slow", 2500 * time.Millisecond},
		"429 with a day":      {"openai", 429, map[string]string{"Retry-After": "86400"}, "slow", time.Minute},
		"429 with RetryInfo":  {"gemini", 429, nil, `{"error":{"details":[{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"3s"}]}}`, 3 * time.Second},
		"429 without a time":  {"bedrock", 429, nil, "ThrottlingException", time.Second},
		"529 with a time":     {"anthropic", 529, map[string]string{"Retry-After": "4"}, "busy", 4 * time.Second},
		"529 without a time":  {"anthropic", 529, nil, "overloaded", 0},
		"503 without a time":  {"openai", 503, nil, "down", 0},
		"500 asks in vain":    {"openai", 500, map[string]string{"Retry-After": "4"}, "broken", 0},
		"429 that never ends": {"openai", 429, map[string]string{"Retry-After": "1", "Endless": "1"}, "slow", time.Second},
		"429 that breaks off": {"openai", 429, map[string]string{"Retry-After": "1", "Breaks": "1", "Content-Length": "9"}, "slow", time.Second},
		"429 that is long":    {"openai", 429, map[string]string{"Retry-After": "1"}, strings.Repeat("x", 64<<10+1), 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var came []string
				next := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					came = append(came, r.Header.Get("Call"))
					r.Header.Set("Call", "changed by a handler")
					body, err := io.ReadAll(r.Body)
					require.NoError(t, err)
					require.Contains(t, string(body), `"content"`)
					if len(came) > 1 {
						w.Header().Set("Content-Type", "application/json")
						_, _ = w.Write([]byte(`{"usage":{"prompt_tokens":10,"completion_tokens":10},"fine":true}`))
						return
					}
					time.Sleep(time.Millisecond) // The second call comes.
					for field, value := range refusal.header {
						w.Header().Set(field, value)
					}
					w.WriteHeader(refusal.status)
					_, _ = w.Write([]byte(refusal.body))
					w.(http.Flusher).Flush()
					if refusal.header["Breaks"] != "" {
						panic(http.ErrAbortHandler)
					}
					if refusal.header["Endless"] != "" {
						<-r.Context().Done()
						panic(http.ErrAbortHandler)
					}
				})
				g := newRig(t, refusal.provider, llm.Quota{Requests: 6000}, next, func(_ *gateway.Config, l *shaper.Limits) { l.InFlight = 1 })
				type result struct {
					*httptest.ResponseRecorder
					at time.Duration
				}
				send := func(call string) <-chan result {
					r, answered := request(t.Context(), "openai", 10, 10, false), make(chan result, 1) // one answer
					r.Header.Set("Call", call)
					go func() { answered <- result{g.call("gold", r), time.Since(epoch)} }()
					synctest.Wait()
					return answered
				}
				first, second := send("first"), send("second")
				r := <-first
				<-second
				if refusal.pause == 0 {
					require.Equal(t, refusal.status, r.Code)
					require.Equal(t, refusal.body, r.Body.String())
					require.Equal(t, []string{"first", "second"}, came)
					return
				}
				require.Equal(t, 200, r.Code)
				require.Contains(t, r.Body.String(), "fine")
				require.Empty(t, r.Header().Values("Endless"), "the first answer's header is gone")
				if refusal.header["Endless"] != "" {
					refusal.pause += 5 * time.Second
				}
				require.Equal(t, time.Millisecond+refusal.pause, r.at)
				require.Equal(t, []string{"first", "first", "second"}, came)
				held := 0
				for _, record := range g.records {
					require.Equal(t, 200, record.Status)
					if record.HeldByProvider {
						held++
					}
				}
				require.Equal(t, 1, held)
				if refusal.status == 429 {
					require.Equal(t, uint64(1), g.Ledger().Status(time.Now(), 1).Refusals)
					require.Contains(t, g.log.lines()[0], "the provider has refused a call")
				}
			})
		})
	}
}

// What can't be sent again is passed on, and so is the second refusal.
func TestARefusalThatIsPassedOn(t *testing.T) {
	for name, c := range map[string]struct {
		timeout  time.Duration
		input    int
		attempts int
	}{
		"the second one":         {time.Hour, 10, 2},
		"the deadline is nearer": {3 * time.Second, 10, 1},
		"the body is too long":   {time.Hour, 1 << 19, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			attempts := 0
			next := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				attempts++
				w.Header().Set("Retry-After", strconv.Itoa(4*attempts))
				w.WriteHeader(429)
				_, _ = w.Write([]byte("no"))
			})
			g := newRig(t, "openai", llm.Quota{Requests: 6000}, next, nil)
			ctx, stop := context.WithTimeout(t.Context(), c.timeout)
			defer stop()
			w := g.call("gold", request(ctx, "openai", c.input, 10, false))
			require.Equal(t, 429, w.Code, name)
			require.Equal(t, "no", w.Body.String(), name)
			require.Equal(t, c.attempts, attempts, name)
			require.Equal(t, strconv.Itoa(4*attempts), w.Header().Get("Retry-After"), name)
			require.Equal(t, time.Now().Add(time.Duration(4*attempts)*time.Second), g.line.Stats().HeldUntil, name)
			require.Zero(t, g.line.Stats().Level, name, "a refused call has taken nothing")
			require.Equal(t, "0", w.Header().Get("X-Ratelimit-Remaining-Requests"), name, "no call may leave now")
		})
	}
}

// While it waits to be sent again, the caller may go.
func TestACallerThatGoesWhileTheProviderHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, "openai", llm.Quota{Requests: 6000}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Request-Id", "first")
			w.WriteHeader(429)
		}), nil)
		ctx, cancel := context.WithCancel(t.Context())
		answered := make(chan *httptest.ResponseRecorder, 1) // one answer
		go func() { answered <- g.call("gold", request(ctx, "openai", 10, 10, false)) }()
		synctest.Wait()
		require.Equal(t, 1, g.line.Stats().Waiting)
		cancel()
		w := <-answered
		require.Equal(t, gateway.StatusGone, w.Code, "a caller that has closed its sending half alone reads it")
		require.Equal(t, http.Header{"Connection": {"close"}}, w.Header())
		require.Zero(t, g.line.Stats().Waiting)
		require.Equal(t, gateway.StatusGone, g.last(t).Status)
		time.Sleep(time.Second)
		require.Zero(t, g.line.Stats().Level)
	})
}

// Between the line and the handler behind it the caller may go, too. Then nothing is sent, and the estimate is for others.
func TestACallerThatGoesAsItLeavesTheLineCostsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the call is sent") })
		g := newRig(t, "openai", llm.Quota{Tokens: 100_000}, next, func(_ *gateway.Config, l *shaper.Limits) { l.InFlight = 1 })
		ctx, cancel := context.WithCancel(t.Context())
		var err error
		g.line, err = shaper.New(g.line.Limits(), shaper.WithFairQueue(nil), shaper.WithTrace(&shaper.Trace{
			Departed: func(context.Context, shaper.Event) { cancel() },
		}))
		require.NoError(t, err)
		g.call("gold", request(ctx, "openai", 1000, 4000, false))
		st := g.line.Stats()
		require.Equal(t, uint64(1), st.Departed)
		require.Zero(t, st.Reserved)
		require.Zero(t, st.InFlight, "the seat is free")
		require.Zero(t, st.Level)
		require.Equal(t, gateway.StatusGone, g.last(t).Status)
		require.Empty(t, g.log.lines())
	})
}

package main

import (
	"fmt"
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

// Many calls at once by each library, plain and streamed, with its own retries off and on: each gets its answer,
// none is refused, and each settles with what it has taken.
func TestEachLibraryWithinItsQuota(t *testing.T) {
	for _, m := range models {
		for _, stream := range []bool{false, true} {
			for _, retries := range []int{0, 2} {
				t.Run(fmt.Sprint(m.name, " stream=", stream, " retries=", retries), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						s, server, ask := paced(t, m, m.quota, retries, 0)
						const calls = 40
						var all sync.WaitGroup
						for i := range calls {
							all.Go(func() {
								answer, err := ask(t.Context(), fmt.Sprint(i, strings.Repeat(" word", 80)), stream)
								if err != nil || answer != strings.Repeat("word", 70) {
									t.Errorf("%q, %v", answer, err)
								}
							})
						}
						all.Wait()
						synctest.Wait() // A client may have gone before the end of a stream was seen.
						at, st := server.Stats(), s.Stats()
						require.Equal(t, calls, at.Answered)
						require.Zero(t, at.Refused)
						require.Zero(t, st.Reserved, "all have settled")
						require.Equal(t, calls, int(st.Departed))
						if m.dialect == llmtest.Anthropic { // OpenAI and Gemini count no more than what is known when a call begins.
							require.NotZero(t, st.GivenBack)
						}
					})
				})
			}
		}
	}
}

// Somebody else uses the same quota, so calls are refused. The library calls again, after the time
// that the provider says, as a call of its own; without retries the caller gets the error.
func TestEachLibraryIsRefused(t *testing.T) {
	for _, m := range models {
		for _, retries := range []int{0, 3} {
			t.Run(fmt.Sprint(m.name, " retries=", retries), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					_, server, ask := paced(t, m, llm.Quota{Requests: 2}, retries, 0)
					start := time.Now()
					for i := range 3 {
						_, err := ask(t.Context(), "question", i%2 == 0)
						if i < 2 || retries > 0 {
							require.NoError(t, err)
						} else {
							require.ErrorContains(t, err, "429")
						}
					}
					if retries > 0 {
						require.GreaterOrEqual(t, time.Since(start), 28*time.Second)
						synctest.Wait()
						require.Equal(t, 3, server.Stats().Answered)
					}
					require.Positive(t, server.Stats().Refused)
				})
			})
		}
	}
}

// An overload is no matter of the quota: nothing is held, and the library's own backoff decides.
func TestEachLibraryMeetsAnOverload(t *testing.T) {
	for _, m := range models {
		synctest.Test(t, func(t *testing.T) {
			s, server, ask := paced(t, m, m.quota, 2, 1)
			answer, err := ask(t.Context(), "overload", false)
			require.NoError(t, err)
			require.NotEmpty(t, answer)
			require.True(t, s.Stats().HeldUntil.IsZero())
			require.Equal(t, 1, server.Stats().Failed)
		})
	}
}

// paced returns a library that is paced within the quota of a model, at a provider that allows the quota at
// and answers the first calls by overloads.
func paced(t *testing.T, m model, at llm.Quota, retries, overloads int) (*shaper.Shaper, *llmtest.Server, ask) {
	limits, err := m.quota.Limits(2*time.Second, 1000)
	require.NoError(t, err)
	s, err := shaper.New(limits)
	require.NoError(t, err)
	server := llmtest.New(llmtest.Config{Dialect: m.dialect, Quota: at, Answer: func(c llmtest.Call) llmtest.Answer {
		if c.N < overloads {
			return llmtest.Answer{Status: http.StatusServiceUnavailable}
		}
		return llmtest.Answer{Output: 70, First: 100 * time.Millisecond, Took: time.Second}
	}})
	transport := llm.Transport(s, m.quota, m.provider)
	transport.Base = server
	return s, server, m.client(reach{"http://llm.test", transport, retries})
}

package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/servers"
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

// The libraries are not changed, but for the address, which is that of shaperd llm. They call again by themselves.
func TestEachLibraryThroughAGateway(t *testing.T) {
	program := servers.BuildShaperd(t)
	for _, m := range models {
		t.Run(m.name, func(t *testing.T) {
			server := llmtest.New(llmtest.Config{Dialect: m.dialect, Quota: m.quota, Answer: func(llmtest.Call) llmtest.Answer {
				return llmtest.Answer{Output: 70, First: 20 * time.Millisecond, Took: 160 * time.Millisecond}
			}})
			upstream := httptest.NewServer(server)
			defer upstream.Close()
			start := func(limits string) (ask, *servers.Gateway) {
				g := servers.StartLLM(t, program, upstream.URL, strings.ToLower(string(m.dialect)), limits)
				return m.client(reach{g.URL, nil, 2}), g
			}

			// Ten a second, and ten at once.
			ask, g := start("--requests 600 --burst 1s")
			const calls, abandoned = 20, 4
			var all sync.WaitGroup
			for i := range calls {
				all.Go(func() {
					answer, err := ask(t.Context(), fmt.Sprint(i, strings.Repeat(" word", 80)), i%2 == 0)
					if err != nil || answer != strings.Repeat("word", 70) {
						t.Errorf("%q, %v", answer, err)
					}
				})
			}
			for range abandoned {
				all.Go(func() {
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					gone := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotFirstResponseByte: cancel})
					if _, err := ask(gone, "question", true); err == nil {
						t.Error("an answer of which nothing but the first piece was wanted")
					}
				})
			}
			all.Wait()
			records := g.Usage(t, calls+abandoned)
			require.Zero(t, server.Stats().Refused, "by the provider")
			require.Eventually(t, func() bool {
				s := server.Stats()
				return s.Answered == calls && s.Abandoned == abandoned
			}, 10*time.Second, 10*time.Millisecond)
			waited, known := 0, 0
			for _, r := range records {
				require.Equal(t, 200, r.Status)
				if r.Waited > 0.05 {
					waited++
				}
				if r.Actual != nil {
					require.Equal(t, 70, r.Actual.Output)
					known++
				}
			}
			require.Equal(t, calls, known)
			require.Greater(t, waited, 8)

			// One leaves, one waits, and one is refused and comes again by itself, in time.
			ask, g = start("--requests 120 --burst 500ms --depth 1")
			for range 3 {
				all.Go(func() {
					if _, err := ask(t.Context(), "question", false); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			require.Zero(t, server.Stats().Refused)
			require.Eventually(t, func() bool { return server.Stats().Answered == calls+3 }, 10*time.Second, 10*time.Millisecond)
			refused := 0
			for _, r := range g.Usage(t, 4) {
				if r.Status == 429 {
					refused++
				}
			}
			require.Positive(t, refused)
		})
	}
}

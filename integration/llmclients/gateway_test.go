package main

import (
	"context"
	"fmt"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/llm/llmtest"
)

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

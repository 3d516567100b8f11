package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"net/http/httptrace"
	"os"
	"path/filepath"
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
			start := func(limits string) (ask, string) {
				log := filepath.Join(t.TempDir(), "usage.log")
				args := "--upstream " + upstream.URL + " --provider " + strings.ToLower(string(m.dialect)) + " --usage " + log + " " + limits
				return m.client(reach{servers.StartLLM(t, program, strings.Fields(args)...).URL, nil, 2}), log
			}

			// Ten a second, and ten at once.
			ask, log := start("--requests 600 --burst 1s")
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
			records := usage(t, log, calls+abandoned)
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
			ask, log = start("--requests 120 --burst 500ms --depth 1")
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
			for _, r := range usage(t, log, 4) {
				if r.Status == 429 {
					refused++
				}
			}
			require.Positive(t, refused)
		})
	}
}

// A record is a line of the usage log.
type record struct {
	Waited float64
	Status int
	Actual *struct{ Input, Output int }
}

// usage returns the lines of a usage log when there are so many, which is soon after the calls have ended.
func usage(t *testing.T, log string, atLeast int) (all []record) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		text, err := os.ReadFile(log)
		if err == nil && strings.Count(string(text), "\n") >= atLeast {
			for line := range strings.Lines(string(text)) {
				var r record
				require.NoError(t, json.Unmarshal([]byte(line), &r), line)
				all = append(all, r)
			}
			return all
		}
		require.True(t, time.Now().Before(deadline), "%v, %s", err, text)
	}
}

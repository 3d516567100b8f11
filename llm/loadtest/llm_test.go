// Package loadtest_test runs shaperd llm as it is run: with real client libraries, with many calls in line, and with a provider
// that is killed.
package loadtest_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/llm/llmtest"
)

var load = flag.Bool("load", false, "run what builds a shaperd, which takes minutes the first time")

func needLoad(t *testing.T) {
	t.Helper()
	if !*load {
		t.Skip("it is run by go test ./llm/loadtest -load")
	}
}

// providerAt is the name of the variable that makes this program a provider at an address.
const providerAt = "LOADTEST_PROVIDER"

func TestMain(m *testing.M) {
	if addr := os.Getenv(providerAt); addr != "" {
		provider := llmtest.New(llmtest.Config{Dialect: llmtest.OpenAI, Answer: func(llmtest.Call) llmtest.Answer {
			return llmtest.Answer{Output: 800, First: 20 * time.Millisecond, Took: 20 * time.Second}
		}})
		fmt.Fprintln(os.Stderr, http.ListenAndServe(addr, provider))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// Of a call that waits the gateway keeps its body, and little more.
func TestAThousandCallsInLine(t *testing.T) {
	needLoad(t)
	const calls, size = 1000, 100_000
	server := llmtest.New(llmtest.Config{Dialect: llmtest.OpenAI})
	upstream := httptest.NewServer(server)
	defer upstream.Close()
	// One leaves at once, and the next after 6 s: the others wait while the memory is measured.
	gateway := servers.StartLLM(t, servers.BuildShaperd(t), upstream.URL, "openai", "--requests 10 --burst 0s --depth 1000 --wait 3h")
	before := gateway.Memory(t)

	body := []byte(`{"model":"m","max_completion_tokens":1,"messages":[{"role":"user","content":"` + strings.Repeat("x", size) + `"}]}`)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	sent := make(chan struct{}, calls) // one value for each call
	for range calls {
		all.Go(func() {
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, gateway.URL+"/v1/chat/completions", &whenRead{bytes.NewReader(body), sent})
			if err != nil {
				t.Error(err)
				return
			}
			r.ContentLength = int64(len(body))
			answer, err := http.DefaultClient.Do(r)
			switch {
			case err == nil:
				err = answer.Body.Close()
			case errors.Is(err, context.Canceled):
				err = nil
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	for range calls {
		<-sent
	}
	// The last have been sent, and may still have to come.
	require.Eventually(t, func() bool { return gateway.Memory(t)-before > calls*size }, 30*time.Second, 50*time.Millisecond)
	time.Sleep(3 * time.Second)
	most := gateway.Memory(t)
	t.Logf("%d MB before, %d MB with %d calls of %d bytes in line", before>>20, most>>20, calls, len(body))
	require.Less(t, most-before, int64(3*calls*size))

	cancel()
	all.Wait()
	gone := 0
	for _, l := range gateway.Usage(t, calls) {
		if l.Status == 499 {
			gone++
		}
	}
	require.Greater(t, gone, calls-10, "they have waited")
	require.Less(t, server.Stats().Answered, 10)
}

// whenRead is a body that tells when it has been sent.
type whenRead struct {
	body io.Reader
	sent chan<- struct{} // nil: it has told
}

func (w *whenRead) Read(p []byte) (int, error) {
	n, err := w.body.Read(p)
	if err == io.EOF && w.sent != nil {
		w.sent <- struct{}{}
		w.sent = nil
	}
	return n, err
}

// A provider that is killed ends the answers that it has begun. Nothing hangs, nothing is free, and when it is back calls
// are answered as before.
func TestAProviderIsKilled(t *testing.T) {
	needLoad(t)
	addr := fmt.Sprintf("127.0.0.1:%d", servers.FreePort(t))
	provider := startProvider(t, addr)
	gateway := servers.StartLLM(t, servers.BuildShaperd(t), "http://"+addr, "openai", "--requests 6000")

	client := &http.Client{Timeout: 30 * time.Second} // as long as would be hanging
	call := func(read func(io.Reader) error) (status int, err error) {
		r := llmtest.NewRequest(t.Context(), llmtest.OpenAI, llmtest.Call{Input: 200, Most: 800, Stream: true})
		r.URL.Host = strings.TrimPrefix(gateway.URL, "http://")
		r.Host = ""
		answer, err := client.Do(r)
		if err != nil {
			return 0, err
		}
		defer answer.Body.Close()
		return answer.StatusCode, read(answer.Body)
	}
	whole := func(body io.Reader) error {
		_, err := io.Copy(io.Discard, body)
		return err
	}

	const calls = 20
	var all, begun sync.WaitGroup
	begun.Add(calls)
	for range calls {
		all.Go(func() {
			status, err := call(func(body io.Reader) error {
				_, err := io.ReadFull(body, make([]byte, 100))
				begun.Done()
				if err != nil {
					return fmt.Errorf("before it was killed: %w", err)
				}
				return whole(body)
			})
			if status != http.StatusOK || err == nil || strings.Contains(err.Error(), "before") || os.IsTimeout(err) {
				t.Errorf("an answer that breaks off: status %d, %v", status, err)
			}
		})
	}
	begun.Wait()
	provider.Kill()
	killed := time.Now()
	all.Wait()
	require.Less(t, time.Since(killed), 5*time.Second)
	status, err := call(whole)
	require.NoError(t, err)
	require.Equal(t, http.StatusBadGateway, status)
	for _, l := range gateway.Usage(t, calls+1) {
		require.Nil(t, l.Actual, "the estimates stand")
	}
	said := strings.Count(gateway.Output(), "an answer has broken off, or its caller has gone, and the estimate stands")
	require.Positive(t, said)
	require.LessOrEqual(t, said, 1+int(time.Since(killed)/time.Second), "a line a second, and not one for each call")

	startProvider(t, addr)
	status, err = call(func(body io.Reader) error {
		_, err := io.ReadFull(body, make([]byte, 100))
		return err
	})
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, status)
}

// startProvider starts this program as a provider, and returns when it takes connections. It ends with the test.
func startProvider(t *testing.T, addr string) *servers.Process {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), providerAt+"="+addr)
	return servers.Listening(t, addr, cmd)
}

package caddyshaper_test

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
)

const bodyTimeouts = "servers {\n timeouts {\n read_body_idle 500ms 10000000\n write_idle 500ms\n }\n }"

// Clients that send and read a byte now and then must not keep the others out for ever, and an answer that pauses is no slow client.
func TestSlowClientsDoNotHoldAllPlaces(t *testing.T) {
	for name, lines := range map[string]string{
		"limits": "limits 1000/s burst 100 depth 200 inflight 20", "quota": "quota openai {\n requests 60000\n }\n inflight 20",
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.global = bodyTimeouts
			s.client.Timeout = enough
			s.reload("shape line {\n " + lines + "\n}" + proxied)
			s.upstream.serves(func(w http.ResponseWriter, r *http.Request) {
				switch _, _ = io.Copy(io.Discard, r.Body); r.URL.Path {
				case "/large":
					_, _ = io.Copy(w, io.LimitReader(zeros{}, 64<<20))
				case "/stream":
					for range 2 {
						_, _ = io.WriteString(w, "word ")
						_ = http.NewResponseController(w).Flush()
						time.Sleep(700 * time.Millisecond)
					}
				}
			})
			for i := range 80 {
				conn := s.dial()
				request := "GET /large HTTP/1.1\r\nHost: shop.example\r\n\r\n"
				if i%2 == 0 { // It is more than the gateway reads before the line.
					request = "POST /upload HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 10000000\r\n\r\n" + strings.Repeat(" ", 1<<20+1)
				}
				go func() {
					_, err := io.WriteString(conn, request)
					for b := make([]byte, 1); err == nil; time.Sleep(50 * time.Millisecond) {
						if i%2 == 0 {
							_, err = conn.Write(b)
						} else {
							_, err = conn.Read(b)
						}
					}
				}()
			}
			realtime.Until(t, func() bool { return len(s.upstream.arrivals()) >= 20 }, "all places are taken")
			var good sync.WaitGroup
			answers := make([]answer, 41)
			for i := range answers[:40] {
				good.Go(func() { answers[i] = s.get("/good") })
			}
			good.Go(func() { answers[40] = s.get("/stream") })
			good.Wait()
			for i, a := range answers {
				require.NoError(t, a.err, "%d: %s", i, a.body)
				require.Equal(t, 200, a.status, "%d: %s", i, a.body)
			}
			require.Equal(t, "word word ", answers[40].body)
		})
	}
}

// zeros is a reader of zeros.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// Who sets a cap and no time-outs finds out when slow clients hold all places, unless the log says it before.
func TestACapWithoutTimeoutsIsWarnedOf(t *testing.T) {
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	writeRules(rules, "default: 5/s\nlimits:\n  a: 5/s inflight 3\n")
	const read, write = "read_body_idle 20s 10000", "write_idle 20s"
	capped := "limits 5/s inflight 3"
	for _, c := range []struct{ lines, timeouts, want string }{
		{"limits 5/s", "", ""},
		{"limits 5/s\n candidate 5/s inflight 3", "", ""}, // It holds nobody up.
		{capped, "", read + "; " + write},
		{"limits 5/s\n site 5/s inflight 3", "", read + "; " + write},
		{"limits 5/s inflight 3\n fair host", "", read + "; " + write},
		{"quota openai {\n requests 5\n }\n inflight 3", "", read + "; " + write},
		{"rules " + rules, "", read + "; " + write},
		{capped, "read_body 5s", write},
		{capped, "write 5s", read},
		{capped, "read_body 5s\n write 5s", ""},
		{capped, read + "\n " + write, ""},
		{capped, "read_body_idle 20s\n write_idle 2m", read + "; " + write}, // A byte every 20 s will do.
		{capped, "read_body_idle -1s 1000\n write_idle -1s", read + "; " + write},
	} {
		s := newSite(t)
		s.global = "servers {\n timeouts {\n " + c.timeouts + "\n }\n }"
		s.reload("shape line {\n " + c.lines + "\n}" + proxied)
		s.stop()
		text, err := os.ReadFile(s.log + ".app")
		require.NoError(t, err)
		var warnings []string
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, "slow clients") {
				warnings = append(warnings, line)
			}
		}
		if c.want == "" {
			require.Empty(t, warnings, c.lines+c.timeouts)
			continue
		}
		require.Len(t, warnings, 1, c.lines+c.timeouts)
		require.Contains(t, warnings[0], `"such_as":"servers { timeouts { `+c.want+` } }"`, c.lines+c.timeouts)
		require.Contains(t, warnings[0], `"level":"warn"`)
		require.Contains(t, warnings[0], `"inflight":3`)
	}
}

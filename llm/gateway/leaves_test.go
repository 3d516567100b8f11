package gateway_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/llm"
	"example.com/leakybucket/llm/gateway"
	"example.com/leakybucket/shaper"
)

// Wherever a call is when its caller leaves, it keeps no seat, no reservation and no body.
func TestNothingStaysOfACallWhoseCallerLeaves(t *testing.T) {
	for leaves, stage := range map[time.Duration]string{
		2 * time.Second:  "waits for a seat of its team",
		7 * time.Second:  "in line",
		12 * time.Second: "at the provider, before the answer",
		17 * time.Second: "in line again, after a refusal",
		22 * time.Second: "in the answer",
		time.Minute:      "stays",
	} {
		t.Run(stage, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				at := "waits for a seat of its team"
				attempts := 0
				next := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.Copy(io.Discard, r.Body)
					sleep := func(d time.Duration) {
						select {
						case <-time.After(d):
						case <-r.Context().Done():
							panic(http.ErrAbortHandler) // as httputil.ReverseProxy does
						}
					}
					if r.Header.Get("X-First") != "" {
						sleep(5 * time.Second)
						answersOK(w, r)
						at = "in line"
						return
					}
					if attempts++; attempts == 1 {
						at = "at the provider, before the answer"
						sleep(5 * time.Second)
						w.Header().Set("Retry-After", "5")
						w.WriteHeader(http.StatusTooManyRequests)
						at = "in line again, after a refusal"
						return
					}
					at = "in the answer"
					w.Header().Set("Content-Type", "text/event-stream")
					fmt.Fprint(w, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":9,\"output_tokens\":1}}}\n\n")
					for range 5 {
						fmt.Fprintf(w, "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":%q}}\n\n", strings.Repeat("word ", 400))
						sleep(time.Second)
					}
					fmt.Fprint(w, "event: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":2000}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n")
					at = "stays"
				})
				q := llm.Quota{Requests: 6000, Input: 600_000, Output: 60_000}
				g := newRig(metered{t, 30 * time.Second}, "anthropic", q, next, func(c *gateway.Config, l *shaper.Limits) {
					c.TeamInFlight, c.Estimate, l.InFlight = 1, "learned", 1
				})
				call := func(ctx context.Context, first string) {
					r := request(ctx, "anthropic", 100, 1000, true)
					if first != "" {
						r.Header.Set("X-First", first)
					}
					g.call("gold", r)
				}
				go call(t.Context(), "yes")
				synctest.Wait()
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				ended := make(chan bool)
				go func() {
					call(ctx, "")
					close(ended)
				}()
				g.line.Hold(10 * time.Second)
				time.Sleep(leaves)
				synctest.Wait()
				require.Equal(t, stage, at)
				leave()
				<-ended
				time.Sleep(5 * time.Second) // The call before it has ended.
				synctest.Wait()
				st := g.line.Stats()
				require.Zero(t, st.InFlight)
				require.Zero(t, st.Waiting)
				require.Zero(t, st.Reserved)
				for _, m := range g.line.Meters() {
					require.Zero(t, m.Reserved, m.Name)
				}
				require.Zero(t, g.Ledger().Waiting())
				require.Zero(t, g.held())
				done := make(chan bool)
				go func() {
					call(t.Context(), "again")
					close(done)
				}()
				time.Sleep(time.Minute)
				synctest.Wait()
				select {
				case <-done:
				default:
					t.Fatal("the next call of the team finds no seat")
				}
			})
		})
	}
}

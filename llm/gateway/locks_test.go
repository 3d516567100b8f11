package gateway_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/llm"
	"example.com/leakybucket/llm/gateway"
	"example.com/leakybucket/shaper"
)

// done runs a function in a goroutine of its own, and reports whether it has returned.
func done(f func()) func() bool {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f()
	}()
	return func() bool {
		select {
		case <-ended:
			return true
		default:
			return false
		}
	}
}

// What a program gives the Ledger may ask the Ledger, and calls end meanwhile.
func TestWhatALedgerCallsMayAskTheLedger(t *testing.T) {
	var g *rig
	asks := func() {
		_ = g.Ledger().Totals()
		g.Ledger().Refuse("gold")
	}
	line := (*shaper.Shaper)(nil)
	g = newRig(t, "openai", llm.Quota{Requests: 50}, http.NotFoundHandler(), func(c *gateway.Config, _ *shaper.Limits) {
		c.Weight = func(string) int { asks(); return 2 }
		c.Line = func() *shaper.Shaper {
			if line == nil {
				return g.line
			}
			asks()
			return line
		}
	})
	g.call("gold", request(t.Context(), "openai", 10, 10, false))
	line = g.line
	var st gateway.Status
	realtime.Until(t, done(func() { st = g.Ledger().Status(time.Now(), 5) }), "the Ledger answers")
	require.Equal(t, 2, st.Teams[0].Weight)
}

package gateway_test

import (
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/llm"
	"example.com/leakybucket/llm/gateway"
	"example.com/leakybucket/shaper"
)

// In no line is a call for longer than its limits let it wait, whatever holds it up. When it was admitted, nobody could know.
func TestNoCallIsInLineForLongerThanItMayWait(t *testing.T) {
	const wait = 10 * time.Second
	takesAMinute := func(w http.ResponseWriter, r *http.Request) {
		for name := range r.Header {
			require.NotContains(t, name, "Rest-Of-Wait", "it is for the line alone")
		}
		time.Sleep(time.Minute)
		answersOK(w, r)
	}
	refusesAll := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "6")
		w.WriteHeader(http.StatusTooManyRequests)
	}
	for _, tt := range []struct {
		name    string
		next    http.HandlerFunc
		change  func(*gateway.Config, *shaper.Limits)
		teams   []string // one call each, a second after the one before
		refused int      // of them
	}{
		{"turns of teams", takesAMinute, func(_ *gateway.Config, l *shaper.Limits) { l.InFlight = 1 }, []string{"a", "a", "a", "b", "c", "b"}, 5},
		{"a cap for each team", takesAMinute, func(c *gateway.Config, _ *shaper.Limits) { c.TeamInFlight = 1 }, []string{"a", "a", "a", "b", "c", "b"}, 3},
		{"a cap for each team, and one for all", takesAMinute, func(c *gateway.Config, l *shaper.Limits) { c.TeamInFlight, l.InFlight = 1, 1 }, []string{"a", "a", "b", "c", "b"}, 4},
		{"sent again after 429", refusesAll, func(*gateway.Config, *shaper.Limits) {}, []string{"a", "a", "b", "c", "b"}, 5},
		{"sent again after a wait for a seat and 429", refusesAll, func(c *gateway.Config, _ *shaper.Limits) { c.TeamInFlight = 1 }, []string{"a", "a", "b", "c", "b"}, 5},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				models := gateway.Models{}
				var rigs []*rig
				for _, pattern := range []string{"other", "m"} { // The calls are for the second quota.
					var line *shaper.Shaper
					g := newRig(t, "openai", llm.Quota{Requests: 600, Tokens: 600_000}, tt.next, func(c *gateway.Config, l *shaper.Limits) {
						l.MaxWait = wait
						tt.change(c, l)
						var err error
						line, err = shaper.New(*l, shaper.WithFairQueue(nil), shaper.WithLineTimeout(0))
						require.NoError(t, err)
						c.Line = func() *shaper.Shaper { return line }
					})
					rigs = append(rigs, g)
					models = append(models, gateway.Model{Pattern: pattern, Gateway: g.Gateway})
				}
				g := rigs[1]
				g.Handler = models.Wrap(tt.next)
				var all sync.WaitGroup
				for _, team := range tt.teams {
					all.Go(func() { g.call(team, request(t.Context(), "openai", 10, 10, false)) })
					time.Sleep(time.Second)
				}
				all.Wait()
				require.Len(t, g.records, len(tt.teams))
				refused, longest := 0, time.Duration(0)
				for _, r := range g.records {
					if r.Status == http.StatusTooManyRequests {
						refused++
					}
					longest = max(longest, time.Duration(r.Waited*float64(time.Second)))
				}
				require.Equal(t, tt.refused, refused)
				require.Equal(t, wait, longest, "some wait as long as they may")
				require.Empty(t, rigs[0].records)
			})
		})
	}
}

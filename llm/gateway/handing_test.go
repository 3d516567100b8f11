package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

// A line goes on in another process as it was, or with all levels full, from whichever clock it comes.
func TestALineGoesOnInAnotherProcess(t *testing.T) {
	q := llm.Quota{Requests: 6000, Input: 600_000, Output: 60_000}
	for _, tt := range []struct {
		name    string
		isMany  bool // a level for each limit
		save    func(gateway.Models) ([]byte, error)
		full    bool
		age     time.Duration
		left    []float64 // parts of the bursts
		hold    time.Duration
		learned bool
	}{
		{"as it was", true, gateway.Models.Save, false, 0, []float64{.9, .5, .2}, 20 * time.Second, true},
		{"as it was, after a while", true, gateway.Models.Save, false, 3 * time.Second, []float64{1, .6, .3}, 17 * time.Second, true},
		{"full", true, gateway.Models.Save, true, 0, []float64{0, 0, 0}, 20 * time.Second, true},
		{"the holds alone", true, gateway.Models.Holds, true, 3 * time.Second, []float64{0, 0, 0}, 17 * time.Second, false},
		{"the holds alone, not full", true, gateway.Models.Holds, false, 0, []float64{1, 1, 1}, 20 * time.Second, false},
		{"nothing, and full", true, nil, true, 0, []float64{0, 0, 0}, 0, false},
		{"nothing", true, nil, false, 0, []float64{1, 1, 1}, 0, false},
		{"one bucket, as it was", false, gateway.Models.Save, false, 3 * time.Second, []float64{.3}, 17 * time.Second, true},
		{"one bucket, full", false, gateway.Models.Holds, true, 0, []float64{0}, 20 * time.Second, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				make := func() *rig {
					by := testing.TB(t)
					if tt.isMany {
						by = metered{t, 30 * time.Second}
					}
					return newRig(by, "anthropic", q, http.NotFoundHandler(), func(c *gateway.Config, _ *shaper.Limits) { c.Estimate = "learned" })
				}
				from, to := make(), make()
				if tt.isMany {
					from.line.AtMostEach(2700, 150_000, 6000)
				} else {
					from.line.AtMost(100_000)
				}
				from.line.Hold(20 * time.Second)
				from.Ledger().Learn("gold", "m", 7)
				models := func(g *rig) gateway.Models { return gateway.Models{{Gateway: g.Gateway}} }
				var handed []byte
				if tt.save != nil {
					var err error
					handed, err = tt.save(models(from))
					require.NoError(t, err)
				}
				time.Sleep(time.Hour) // The clock of the other may show anything.
				require.NoError(t, models(to).Begin(handed, tt.age, tt.full))
				st := to.line.Stats()
				require.Equal(t, tt.hold, max(0, time.Until(st.HeldUntil)))
				left := []float64{1 - st.Level/float64(st.Limits.Burst)}
				for _, m := range to.line.Meters() {
					left = append(left, 1-m.Level/float64(m.Burst))
				}
				require.InDeltaSlice(t, tt.left, left, 1e-9)
				want := 1000
				if tt.learned {
					want = 7
				}
				require.Equal(t, want, to.Ledger().Likely("gold", "m"))
			})
		})
	}
}

// A line whose levels are empty is as it was, but for them.
func TestEmptyLevels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(metered{t, 30 * time.Second}, "anthropic", llm.Quota{Requests: 6000, Input: 600_000, Output: 60_000}, http.NotFoundHandler(), nil)
		g.line.AtMostEach(2700, 150_000, 6000)
		g.line.Hold(20 * time.Second)
		limits, meters := g.line.Limits(), g.line.Meters()
		require.NoError(t, gateway.Models{{Gateway: g.Gateway}}.Empty())
		require.Equal(t, limits, g.line.Limits())
		require.Zero(t, g.line.Stats().Level)
		require.Equal(t, 20*time.Second, time.Until(g.line.Stats().HeldUntil))
		for i, m := range g.line.Meters() {
			require.Positive(t, meters[i].Level)
			require.Zero(t, m.Level)
			require.Equal(t, meters[i].Meter, m.Meter)
		}
	})
}

// What does not fit leaves full levels, and what is damaged is an error.
func TestALineThatDoesNotFit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		models := func(q llm.Quota, patterns ...string) (m gateway.Models, lines []*shaper.Shaper) {
			for _, p := range patterns {
				g := newRig(t, "openai", q, http.NotFoundHandler(), nil)
				m, lines = append(m, gateway.Model{Pattern: p, Gateway: g.Gateway}), append(lines, g.line)
			}
			return m, lines
		}
		from, lines := models(llm.Quota{Requests: 60}, "a", "b")
		lines[0].Hold(time.Minute)
		saved, err := from.Save()
		require.NoError(t, err)
		to, lines := models(llm.Quota{Requests: 120}, "a", "c")
		require.NoError(t, to.Begin(saved, 0, false))
		for i, l := range lines {
			require.InDelta(t, float64(l.Limits().Burst), l.Stats().Level, 1e-9, "a level in other units, or of another line, says nothing")
			require.Equal(t, i == 0, time.Until(l.Stats().HeldUntil) == time.Minute)
		}
		same, _ := models(llm.Quota{Requests: 60}, "a", "b")
		for name, damaged := range map[string]string{
			"handed on is damaged":         `{`,
			"handed on has version 0":      `{}`,
			"handed on has version 2":      strings.Replace(string(saved), `{"version":1`, `{"version":2`, 1),
			"the snapshot has version 3":   strings.Replace(string(saved), `"line":{"version":1`, `"line":{"version":3`, 1),
			"the snapshot is damaged":      strings.Replace(string(saved), `"held_ns":6`, `"held_ns":-6`, 1),
			"the saved estimates have ver": strings.Replace(string(saved), `"learned":{"version":1`, `"learned":{"version":4`, 1),
		} {
			require.ErrorContains(t, same.Begin([]byte(damaged), 0, false), name)
		}
	})
}

// A level that is above its burst, as a call costs more than that, is part of what each renewal says.
func TestALevelAboveItsBurstIsNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := llm.Quota{Requests: 60, Tokens: 60_000}
		make := func() *rig { return newRig(metered{t, 30 * time.Second}, "openai", q, http.NotFoundHandler(), nil) }
		from, to := make(), make()
		require.NoError(t, from.line.WaitEach(t.Context(), 1, 50_000))
		handed, err := gateway.Models{{Gateway: from.Gateway}}.Holds()
		require.NoError(t, err)
		require.NoError(t, gateway.Models{{Gateway: to.Gateway}}.Begin(handed, 0, true))
		require.InDelta(t, 50_000, to.line.Meters()[0].Level, 1e-6)
		require.InDelta(t, 30, to.line.Stats().Level, 1e-6)
	})
}

type moved struct{ error }

func (moved) Moved() {}

// A call that moves to another process costs nothing here, and is neither answered, recorded, logged nor counted.
func TestACallThatMovesLeavesNoTrace(t *testing.T) {
	for name, where := range map[string]string{
		"waits for a seat of its team": "seat", "in line": "line", "right before it is sent": "send", "right before it is sent again": "again",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				asked, refusals := 0, &logged{}
				refused := &answering{status: 429, fields: []string{"Retry-After", "5"}}
				g := newRig(metered{t, 30 * time.Second}, "openai", llm.Quota{Requests: 60, Tokens: 60_000}, refused, func(c *gateway.Config, _ *shaper.Limits) {
					c.TeamInFlight, c.Refusals = 1, slog.New(slog.NewTextHandler(refusals, &slog.HandlerOptions{Level: slog.LevelDebug}))
					c.Leaves = func(http.ResponseWriter, *http.Request) error {
						if asked++; where == "send" || where == "again" && asked == 2 {
							return errors.New("not here")
						}
						return nil
					}
				})
				if where == "seat" {
					go g.call("gold", request(t.Context(), "openai", 10, 10, false))
					synctest.Wait()
				}
				if where == "seat" || where == "line" {
					g.line.Hold(time.Minute)
				}
				ctx, move := context.WithCancelCause(t.Context())
				time.AfterFunc(time.Second, func() { move(moved{errors.New("elsewhere")}) })
				if where == "again" || where == "send" {
					ctx = t.Context()
				}
				w := g.call("gold", request(ctx, "openai", 10, 10, false))
				move(nil)
				if where == "send" || where == "again" {
					require.False(t, w.Flushed)
					require.Zero(t, w.Body.Len())
					require.Empty(t, w.Header())
				}
				require.Zero(t, g.ended())
				require.Empty(t, refusals.lines())
				require.Zero(t, g.Ledger().Status(time.Now(), 10).Refused)
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				require.Zero(t, g.held())
				require.Zero(t, g.line.Stats().Reserved)
				require.Zero(t, g.line.Stats().InFlight)
				require.Zero(t, g.line.Meters()[0].Reserved)
				require.Equal(t, map[string]int{"seat": 2, "line": 0, "send": 0, "again": 1}[where], refused.calls, fmt.Sprint(where))
			})
		})
	}
}

package shaper_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// With a Depth of 0 a bucket is a meter: what does not fit is refused, and nobody
// waits. The rows are those of well-known descriptions, with their own numbers.

// A metered call comes at an instant, and is let through, or refused until the next
// drip.
type metered struct {
	at   time.Duration
	cost int
	want string
}

func TestMeter(t *testing.T) {
	for _, row := range []struct {
		name   string
		limits shaper.Limits
		calls  []metered
	}{
		{"capacity 3, leak 1.5 a second", shaper.Limits{Rate: 1.5, Burst: 3}, []metered{
			{0, 1, "left"}, {0, 1, "left"}, {0, 1, "left"},
			{0, 1, "full, retry 666.666667ms"},
			{500 * ms, 1, "full, retry 166.666667ms"},
			{666666666, 1, "full, retry 1ns"},
			{666666667, 1, "left"},                     // One has dripped,
			{666666667, 1, "full, retry 666.666667ms"}, // and no more (but the part of a nanosecond that was rounded up).
			{2 * time.Second, 1, "left"}, {2 * time.Second, 1, "left"},
			{2 * time.Second, 1, "full, retry 666.666667ms"},
			{time.Minute, 3, "left"}, {time.Minute, 1, "full, retry 666.666667ms"},
		}},
		{"10 calls per 10 s", shaper.Limits{Rate: rate.Every(time.Second), Burst: 10}, []metered{
			{0, 9, "left"}, {100 * ms, 1, "left"}, {100 * ms, 1, "full, retry 900ms"},
			{999 * ms, 1, "full, retry 1ms"}, {time.Second, 1, "left"},
			{5 * time.Second, 5, "full, retry 1s"}, {5 * time.Second, 4, "left"},
			{14 * time.Second, 10, "full, retry 1s"}, {15 * time.Second, 10, "left"},
		}},
		{"10, 1/sec", limitsOf(t, "10, 1/sec"), []metered{
			{0, 10, "left"}, {0, 1, "full, retry 1s"}, {0, 11, "costly, retry 0s"},
			{3500 * ms, 4, "full, retry 500ms"}, {3500 * ms, 3, "left"},
			{3500 * ms, 1, "full, retry 500ms"},
		}},
		{"500, 100/sec", limitsOf(t, "500, 100/sec"), []metered{
			{0, 500, "left"}, {0, 1, "full, retry 10ms"}, {0, 500, "full, retry 5s"},
			{300 * ms, 31, "full, retry 10ms"}, {300 * ms, 30, "left"},
			{300 * ms, 501, "costly, retry 0s"}, {5300 * ms, 500, "left"},
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			playLimits(t, row.limits, func(g *stage) {
				for _, c := range row.calls {
					g.at(c.at)
					wait, err := g.Forecast(c.cost)
					require.Equal(t, c.want, outcome(err), "foreseen at %v", c.at)
					require.Zero(t, wait)
					require.Equal(t, c.want, outcome(g.WaitN(context.Background(), c.cost)), "at %v", c.at)
					require.Equal(t, c.at, time.Since(g.start), "nobody waits")
				}
			})
		})
	}
}

// Whoever comes after RetryAfter gets through, and a nanosecond sooner does not.
func TestMeterTellsTheNextDripToTheNanosecond(t *testing.T) {
	playLimits(t, shaper.Limits{Rate: 7, Burst: 3}, func(g *stage) {
		require.True(t, g.AllowN(3))
		for range 50 {
			var refusal *shaper.RejectError
			require.ErrorAs(t, g.Wait(context.Background()), &refusal)
			time.Sleep(refusal.RetryAfter - 1)
			require.False(t, g.Allow())
			time.Sleep(ns)
			require.True(t, g.Allow())
		}
		// To the nanosecond over all of them: 50 drips at 7/s, each waited for.
		require.Equal(t, 7142857143*ns, time.Since(g.start))
	})
}

// "Would 30 more fit?" is asked without taking them.
func TestMeterAnswersWithoutTaking(t *testing.T) {
	play(t, "100, 10/sec", func(g *stage) {
		require.True(t, g.AllowN(60))
		for range 3 {
			_, err := g.Forecast(30)
			require.NoError(t, err)
		}
		_, err := g.Forecast(50)
		require.Equal(t, "full, retry 1s", outcome(err))
		st := g.Stats()
		require.Equal(t, 60.0, st.Level)
		require.EqualValues(t, 1, st.Departed)
		require.Zero(t, st.Refused)
		require.True(t, g.AllowN(30))
		require.Equal(t, 90.0, g.Stats().Level)
		g.at(4500 * ms)
		require.Equal(t, 45.0, g.Stats().Level)
	})
	playKeys(t, "100, 10/sec", func(g *groupStage) {
		_, err := g.Forecast("a", 30)
		require.NoError(t, err)
		require.Empty(t, g.levels(), "the question makes no bucket")
		require.True(t, g.AllowN("a", 60))
		_, err = g.Forecast("a", 50)
		require.Equal(t, "full, retry 1s", outcome(err))
		require.Equal(t, map[string]float64{"a": 60}, g.levels())
	})
}

// What is left is told on approval.
func TestMeterTellsWhatIsLeft(t *testing.T) {
	play(t, "10, 1/sec", func(g *stage) {
		v := newSite(g, g.Shaper, shaper.WithRateLimitHeaders())
		for _, row := range []struct {
			at   time.Duration
			path string
			line string
			left string
		}{
			{0, "a?cost=3", "200", "r=7;t=3"},
			{0, "b?cost=7", "200", "r=0;t=10"},
			{0, "c", "429, retry 1", "r=0;t=1"},
			{4500 * ms, "d?cost=4", "200", "r=0;t=10"}, // 9.5 s, rounded up.
			{8 * time.Second, "e", "200", "r=3;t=7"},
			{time.Minute, "f", "200", "r=9;t=1"},
		} {
			g.at(row.at)
			answer := answerOf(v, context.Background(), row.path)
			require.Equal(t, row.line, statusLine(answer), row.path)
			require.Equal(t, `"default";q=10;w=10`, answer.Header.Get("RateLimit-Policy"))
			require.Equal(t, `"default";`+row.left, answer.Header.Get("RateLimit"), row.path)
		}
	})
}

// Different actions of one user have meters of their own.
func TestMeterPerUserAndAction(t *testing.T) {
	playKeys(t, "10, 1/sec", func(g *groupStage) {
		g.limit("login/ann", "3, 1/min")
		for range 3 {
			require.True(t, g.Allow("login/ann"))
		}
		require.False(t, g.Allow("login/ann"))
		require.True(t, g.AllowN("api/ann", 10))
		require.True(t, g.AllowN("api/bob", 10))
		require.False(t, g.Allow("api/bob"))
		g.at(time.Second)
		require.True(t, g.Allow("api/bob"))
		require.False(t, g.Allow("login/ann"))
		require.Equal(t, "full, retry 59s", outcome(g.Wait(context.Background(), "login/ann")))
	})
}

package inspect_test

import (
	"math"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/inspect"
	"example.com/leakybucket/internal/made"
)

type quota = inspect.View

// sample is a state with something to see everywhere.
func sample() inspect.Quota {
	return inspect.Quota{
		Provider: "openai",
		Parts:    []inspect.QuotaPart{{Name: "requests", Used: 100, Limit: 500}, {Name: "tokens", Used: 67_500, Limit: 90_000}},
		Level:    0.4, Reserved: 0.1, Capacity: 0.5,
		Teams: []inspect.QuotaTeam{
			{Team: "gold", Weight: 4, Waiting: 3, MinuteRequests: 70, MinuteTokens: 50_000, HourRequests: 700, HourTokens: 500_000, LongestWait: 1500 * time.Millisecond},
			{Team: "batch", Weight: 1, MinuteTokens: 10_000, HourTokens: 90_000, Refused: 2},
		},
		Others:      inspect.QuotaTeam{HourTokens: 7000, MinuteTokens: 7500},
		LongestWait: 2 * time.Second, Refused: 2, Refusals: 5, Forfeited: 1000, Hint: "a larger burst keeps it",
	}
}

func TestAQuotaIsToldWithTheLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := made.Shaper(t, "4/s depth 9")
		i := blank(t)
		var asked atomic.Int64
		i.Add("openai", inspect.OfQuota(s, func(teams int) inspect.Quota {
			asked.Add(1)
			return sample()
		}))
		i.Add("plain", inspect.Of(s))
		time.Sleep(10 * time.Second)
		require.Zero(t, asked.Load(), "nobody looks")

		var got quota
		told(t, i, "/api/v1/quota/openai/?teams=1", &got)
		require.Equal(t, "openai", got.Provider)
		require.Equal(t, 0.2, got.Parts[0].Share)
		require.Equal(t, 0.75, got.Parts[1].Share)
		require.Equal(t, "tokens", *got.Scarcest)
		require.Equal(t, 0.8, got.Level)
		require.Equal(t, 0.2, got.Reserved)
		require.Len(t, got.Teams, 1, "no more than were asked for")
		require.Equal(t, 1.5, got.Teams[0].LongestWaitS)
		require.EqualValues(t, 97_000, got.Others.HourTokens, "with the teams that are not told")
		require.Equal(t, "a larger burst keeps it", *got.Hint)

		r := listen(t, i, "/api/v1/events?source=openai")
		e := r.next()
		for e.name != "detail" {
			e = r.next()
		}
		checkEvent(t, e)
		before := asked.Load()
		require.EqualValues(t, 1, before)
		others := listen(t, i, "/api/v1/events?source=openai")
		var detail struct{ Quota *quota }
		for range 5 {
			others.until("detail", &detail)
			r.until("detail", &detail)
			require.Len(t, detail.Quota.Teams, 2)
		}
		require.LessOrEqual(t, asked.Load()-before, int64(5), "once a second, however many look")

		require.Equal(t, http.StatusNotFound, ask(i, "/api/v1/quota/plain/").Code)
		require.Equal(t, http.StatusNotFound, ask(i, "/api/v1/quota/nobody/").Code)
		require.Equal(t, http.StatusBadRequest, ask(i, "/api/v1/quota/openai/?teams=51").Code)
		var plain map[string]any
		listen(t, i, "/api/v1/events?source=plain").until("detail", &plain)
		require.NotContains(t, plain, "quota")
	})
}

func TestABucketWithoutABurstIsFullWhileItHasALevel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		level := 0.4
		c := newConsole(t, inspect.OfQuota(made.Shaper(t, "4/s depth 9"), func(int) inspect.Quota { return inspect.Quota{Level: level, Reserved: level / 2} }))
		defer c.Close()
		for _, want := range []float64{1, 0} {
			var got quota
			told(t, c, "/api/v1/quota/one/", &got)
			require.Equal(t, [2]float64{want, want / 2}, [2]float64{got.Level, got.Reserved})
			level = 0
			time.Sleep(time.Second)
		}
	})
}

// What the program tells may be anything. What the page is told is bounded, and has numbers only.
func TestAQuotaThatMakesNoSenseIsToldAsWellAsItGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := made.Shaper(t, "4/s depth 9")
		broken := false
		c := newConsole(t, inspect.OfQuota(s, func(teams int) inspect.Quota {
			if broken {
				panic("oh")
			}
			strange := inspect.Quota{Level: math.NaN(), Reserved: math.Inf(1), Capacity: 0, Parts: make([]inspect.QuotaPart, 100)}
			for range 100 {
				strange.Teams = append(strange.Teams, inspect.QuotaTeam{Team: strings.Repeat("\xff<b>", 500)})
			}
			return strange
		}))
		defer c.Close()
		var got quota
		told(t, c, "/api/v1/quota/one/", &got)
		require.Zero(t, got.Level)
		require.Nil(t, got.Scarcest)
		require.Len(t, got.Parts, 8)
		require.Len(t, got.Teams, 20)
		require.Less(t, len(got.Teams[0].Team), 600)

		time.Sleep(time.Second)
		broken = true
		for range 2 {
			require.Equal(t, http.StatusInternalServerError, ask(c, "/api/v1/quota/one/").Code)
		}
		require.Equal(t, 1, strings.Count(c.log.String(), "OfQuota panicked"))
	})
}

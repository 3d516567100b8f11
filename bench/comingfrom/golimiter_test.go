package comingfrom

import (
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/sethvargo/go-limiter"
	"github.com/sethvargo/go-limiter/httplimit"
	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

func newStore(t *testing.T, tokens uint64, interval time.Duration) limiter.Store {
	store := must(memorystore.New(&memorystore.Config{Tokens: tokens, Interval: interval}))
	t.Cleanup(func() { require.NoError(t, store.Close(ctx)) })
	return store
}

// takes is Take as Allow.
func takes(store limiter.Store, key string) func() bool {
	return func() bool {
		_, _, _, ok, err := store.Take(ctx, key)
		return err == nil && ok
	}
}

// allows is Allow of a key.
func allows(g *shaper.Group[string], key string) func() bool {
	return func() bool { return g.Allow(key) }
}

// Its clock is the kernel's, and stands still for a bubble.
func TestGoLimiterHasWindows(t *testing.T) {
	take := takes(newStore(t, 5, 400*time.Millisecond), "a")
	require.GreaterOrEqual(t, count(9, take), 5)
	for !take() {
		time.Sleep(time.Millisecond)
	}
	require.GreaterOrEqual(t, count(9, take), 4, "all tokens come back together")
}

var goLimiter = []row{
	{"`memorystore.New(&Config{Tokens: n, Interval: d})`", func(t *testing.T) {
		theirs, ours := newStore(t, 5, 5*time.Second), newGroup(t, "5 per 5s burst 5")
		require.Equal(t, 5, count(9, takes(theirs, "a")))
		require.Equal(t, 5, count(9, allows(ours, "a")))
		time.Sleep(2 * time.Second)
		require.Equal(t, 2, count(9, allows(ours, "a"))) // Theirs all come back together: TestGoLimiterHasWindows.
	}},
	{"`Take(ctx, key)`", func(t *testing.T) {
		theirs, ours := newStore(t, 3, 3*time.Hour), newGroup(t, "3 per 3h burst 3")
		_, _, end, _, err := theirs.Take(ctx, "a")
		require.NoError(t, err)
		require.True(t, ours.Allow("a"))
		for left := 1; left >= 0; left-- {
			tokens, remaining, reset, ok, err := theirs.Take(ctx, "a")
			require.NoError(t, err)
			require.Equal(t, ok, ours.Allow("a"))
			st := ours.Limiter("a").Stats()
			require.EqualValues(t, tokens, st.Limits.Burst)
			require.EqualValues(t, left, remaining)
			require.Equal(t, left, st.Free)
			require.Equal(t, end, reset, "the end of the interval")
			require.Equal(t, time.Now().Add(time.Duration(3-left)*time.Hour), st.EmptyAt, "when no unit is used any more")
		}
		require.False(t, takes(theirs, "a")())
		require.False(t, ours.Allow("a"))
	}},
	{"`Get(ctx, key)`", func(t *testing.T) {
		theirs, ours := newStore(t, 3, time.Second), newGroup(t, "3/s burst 3")
		tokens, remaining, err := theirs.Get(ctx, "new")
		require.NoError(t, err)
		require.Zero(t, tokens)
		require.Zero(t, remaining)
		require.Equal(t, 3, ours.Limiter("new").Stats().Free)
		takes(theirs, "a")()
		ours.Allow("a")
		tokens, remaining, err = theirs.Get(ctx, "a")
		require.NoError(t, err)
		st := ours.Limiter("a").Stats()
		require.EqualValues(t, tokens, st.Limits.Burst)
		require.EqualValues(t, remaining, st.Free)
	}},
	{"`Set(ctx, key, n, d)`", func(t *testing.T) {
		theirs, ours := newStore(t, 3, 3*time.Second), newGroup(t, "3 per 3s burst 3")
		require.Equal(t, 3, count(9, takes(theirs, "a")))
		require.Equal(t, 3, count(9, allows(ours, "a")))
		require.NoError(t, theirs.Set(ctx, "a", 7, 7*time.Second))
		require.NoError(t, ours.SetLimits("a", must(shaper.ParseLimits("7 per 7s burst 7"))))
		require.Equal(t, 7, count(9, takes(theirs, "a")), "it begins anew")
		require.Equal(t, 4, count(9, allows(ours, "a")), "the level stays")
	}},
	{"`httplimit.NewMiddleware(store, httplimit.IPKeyFunc())`", func(t *testing.T) {
		theirs := must(httplimit.NewMiddleware(newStore(t, 2, 2*time.Second), httplimit.IPKeyFunc())).Handle(site)
		ours := newGroup(t, "2 per 2s burst 2").Middleware(shaper.ByClientIP(), shaper.WithHeaders(shaper.HeaderXRateLimit))(site)
		for _, want := range []struct {
			status    int
			remaining string
		}{{200, "1"}, {200, "0"}, {429, "0"}} {
			a, b := get(theirs, "/", "192.0.2.1"), get(ours, "/", "192.0.2.1")
			require.Equal(t, want.status, a.StatusCode)
			require.Equal(t, want.status, b.StatusCode)
			for field, value := range map[string]string{"X-RateLimit-Limit": "2", "X-RateLimit-Remaining": want.remaining} {
				require.Equal(t, value, a.Header.Get(field))
				require.Equal(t, value, b.Header.Get(field))
			}
			_, err := time.Parse(time.RFC1123, a.Header.Get("X-RateLimit-Reset"))
			require.NoError(t, err, "a date there")
			_, err = strconv.ParseInt(b.Header.Get("X-RateLimit-Reset"), 10, 64)
			require.NoError(t, err, "seconds here")
			if want.status == http.StatusTooManyRequests {
				_, err = time.Parse(time.RFC1123, a.Header.Get("Retry-After"))
				require.NoError(t, err)
				require.Equal(t, "1", b.Header.Get("Retry-After"))
			}
		}
		require.Equal(t, http.StatusOK, get(ours, "/", "192.0.2.2").StatusCode)
		require.Equal(t, http.StatusOK, get(theirs, "/", "192.0.2.2").StatusCode)
	}},
}

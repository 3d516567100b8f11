package comingfrom

import (
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/ulule/limiter/v3"
	"github.com/ulule/limiter/v3/drivers/middleware/stdlib"
	"github.com/ulule/limiter/v3/drivers/store/memory"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// newUlule makes a limiter that sweeps its store only when it is asked: a sweeper would outlive the bubble.
func newUlule(limit int64, period time.Duration, opts ...limiter.Option) *limiter.Limiter {
	return limiter.New(memory.NewStoreWithOptions(limiter.StoreOptions{Prefix: "test"}), limiter.Rate{Limit: limit, Period: period}, opts...)
}

// gets is Get as Allow.
func gets(l *limiter.Limiter, key string) func() bool {
	return func() bool { return !must(l.Get(ctx, key)).Reached }
}

var ulule = []row{
	{"`limiter.NewRateFromFormatted(\"5-M\")`", func(t *testing.T) {
		theirs := must(limiter.NewRateFromFormatted("5-M"))
		for _, text := range []string{"5, 5/min", "5/min burst 5"} {
			ours := must(shaper.ParseLimits(text))
			require.EqualValues(t, theirs.Limit, ours.Burst)
			require.Equal(t, rate.Every(theirs.Period/time.Duration(theirs.Limit)), ours.Rate)
			require.Zero(t, ours.Depth)
		}
	}},
	{"`limiter.New(store, rate)`, `Get(ctx, key)`", func(t *testing.T) {
		theirs, ours := newUlule(5, time.Second), newGroup(t, "5/s burst 5")
		require.Equal(t, 1, count(1, gets(theirs, "a")))
		require.Equal(t, 1, count(1, allows(ours, "a")))
		time.Sleep(900 * time.Millisecond)
		before := []int{count(9, gets(theirs, "a")), count(9, allows(ours, "a"))}
		time.Sleep(200 * time.Millisecond)
		after := []int{count(9, gets(theirs, "a")), count(9, allows(ours, "a"))}
		require.Equal(t, 4+5, before[0]+after[0], "a window ends, and the next begins")
		require.Equal(t, 5+1, before[1]+after[1])
	}},
	{"`Peek(ctx, key)`", func(t *testing.T) {
		theirs, ours := newUlule(5, 5*time.Second), newGroup(t, "5 per 5s burst 5")
		for left := int64(4); left >= 0; left-- {
			gets(theirs, "a")()
			ours.Allow("a")
			state, st := must(theirs.Peek(ctx, "a")), ours.Limiter("a").Stats()
			require.Equal(t, state.Limit, int64(st.Limits.Burst))
			require.Equal(t, left, state.Remaining)
			require.EqualValues(t, left, st.Free)
			require.Equal(t, time.Now().Add(5*time.Second).Unix(), state.Reset, "the end of the window")
			require.Equal(t, time.Now().Add(time.Duration(5-left)*time.Second), st.EmptyAt)
		}
	}},
	{"`Reset(ctx, key)`", func(t *testing.T) {
		theirs, ours := newUlule(5, time.Hour), newGroup(t, "5/h burst 5")
		require.Equal(t, 5, count(9, gets(theirs, "a")))
		require.Equal(t, 5, count(9, allows(ours, "a")))
		_, err := theirs.Reset(ctx, "a")
		require.NoError(t, err)
		require.NoError(t, ours.SetLimits("a", shaper.Limits{Rate: rate.Inf}))
		require.NoError(t, ours.ResetLimits("a"))
		require.Equal(t, 5, count(9, gets(theirs, "a")))
		require.Equal(t, 5, count(9, allows(ours, "a")))
	}},
	{"`stdlib.NewMiddleware(l).Handler`", func(t *testing.T) {
		theirs := stdlib.NewMiddleware(newUlule(1, 10*time.Second)).Handler(site)
		ours := newGroup(t, "1 per 10s").Middleware(shaper.ByClientIP(), shaper.WithHeaders(shaper.HeaderXRateLimit))(site)
		for _, status := range []int{200, 429} {
			a, b := get(theirs, "/", "192.0.2.1"), get(ours, "/", "192.0.2.1")
			require.Equal(t, status, a.StatusCode)
			require.Equal(t, status, b.StatusCode)
			for _, field := range []string{"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"} {
				require.NotEmpty(t, a.Header.Get(field))
				require.Equal(t, a.Header.Get(field), b.Header.Get(field))
			}
			if status == http.StatusTooManyRequests {
				require.Empty(t, a.Header.Get("Retry-After"))
				require.Equal(t, "10", b.Header.Get("Retry-After"))
			}
		}
	}},
	{"`WithTrustForwardHeader(true)`", func(t *testing.T) {
		theirs := stdlib.NewMiddleware(newUlule(1, time.Hour, limiter.WithTrustForwardHeader(true))).Handler(site)
		ours := newGroup(t, "1/h").Middleware(shaper.ByClientIP(netip.MustParsePrefix("10.0.0.0/8")))(site)
		for i, h := range []http.Handler{theirs, ours} {
			require.Equal(t, 1, served(3, h, "/", "10.0.0.1", "X-Forwarded-For", "192.0.2.1"))
			require.Equal(t, 1, served(3, h, "/", "10.0.0.1", "X-Forwarded-For", "192.0.2.2"))
			// A stranger makes addresses up.
			passed := served(1, h, "/", "203.0.113.1", "X-Forwarded-For", "198.51.100.1") +
				served(1, h, "/", "203.0.113.1", "X-Forwarded-For", "198.51.100.2")
			require.Equal(t, []int{2, 1}[i], passed)
		}
	}},
	{"`WithIPv6Mask(net.CIDRMask(56, 128))`", func(t *testing.T) {
		theirs := stdlib.NewMiddleware(newUlule(1, time.Hour, limiter.WithIPv6Mask(net.CIDRMask(56, 128)))).Handler(site)
		ours := newGroup(t, "1/h").Middleware(shaper.ClientIP{IPv6Bits: 56}.Key)(site)
		for _, h := range []http.Handler{theirs, ours} {
			require.Equal(t, 1, served(1, h, "/", "[2001:db8:0:1::1]")+served(1, h, "/", "[2001:db8:0:2::1]"), "one /56")
			require.Equal(t, 1, served(1, h, "/", "[2001:db8:0:100::1]"))
		}
	}},
}

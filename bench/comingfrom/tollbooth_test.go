package comingfrom

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/didip/tollbooth/v8"
	"github.com/didip/tollbooth/v8/limiter"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
)

// newTollbooth makes a limiter that knows clients by the addresses of their connections; without that it lets
// every request pass.
func newTollbooth(perSecond float64) *limiter.Limiter {
	return tollbooth.NewLimiter(perSecond, nil).SetIPLookup(limiter.IPLookup{Name: "RemoteAddr"})
}

// keyed is LimitByKeys as Allow.
func keyed(l *limiter.Limiter, keys ...string) func() bool {
	return func() bool { return tollbooth.LimitByKeys(l, keys) == nil }
}

var tollboothRows = []row{
	{"`tollbooth.NewLimiter(n, nil)`", func(t *testing.T) {
		theirs, ours := newTollbooth(5), newGroup(t, "5/s burst 5")
		for _, rest := range []time.Duration{0, 200 * time.Millisecond, time.Second, 600 * time.Millisecond} {
			time.Sleep(rest)
			require.Equal(t, count(9, keyed(theirs, "a")), count(9, allows(ours, "a")))
		}
	}},
	{"`LimitByKeys(l, keys)`", func(t *testing.T) {
		theirs, ours := newTollbooth(2), newGroup(t, "2/s burst 2")
		for _, keys := range [][]string{{"a", "b"}, {"a", "c"}, {"a|c"}, {"a", "b"}} {
			a, b := count(9, keyed(theirs, keys...)), count(9, allows(ours, shaper.Join(keys...)))
			if keys[0] == "a|c" {
				require.Zero(t, a, "it is taken for the two keys before")
				require.Equal(t, 2, b)
				continue
			}
			require.Equal(t, a, b)
		}
	}},
	{"`HTTPMiddleware(l)`, `LimitHandler(l, h)`", func(t *testing.T) {
		mux := http.NewServeMux()
		mux.Handle("/a/{id}", site)
		theirs := tollbooth.LimitHandler(newTollbooth(1), mux)
		ours := newGroup(t, "1/s").Middleware(shaper.By(shaper.ByRoute(mux), shaper.ByClientIP()))(mux)
		for i, h := range []http.Handler{theirs, ours} {
			require.Equal(t, 1, served(3, h, "/a/1", "192.0.2.1"))
			require.Equal(t, 1, served(3, h, "/a/1", "192.0.2.2"))
			require.Equal(t, []int{1, 0}[i], served(3, h, "/a/2", "192.0.2.1"), "by path there, by route here")
		}
	}},
	{"`SetMethods(names)`", func(t *testing.T) {
		theirs := tollbooth.LimitHandler(newTollbooth(1).SetMethods([]string{"POST"}), site)
		ours := newGroup(t, "1/s").Middleware(shaper.ByClientIP(), shaper.WithCost(func(r *http.Request) int {
			if r.Method != http.MethodPost {
				return 0
			}
			return 1
		}))(site)
		for _, h := range []http.Handler{theirs, ours} {
			require.Equal(t, 5, served(5, h, "/", "192.0.2.1"), "a GET is not limited")
			require.Equal(t, 1, count(5, func() bool {
				r := httptest.NewRequest(http.MethodPost, "/", nil)
				r.RemoteAddr = "192.0.2.1:1234"
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				return w.Code == http.StatusOK
			}))
		}
	}},
	{"`SetBasicAuthUsers(names)`", func(t *testing.T) {
		theirs := tollbooth.LimitHandler(newTollbooth(1).SetBasicAuthUsers([]string{"ann", "bob"}), site)
		ours := newGroup(t, "1/s").Middleware(func(r *http.Request) (string, error) {
			user, _, _ := r.BasicAuth()
			address, err := shaper.ByClientIP()(r)
			return shaper.Join(user, address), err
		})(site)
		basic := func(user string) string {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.SetBasicAuth(user, "secret")
			return r.Header.Get("Authorization")
		}
		for i, h := range []http.Handler{theirs, ours} {
			require.Equal(t, 1, served(3, h, "/", "192.0.2.1", "Authorization", basic("ann")))
			require.Equal(t, 1, served(3, h, "/", "192.0.2.1", "Authorization", basic("bob")))
			require.Equal(t, []int{3, 1}[i], served(3, h, "/", "192.0.2.1", "Authorization", basic("eve")), "who is not named has no limit there")
		}
	}},
	{"`SetIPLookup(limiter.IPLookup{Name: \"X-Forwarded-For\"})`", func(t *testing.T) {
		theirs := tollbooth.LimitHandler(tollbooth.NewLimiter(1, nil).SetIPLookup(limiter.IPLookup{Name: "X-Forwarded-For"}), site)
		ours := newGroup(t, "1/s").Middleware(shaper.ByClientIP(netip.MustParsePrefix("10.0.0.0/8")))(site)
		for i, h := range []http.Handler{theirs, ours} {
			require.Equal(t, 1, served(3, h, "/", "10.0.0.1", "X-Forwarded-For", "192.0.2.1"))
			require.Equal(t, 1, served(3, h, "/", "10.0.0.1", "X-Forwarded-For", "192.0.2.2"))
			require.Equal(t, []int{3, 1}[i], served(3, h, "/", "203.0.113.1"), "without the field there is no limit there")
		}
	}},
	{"`SetHeader(name, nil)`", func(t *testing.T) {
		theirs := tollbooth.LimitHandler(newTollbooth(1).SetHeader("X-Team", nil), site)
		ours := newGroup(t, "1/s").Middleware(shaper.By(shaper.ByHeader("X-Team"), shaper.ByClientIP()))(site)
		for i, h := range []http.Handler{theirs, ours} {
			require.Equal(t, 1, served(3, h, "/", "192.0.2.1", "X-Team", "a"))
			require.Equal(t, 1, served(3, h, "/", "192.0.2.1", "X-Team", "b"))
			require.Equal(t, []int{3, 1}[i], served(3, h, "/", "192.0.2.1"), "without the field there is no limit there")
		}
	}},
	{"`SetOnLimitReached(f)`", func(t *testing.T) {
		var theirs, ours int
		a := tollbooth.LimitHandler(newTollbooth(1).SetOnLimitReached(func(http.ResponseWriter, *http.Request) { theirs++ }), site)
		b := newGroup(t, "1/s", shaper.WithTrace(&shaper.Trace{Refused: func(context.Context, shaper.Event) { ours++ }})).
			Middleware(shaper.ByClientIP())(site)
		require.Equal(t, served(5, a, "/", "192.0.2.1"), served(5, b, "/", "192.0.2.1"))
		require.Equal(t, 4, theirs)
		require.Equal(t, 4, ours)
	}},
}

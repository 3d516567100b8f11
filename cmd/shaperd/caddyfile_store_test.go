package main_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/servers"
)

// callTimeout is after what time package shaper gives up a call of a store.
const callTimeout = 250 * time.Millisecond

// serveTwo serves the same site by two processes, and asks /warm of both until they have
// asked the store.
func serveTwo(t *testing.T, name, store string) (a, b site) {
	t.Helper()
	directives := "shape /warm warm {\nlimits 1000/s burst 100\n" + store + "\n}\n" +
		"shape / " + name + " {\nlimits 1/h burst 4\nkey header:X-Tenant\nsite 1/h burst 6\n" + store + "\n}\nreverse_proxy"
	a, b = serveSite(t, directives), serveSite(t, directives)
	for _, s := range []site{a, b} {
		s.until(func() bool { return mustGet(t, s.url+"/warm").status == admitted }, "the store is asked")
	}
	return a, b
}

// cameTo returns how many requests to a path have come to the upstream.
func (s site) cameTo(path string) (n int) {
	for _, a := range s.upstream.arrivals() {
		if strings.HasSuffix(a.line, path) {
			n++
		}
	}
	return n
}

// share returns two processes that are one for their clients: four requests of a key leave, and
// six of all. A call of the store that is given up may have counted all the same, so where a
// request took so long nothing else is sure: then two others are tried.
func share(t *testing.T, store string) (a, b site) {
	t.Helper()
	for attempt := 1; ; attempt++ {
		a, b = serveTwo(t, fmt.Sprint("shop", attempt), store)
		var got, want []int
		var longest time.Duration
		ask := func(s site, tenant string, statuses ...int) {
			want = append(want, statuses...)
			for range statuses {
				begun := time.Now()
				got = append(got, mustGet(t, s.url, "X-Tenant", tenant).status)
				longest = max(longest, time.Since(begun))
			}
		}
		ask(a, "ann", admitted, admitted, admitted)
		ask(b, "ann", admitted, refused)
		ask(a, "ann", refused)
		ask(b, "bob", admitted, admitted, refused) // by the limits of the site
		ask(a, "cat", refused)
		if !slices.Equal(want, got) && longest > callTimeout*4/5 && attempt < 8 {
			t.Logf("%v, but a request took %v", got, longest)
			a.kill()
			b.kill()
			continue
		}
		require.Equal(t, want, got)
		require.Equal(t, 3, a.cameTo("/"))
		require.Equal(t, 3, b.cameTo("/"))
		return a, b
	}
}

// store redis://127.0.0.1:6379
func TestProcessesShareBucketsOnRedis(t *testing.T) {
	redis := servers.StartRedis(t)
	a, _ := share(t, "store redis://"+redis.Addr)

	// While the server can't be asked nobody is admitted, as nothing is said of a fallback.
	redis.Kill()
	gone := mustGet(t, a.url, "X-Tenant", "dan")
	require.Equal(t, http.StatusServiceUnavailable, gone.status)
	require.NotEmpty(t, gone.header.Get("Retry-After"))
	require.Equal(t, 3, a.cameTo("/"))

	redis.Restart() // It has kept nothing.
	a.until(func() bool { return mustGet(t, a.url, "X-Tenant", "dan").status == admitted }, "a slot comes")
	require.Equal(t, 4, a.cameTo("/"))
}

// store postgres://…
func TestProcessesShareBucketsOnPostgreSQL(t *testing.T) {
	postgres := servers.StartPostgres(t)
	a, _ := share(t, "store "+postgres.URL) // The table is made by the process that comes first.

	postgres.Stop(servers.PostgresFast)
	require.Equal(t, http.StatusServiceUnavailable, mustGet(t, a.url, "X-Tenant", "dan").status)
	postgres.Start() // It has kept everything.
	a.until(func() bool { return mustGet(t, a.url, "X-Tenant", "dan").status == refused }, "all slots are taken")
	require.Equal(t, 3, a.cameTo("/"))
}

// store: none
func TestWithoutAStoreEachProcessHasBucketsOfItsOwn(t *testing.T) {
	a, b := serveTwo(t, "shop", "")
	for _, s := range []site{a, b} {
		require.Equal(t, []int{admitted, admitted, admitted, admitted, refused}, s.statuses(5, "/", "X-Tenant", "ann"))
	}
}

// The password of a store would be in the logs of each operator who makes a mistake.
func TestAStoreThatCannotBeReachedIsNamedWithoutItsPassword(t *testing.T) {
	address := freeAddress(t)
	s := serveSite(t, "shape {\nlimits 1/h burst 4\nstore redis://:open-sesame@"+address+"\n}\nreverse_proxy")
	s.until(func() bool {
		require.Equal(t, http.StatusServiceUnavailable, mustGet(t, s.url).status)
		return strings.Contains(s.log.String(), "the store can't be asked")
	}, "the log tells of the store")
	require.Contains(t, s.log.String(), address)
	require.NotContains(t, s.log.String(), "open-sesame")

}

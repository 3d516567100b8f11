package main_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/servers"
)

// serveTwo serves the same site by two processes.
func serveTwo(t *testing.T, store string) (a, b site) {
	directives := "shape shop {\nlimits 1/h burst 4\nkey header:X-Tenant\nsite 1/h burst 6\n" + store + "\n}\nreverse_proxy"
	return serveSite(t, directives), serveSite(t, directives)
}

// requireShared holds two processes to be one: four requests of a key leave, and six of all.
func requireShared(t *testing.T, a, b site) {
	require.Equal(t, []int{admitted, admitted, admitted}, a.statuses(3, "/", "X-Tenant", "ann"))
	require.Equal(t, []int{admitted, refused}, b.statuses(2, "/", "X-Tenant", "ann"))
	require.Equal(t, []int{refused}, a.statuses(1, "/", "X-Tenant", "ann"))
	require.Equal(t, []int{admitted, admitted, refused}, b.statuses(3, "/", "X-Tenant", "bob"), "by the limits of the site")
	require.Equal(t, []int{refused}, a.statuses(1, "/", "X-Tenant", "cat"))
	require.Len(t, a.upstream.arrivals(), 3)
	require.Len(t, b.upstream.arrivals(), 3)
}

// store redis://127.0.0.1:6379
func TestProcessesShareBucketsOnRedis(t *testing.T) {
	redis := servers.StartRedis(t)
	a, b := serveTwo(t, "store redis://"+redis.Addr)
	requireShared(t, a, b)

	// While the server can't be asked nobody is admitted, as nothing is said of a fallback.
	redis.Kill()
	gone := mustGet(t, a.url, "X-Tenant", "dan")
	require.Equal(t, http.StatusServiceUnavailable, gone.status)
	require.NotEmpty(t, gone.header.Get("Retry-After"))
	require.Len(t, a.upstream.arrivals(), 3)

	redis.Restart() // It has kept nothing.
	a.until(func() bool { return mustGet(t, a.url, "X-Tenant", "dan").status == admitted })
	require.Len(t, a.upstream.arrivals(), 4)
}

// store postgres://…
func TestProcessesShareBucketsOnPostgreSQL(t *testing.T) {
	postgres := servers.StartPostgres(t)
	a, b := serveTwo(t, "store "+postgres.URL)
	// The table is made by the process that comes first, which does not wait for it.
	for _, s := range []site{a, b} {
		s.until(func() bool {
			rows, err := postgres.Query("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'")
			return err == nil && strings.TrimSpace(rows) != "0"
		})
	}
	requireShared(t, a, b)

	postgres.Stop(servers.PostgresFast)
	require.Equal(t, http.StatusServiceUnavailable, mustGet(t, a.url, "X-Tenant", "dan").status)
	postgres.Start() // It has kept everything.
	a.until(func() bool { return mustGet(t, a.url, "X-Tenant", "dan").status == refused })
	require.Len(t, a.upstream.arrivals(), 3)
}

// store: none
func TestWithoutAStoreEachProcessHasBucketsOfItsOwn(t *testing.T) {
	a, b := serveTwo(t, "")
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
	})
	require.Contains(t, s.log.String(), address)
	require.NotContains(t, s.log.String(), "open-sesame")

}

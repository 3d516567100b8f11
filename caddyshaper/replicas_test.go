package caddyshaper_test

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/caddyshaper"
	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/redisbucket"
	"example.com/leakybucket/shaper/shared"
)

// keptIn returns a function that tells who has the line of a name by a Redis, as another replica would see it.
func keptIn(t *testing.T, server *servers.Redis, name string) func() shared.Kept {
	client := redis.NewClient(&redis.Options{Addr: server.Addr})
	t.Cleanup(func() { _ = client.Close() })
	bucket := redisbucket.New(client)
	return func() shared.Kept {
		kept, err := bucket.Keep(t.Context(), shared.Keeping{Key: name, ID: "another"})
		require.NoError(t, err)
		return kept
	}
}

// A reload with the same store keeps the line, and the new configuration counts. One with another address or store hands the line on
// and takes part there, one without hands it on, and so does the end. Calls in line notice none of it.
func TestTheLineOutlivesReloadsAndGoesWhereItsStoreIs(t *testing.T) {
	first, second := servers.StartRedis(t), servers.StartRedis(t)
	byFirst, bySecond := keptIn(t, first, "line"), keptIn(t, second, "line")
	shape := func(wait string, store string) string {
		return quotaShape("requests 600\n burst 1s\n estimate asked", "depth 99\n wait "+wait+"\n"+store)
	}
	at := func(server *servers.Redis, address string) string {
		return "store redis://" + server.Addr + "\n advertise " + address
	}
	s := newSite(t)
	// A configuration that fails leaves the store alone.
	require.Error(t, s.load(shape("1m", at(first, "127.0.0.1:1")+"\n teams /nowhere")))
	require.Empty(t, byFirst().ID)

	s.reload(shape("1m", at(first, "127.0.0.1:1")))
	require.Equal(t, 200, s.send(http.MethodPost, "/a", strings.NewReader("{}")).status)
	keeper := byFirst()
	require.NotEmpty(t, keeper.ID)
	require.Contains(t, string(keeper.Value), `"127.0.0.1:1"`)

	s.upstream.serves(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if string(body) == `{"first":1}` && len(s.upstream.arrivals()) == 2 {
			w.Header().Set("Retry-After-Ms", "15000")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		_, _ = w.Write(body)
	})
	answers := make(chan answer, 2)
	send := func(body string, waiting int) {
		go func() { answers <- s.send(http.MethodPost, "/"+body[2:3], strings.NewReader(body)) }()
		realtime.Until(t, func() bool { return caddyshaper.Waiting("line") == waiting }, "the call waits")
	}
	send(`{"first":1}`, 1)
	realtime.Until(t, func() bool { return len(s.upstream.arrivals()) == 2 && caddyshaper.Waiting("line") == 1 }, "the line is held")
	held := time.Now()
	send(`{"second":1}`, 2)

	s.reload(shape("40s", at(first, "127.0.0.1:1")))
	require.Equal(t, 2, caddyshaper.Waiting("line"))
	require.Equal(t, 40*time.Second, caddyshaper.FairStats("line").Limits.MaxWait)
	require.Equal(t, keeper.ID, byFirst().ID)

	for _, c := range []struct {
		store string
		kept  func() shared.Kept // where the line is
		left  func() shared.Kept // where it was
	}{
		{at(first, "127.0.0.1:2"), byFirst, nil},
		{at(second, "127.0.0.1:2"), bySecond, byFirst},
		{"", nil, bySecond},
		{at(second, "127.0.0.1:3"), bySecond, nil},
	} {
		s.reload(shape("1m", c.store))
		if c.left != nil {
			left := c.left()
			require.Empty(t, left.ID, c.store)
			require.Contains(t, string(left.Value), `"handed":true`)
		}
		if c.kept != nil {
			realtime.Until(t, func() bool { return c.kept().ID != "" && strings.Contains(string(c.kept().Value), `"handed":false`) }, "the line is there")
		}
		realtime.Until(t, func() bool { return caddyshaper.Waiting("line") == 2 }, "the calls are in line")
	}
	require.Less(t, time.Since(held), 15*time.Second, "else the hold has ended meanwhile")
	for range 2 {
		a := <-answers
		require.NoError(t, a.err)
		require.Equal(t, 200, a.status)
		require.Contains(t, []string{`{"first":1}`, `{"second":1}`}, a.body)
	}
	arrived := s.upstream.arrivals()
	require.Len(t, arrived, 4, "each once, but for the one that was refused")
	require.GreaterOrEqual(t, arrived[2].at.Sub(arrived[1].at), 15*time.Second, "the provider's time")

	s.stop()
	require.Empty(t, bySecond().ID)
	var told struct{ Line []byte }
	require.NoError(t, json.Unmarshal(bySecond().Value, &told))
	require.Contains(t, string(told.Line), `"level"`)
}

// While the store can't be asked each replica has its part of the limits, and all of them as soon as it can be.
func TestAReplicaHasItsPartOfTheLimits(t *testing.T) {
	server := servers.StartRedis(t)
	s := serve(t, quotaShape("requests 600\n tokens 2\n burst 30s", "inflight 9\n store redis://"+server.Addr+"\n advertise 127.0.0.1:1\n fallback local 3"))
	limits := func() []int {
		line := caddyshaper.FairLine("line")
		return []int{int(line.Limits().Rate * 60), line.Limits().Burst, line.Limits().InFlight, int(line.Meters()[0].Rate*60 + 0.5)}
	}
	whole, part := []int{600, 300, 9, 2}, []int{200, 100, 3, 1}
	require.Equal(t, whole, limits())
	server.Kill()
	same := func(want []int) func() bool {
		return func() bool { return slices.Equal(want, limits()) }
	}
	realtime.Until(t, same(part), "it has its part")
	require.Equal(t, 200, s.get("/").status)
	// A configuration that comes meanwhile has its part as well.
	s.reload(quotaShape("requests 1200\n tokens 2\n burst 30s", "inflight 9\n store redis://"+server.Addr+"\n advertise 127.0.0.1:1\n fallback local 3"))
	require.Equal(t, []int{400, 200, 3, 1}, limits())
	server.Restart()
	realtime.Until(t, same([]int{1200, 600, 9, 2}), "it has all again")
}

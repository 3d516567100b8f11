package caddyshaper_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/caddyshaper"
	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/internal/servers"
)

// Workers are an upstream that serves each request until it is told to end one, and counts by path how many it serves at once.
type workers struct {
	mu   sync.Mutex
	busy map[string]int
	most map[string]int
	end  map[string]chan struct{}
}

func newWorkers(paths ...string) *workers {
	w := &workers{busy: map[string]int{}, most: map[string]int{}, end: map[string]chan struct{}{}}
	for _, path := range paths {
		w.end[path] = make(chan struct{})
	}
	return w
}

func (w *workers) serve(_ http.ResponseWriter, r *http.Request) {
	path := r.URL.Path
	w.mu.Lock()
	w.busy[path]++
	w.most[path] = max(w.most[path], w.busy[path])
	w.mu.Unlock()
	select {
	case <-w.end[path]:
	case <-r.Context().Done():
	}
	w.mu.Lock()
	w.busy[path]--
	w.mu.Unlock()
}

// serves reports whether so many requests are being served at a path.
func (w *workers) serves(path string, n int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.busy[path] == n
}

// mostAtOnce returns how many requests were served at once at a path, at most.
func (w *workers) mostAtOnce(path string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.most[path]
}

// Without a cap of all, two processes would send twice as many requests to their upstream as it has workers. A cap holds for
// a key, for the line of fair queueing and for the site.
func TestACapHoldsForAllProcesses(t *testing.T) {
	t.Run("Redis", func(t *testing.T) { capHolds(t, "redis://"+servers.StartRedis(t).Addr) })
	t.Run("PostgreSQL", func(t *testing.T) { capHolds(t, servers.StartPostgres(t).URL) })
}

func capHolds(t *testing.T, store string) {
	const workersOfAll = 2
	kinds := map[string]string{
		"/key":  "limits 1000/s depth 9\n key all\n shared_inflight 2",
		"/inf":  "limits inf depth 9\n key all\n shared_inflight 2", // no rate, but the cap
		"/fair": "limits 1000/s depth 9\n fair {query.user}\n shared_inflight 2",
		"/site": "limits 1000/s burst 9\n site 1000/s depth 9\n site_shared_inflight 2",
	}
	directives, paths := fmt.Sprintf("shape /warm warm {\n limits 100/s burst 100\n store %q\n}\n", store), []string{}
	for path, lines := range kinds {
		directives += fmt.Sprintf("shape %s %s {\n %s\n store %q\n}\n", path, path[1:], lines, store)
		paths = append(paths, path)
	}
	one, w := newSite(t), newWorkers(append(paths, "/warm")...)
	close(w.end["/warm"])
	one.upstream.serves(w.serve)
	one.reload(directives + proxied)
	other := newSite(t)
	other.upstream.addr = one.upstream.addr
	other.start(directives + proxied)

	for _, s := range []*site{one, other} { // A process may have to make the table.
		realtime.Until(t, func() bool { return s.get("/warm").status == 200 }, "the store can be asked")
	}
	answers := make(chan answer, len(paths)*2*3)
	for _, s := range []*site{one, other} {
		for user := range 3 {
			for _, path := range paths {
				go func() { answers <- s.get(fmt.Sprint(path, "?user=", user)) }()
			}
		}
	}
	for left := 2 * 3; left > 0; left-- {
		for _, path := range paths {
			realtime.Until(t, func() bool { return w.serves(path, min(left, workersOfAll)) }, "all workers of "+path+" have requests")
			w.end[path] <- struct{}{}
		}
	}
	for range cap(answers) {
		require.Equal(t, 200, (<-answers).status)
	}
	for _, path := range paths {
		require.Equal(t, workersOfAll, w.mostAtOnce(path), path)
	}
}

// Whoever caps each client without a thought would let each new one wait for 3.6 s.
func TestACapOfEachKeyIsWarnedOf(t *testing.T) {
	for lines, warns := range map[string]bool{
		"limits 5/s\n shared_inflight 3": true, "limits 5/s\n key {query.user}\n shared_inflight 3": true, "limits 5/s\n key all\n shared_inflight 3": false,
		"limits 5/s\n fair host\n shared_inflight 3": false, "limits 5/s\n site 9/s\n site_shared_inflight 3": false, "limits 5/s": false,
	} {
		s := serve(t, "shape line {\n "+lines+"\n store redis://127.0.0.1:1\n}"+proxied)
		s.stop()
		text, err := os.ReadFile(s.log + ".app")
		require.NoError(t, err)
		require.Equal(t, warns, strings.Contains(string(text), "each new key waits for its first seat"), lines)
	}
}

// sharedView is what the API tells of a cap of all processes.
type sharedView struct {
	InFlight int `json:"in_flight"`
	Waiting  int
	Shared   struct {
		State       string
		InFlightMax int `json:"in_flight_max"`
		Seats       int
	}
}

// bucket returns what the API tells of a bucket.
func (s *site) bucket(source, id string) (b sharedView) {
	s.t.Helper()
	var told struct{ Bucket sharedView }
	a := s.get("/shaper/api/buckets/" + source + "/" + id)
	if a.status == http.StatusNotFound {
		return b // It is not in use yet.
	}
	require.Equal(s.t, 200, a.status, a.body)
	require.NoError(s.t, json.Unmarshal([]byte(a.body), &told))
	return told.Bucket
}

// A reload that changes the cap makes new lines. Who is in line stays there, those in flight keep their seats, and all together
// are never above the greater cap; what an operator has set of inflight goes on, and holds beside it.
func TestAReloadOfTheCapKeepsTheLineTheSeatsAndAnOperatorsChange(t *testing.T) {
	store := "\n store redis://" + servers.StartRedis(t).Addr + "\n"
	directives := func(cap string) string {
		return "shape /w line {\n limits 1000/s depth 9 inflight 8\n fair {query.user}\n" + cap + store + "}" + controlled + proxied
	}
	s, w := newSite(t), newWorkers("/w")
	s.upstream.serves(w.serve)
	s.reload(directives("shared_inflight 2"))
	answers := make(chan answer, 6)
	get := func() { answers <- s.get("/w") }
	for range 4 {
		go get()
	}
	realtime.Until(t, func() bool { return w.serves("/w", 2) && caddyshaper.Waiting("line") == 2 }, "two have seats, two are in line")
	b := s.bucket("line", "")
	require.Equal(t, 2, b.InFlight)
	require.Equal(t, 2, b.Shared.InFlightMax)
	require.Equal(t, 2, b.Shared.Seats)
	s.change("limits", map[string]string{"source": "line", "limits": "1000/s depth 9 inflight 1", "for": "10m", "who": "Ann"})

	s.reload(directives("shared_inflight 4"))
	_, all := caddyshaper.Names()
	require.Equal(t, []string{"line", "line"}, all, "the lines are new ones")
	require.Equal(t, 2, caddyshaper.Waiting("line"), "who is in line stays in the old one")
	inForce, _ := s.changes()
	require.Len(t, inForce, 1)
	require.Equal(t, "1000/s depth 9 inflight 1", caddyshaper.InForce("line", ""))
	go get()
	go get()
	realtime.Until(t, func() bool { return w.serves("/w", 3) && caddyshaper.Waiting("line") == 3 },
		"the new line has a seat beside those of the old one, and by the operator's change no second one")
	s.change("reset", map[string]string{"source": "line"})
	realtime.Until(t, func() bool { return w.serves("/w", 4) }, "without that change it has two")
	for left := 6; left > 0; left-- {
		w.end["/w"] <- struct{}{}
	}
	for range cap(answers) {
		require.Equal(t, 200, (<-answers).status)
	}
	require.Equal(t, 4, w.mostAtOnce("/w"))
}

// Nobody renews the seats of lines that are gone, so other processes would get them while requests still use them.
func TestLinesThatAreTakenOutAreKeptWhileRequestsHaveTheirSeats(t *testing.T) {
	store := "\n store redis://" + servers.StartRedis(t).Addr + "\n"
	s, w := newSite(t), newWorkers("/key", "/site")
	s.upstream.serves(w.serve)
	s.reload("shape /key key {\n limits 1000/s depth 9\n shared_inflight 2" + store + "}\n" +
		"shape /site site {\n limits 1000/s burst 9\n site 1000/s depth 9\n site_shared_inflight 2" + store + "}" + proxied)
	answers := make(chan answer, len(w.end))
	for path := range w.end {
		go func() { answers <- s.get(path) }()
	}
	for path := range w.end {
		realtime.Until(t, func() bool { return w.serves(path, 1) }, path+" has a seat")
	}
	s.reload("reverse_proxy UPSTREAM")
	for begun := time.Now(); time.Since(begun) < time.Second; time.Sleep(tick) { // twenty times as long as lines are kept otherwise
		_, all := caddyshaper.Names()
		require.ElementsMatch(t, []string{"key", "site"}, all)
	}
	for _, end := range w.end {
		end <- struct{}{}
		require.Equal(t, 200, (<-answers).status)
	}
	realtime.Until(t, func() bool {
		_, all := caddyshaper.Names()
		return len(all) == 0
	}, "then they go")
}

// A seat that nobody gives back is free when its lease ends, after 6.7 to 10 s. A deployment must not wait for that.
func TestAProcessThatEndsGivesItsSeatsBack(t *testing.T) {
	directives := "shape /w line {\n limits inf depth 9\n key all\n shared_inflight 1\n store redis://" + servers.StartRedis(t).Addr + "\n}" + proxied
	one, w := newSite(t), newWorkers("/w")
	one.upstream.serves(w.serve)
	one.reload(directives)
	other := newSite(t)
	other.upstream.addr = one.upstream.addr
	process := other.start(directives)
	answers := make(chan answer, 2)
	go func() { answers <- other.get("/w") }()
	realtime.Until(t, func() bool { return w.serves("/w", 1) }, "the one process has the seat")
	_ = one.inLine("line", "/w")
	process.Signal(syscall.SIGTERM)
	w.end["/w"] <- struct{}{}
	require.Equal(t, 200, (<-answers).status)
	begun := time.Now()
	realtime.Until(t, func() bool { return w.serves("/w", 1) }, "then the other")
	require.Less(t, time.Since(begun), 5*time.Second)
	close(w.end["/w"])
}

// While the store is away the page tells of the seats that are left, and then of those that the fallback lets a process have; so
// many requests are in flight, and no more. When it is back, with all its data lost, all say first what they hold.
func TestThePageTellsOfSeatsWhileTheStoreIsAway(t *testing.T) {
	redis := servers.StartRedis(t)
	kinds := map[string]struct {
		fallback, state string
		seats           int
	}{"/closed": {"closed", "down", 0}, "/open": {"open", "open", 6}, "/local": {"local 3", "local", 2}}
	directives, w := controlled+"\n", newWorkers(slices.Collect(maps.Keys(kinds))...)
	for path, k := range kinds {
		directives += fmt.Sprintf("shape %s %s {\n limits 1000/s depth 9\n fair {query.user}\n shared_inflight 6\n fallback %s\n store redis://%s\n}\n",
			path, path[1:], k.fallback, redis.Addr)
	}
	s := newSite(t)
	s.upstream.serves(w.serve)
	s.reload(directives + proxied)
	answers := make(chan answer, 3*9)
	gets := func(path string, n int) {
		for range n {
			go func() { answers <- s.get(path) }()
		}
	}
	for path := range kinds {
		gets(path, 1)
	}
	for path := range kinds {
		realtime.Until(t, func() bool { return w.serves(path, 1) }, path+" has a seat")
		b := s.bucket(path[1:], "")
		require.Equal(t, "shared", b.Shared.State)
		require.Equal(t, 6, b.Shared.InFlightMax)
		require.Equal(t, 1, b.Shared.Seats)
	}
	redis.Kill()
	for path := range kinds {
		gets(path, 7)
	}
	for path, k := range kinds {
		realtime.Until(t, func() bool {
			b := s.bucket(path[1:], "")
			return b.Shared.State == k.state && b.Shared.Seats == k.seats && w.serves(path, max(1, k.seats))
		}, fmt.Sprint(path, " shows ", k.seats, " seats"))
		require.Equal(t, max(1, k.seats), w.mostAtOnce(path), path)
	}
	redis.Restart()
	for path := range kinds {
		realtime.Until(t, func() bool { return s.bucket(path[1:], "").Shared.State == "shared" }, path+" asks the store again")
	}
	for path := range kinds {
		gets(path, 1)
		close(w.end[path])
	}
	for range cap(answers) {
		require.Contains(t, []int{200, 503}, (<-answers).status)
	}
	for path := range kinds {
		require.LessOrEqual(t, w.mostAtOnce(path), 6, path)
	}
}

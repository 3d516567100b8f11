package browsertest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/inspect"
	"example.com/leakybucket/internal/made"
	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/shaper"
)

// A scene is an Inspector that watches shapers and groups, and the server that shows it
// at an address of this machine.
type scene struct {
	t         testing.TB
	inspector *inspect.Inspector
	ctx       context.Context // of all requests that the scene sends
	requests  sync.WaitGroup
	listen    string // address and port, the same after a restart

	mu      sync.Mutex
	server  *http.Server
	streams int // of events, that are being answered
	sent    int // bytes of events
	posts   []post

	instead map[string]http.HandlerFunc // by path: what is answered in place of the Inspector
}

// A post is a request of the control part that has come to the server, and its answer.
type post struct {
	path, origin, host string
	status             int
}

func newScene(t testing.TB, opts ...inspect.Option) *scene {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	opts = append(opts, inspect.WithLogger(slog.New(slog.DiscardHandler)))
	s := &scene{t: t, ctx: ctx, inspector: inspect.New(opts...), listen: "127.0.0.1:0", instead: map[string]http.HandlerFunc{}}
	require.NoError(t, s.inspector.Err())
	s.start()
	t.Cleanup(func() {
		cancel()
		s.requests.Wait()
		require.NoError(t, s.inspector.Close())
		s.stop()
	})
	return s
}

// address is the address of the page, followed by query.
func (s *scene) address(query string) string { return "http://" + s.listen + "/" + query }

// start serves the Inspector, at the address of before if it was stopped.
func (s *scene) start() {
	var l net.Listener
	realtime.Until(s.t, func() (ok bool) { // the port may take its time to become free
		var err error
		l, err = net.Listen("tcp", s.listen)
		return err == nil
	}, "the port is free")
	s.listen = l.Addr().String()
	server := &http.Server{Handler: s}
	s.mu.Lock()
	s.server = server
	s.mu.Unlock()
	go server.Serve(l)
}

// stop breaks all connections and lets no other in.
func (s *scene) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.server.Close()
}

// ServeHTTP is the Inspector's, with an account of what passes through.
func (s *scene) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	stream := r.URL.Path == "/api/v1/events"
	watched := &response{ResponseWriter: w, status: http.StatusOK}
	if stream {
		watched.wrote = func(n int) { s.count(func() { s.sent += n }) }
	}
	s.count(func() {
		if stream {
			s.streams++
		}
	})
	defer s.count(func() {
		if stream {
			s.streams--
		}
		if r.Method == http.MethodPost {
			s.posts = append(s.posts, post{r.URL.Path, r.Header.Get("Origin"), r.Host, watched.status})
		}
	})
	answer := s.inspector.ServeHTTP
	s.count(func() {
		if instead := s.instead[r.URL.Path]; instead != nil {
			answer = instead
		}
	})
	answer(watched, r)
}

// answerInstead lets f answer requests for a path from now on; nil: the Inspector answers.
func (s *scene) answerInstead(path string, f http.HandlerFunc) {
	s.count(func() { s.instead[path] = f })
}

// asked returns the Inspector's answer to a request, which may be changed before it is sent.
func (s *scene) asked(r *http.Request) *httptest.ResponseRecorder {
	answer := httptest.NewRecorder()
	s.inspector.ServeHTTP(answer, r)
	return answer
}

// send sends an answer with a text.
func send(w http.ResponseWriter, answer *httptest.ResponseRecorder, text string) {
	maps.Copy(w.Header(), answer.Header())
	w.WriteHeader(answer.Code)
	io.WriteString(w, text)
}

func (s *scene) count(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *scene) openStreams() (n int) {
	s.count(func() { n = s.streams })
	return n
}

func (s *scene) postsSoFar() (all []post) {
	s.count(func() { all = append(all, s.posts...) })
	return all
}

// A response remembers its status and tells how much is written.
type response struct {
	http.ResponseWriter
	status int
	wrote  func(bytes int) // nil: nobody asks
}

func (r *response) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

func (r *response) Write(b []byte) (int, error) {
	if r.wrote != nil {
		r.wrote(len(b))
	}
	return r.ResponseWriter.Write(b)
}

func (r *response) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// get returns the Inspector's answer to a request for a path.
func (s *scene) get(path string) (status int, body []byte) {
	s.t.Helper()
	r, err := http.Get(s.address(path))
	require.NoError(s.t, err)
	defer r.Body.Close()
	body, err = io.ReadAll(r.Body)
	require.NoError(s.t, err)
	return r.StatusCode, body
}

// shaper adds a Shaper as a source.
func (s *scene) shaper(name, limits string, opts ...shaper.Option) *shaper.Shaper {
	s.t.Helper()
	u := made.Shaper(s.t, limits, opts...)
	s.inspector.Add(name, inspect.Of(u))
	return u
}

// group adds a Group with the same limits for all keys as a source.
func (s *scene) group(name, limits string, opts ...shaper.GroupOption) *shaper.Group[string] {
	s.t.Helper()
	g := made.Group[string](s.t, limits, opts...)
	s.inspector.Add(name, inspect.OfGroup(g, inspect.WithExplain(func(key string) (string, string, int) {
		return "rule of " + firstWord(key), "limits.yaml", 7
	})))
	return g
}

func firstWord(key string) string {
	word, _, _ := strings.Cut(key, ":")
	return word
}

// burst sends n requests at once to one bucket; they wait, are refused, or are given up when
// the scene ends.
func (s *scene) burst(bucket shaper.Limiter, n int) {
	for range n {
		s.requests.Go(func() { _ = bucket.WaitN(s.ctx, 1) })
	}
}

// queue sends requests to a key until n wait in its line, which must be held.
func (s *scene) queue(g *shaper.Group[string], key string, n int) {
	s.t.Helper()
	s.burst(g.Limiter(key), n)
	realtime.Until(s.t, func() bool {
		st, _ := g.StatsOf(key)
		return st.Waiting == n
	}, "so many wait")
}

// every calls f now, and again and again until the scene ends.
func (s *scene) every(d time.Duration, f func()) {
	s.requests.Go(func() {
		for beat := time.NewTicker(d); s.ctx.Err() == nil; {
			f()
			select {
			case <-beat.C:
			case <-s.ctx.Done():
			}
		}
	})
}

// listed returns the keys of the buckets that the API lists for a query. The tests of package inspect
// see to its filters and orders.
func (s *scene) listed(query string) []string {
	s.t.Helper()
	_, answer := s.get("api/v1/buckets?" + query)
	var list struct{ Buckets []struct{ Key string } }
	require.NoError(s.t, json.Unmarshal(answer, &list))
	keys := []string{}
	for _, b := range list.Buckets {
		keys = append(keys, b.Key)
	}
	return keys
}

// awaitRows waits until the table has the buckets that the API lists for a query, in the same order,
// and returns their keys.
func (s *scene) awaitRows(p *tab, query string) (keys []string) {
	p.t.Helper()
	await(p, "the rows are those of "+query, rows, func(ids []string) bool {
		keys = keysOf(p, ids)
		return slices.Equal(keys, s.listed(query))
	})
	return keys
}

// linkTo is the query of a page: names and values, in the order given.
func linkTo(pairs ...string) string {
	var query []string
	for i := 0; i < len(pairs); i += 2 {
		query = append(query, pairs[i]+"="+strings.ReplaceAll(url.QueryEscape(pairs[i+1]), "+", "%20"))
	}
	return "?" + strings.Join(query, "&")
}

// openPage opens the page of a scene in a tab, and waits until it is live.
func (s *scene) openPage(t testing.TB, query string) *tab {
	t.Helper()
	p := newTab(t, s.address(""))
	p.open(s.address(query))
	p.live()
	return p
}

// live waits until the page says that it gets events.
func (p *tab) live() {
	p.t.Helper()
	await(p, "the page is live", text("#status"), func(status string) bool { return strings.Contains(strings.ToLower(status), "live") })
}

// text is an expression for the text that a reader finds in an element; "" if there is none.
func text(selector string) string {
	return fmt.Sprintf("document.querySelector(%s)?.innerText ?? ''", js(selector))
}

// rows is an expression for the ids of the buckets in the table, in their order.
const rows = `[...document.querySelectorAll("#buckets tbody tr[data-id]")].map(row => row.dataset.id)`

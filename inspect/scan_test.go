package inspect_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/inspect"
	"example.com/leakybucket/internal/made"
	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/shaper"
)

// A slowKey takes a second to make text of itself.
type slowKey int

var slowTexts atomic.Int32 // how often texts of slowKeys were made

func (k slowKey) String() string {
	slowTexts.Add(1)
	time.Sleep(time.Second)
	return strconv.Itoa(int(k))
}

// Ten pages look at the same scan, which is made once a second at most. Callers of the
// Group do not wait for it.
func TestAllWhoLookShareAScan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := made.Group[slowKey](t, "1 per 10000s")
		i := show(t, "one", inspect.OfGroup(g))
		for k := range slowKey(3) {
			require.True(t, g.Allow(k))
		}
		slowTexts.Store(0)
		began := time.Now()
		var pages sync.WaitGroup
		answers := make([]*httptest.ResponseRecorder, 10)
		for k := range answers {
			pages.Go(func() { answers[k] = ask(i, "/api/buckets") })
		}
		synctest.Wait()
		require.True(t, g.Allow(7))
		require.Equal(t, began, time.Now())
		pages.Wait()
		require.Equal(t, began.Add(3*time.Second), time.Now())
		for _, w := range answers {
			require.Len(t, listIn(t, w).Buckets, 3)
		}
		require.Equal(t, int32(3), slowTexts.Load())

		// The scan took 3 s, so the next is made 6 s after it began at the earliest.
		require.Len(t, listOf(t, i, "").Buckets, 3)
		time.Sleep(3 * time.Second)
		require.Len(t, listOf(t, i, "").Buckets, 4)
		require.Equal(t, int32(4), slowTexts.Load())
	})
}

func TestAScanIsASecondOldAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := made.Group[string](t, "1/d")
		i := show(t, "one", inspect.OfGroup(g))
		require.Empty(t, listOf(t, i, "").Buckets)
		g.Allow("a")
		time.Sleep(time.Second - 1)
		require.Empty(t, listOf(t, i, "").Buckets)
		time.Sleep(time.Nanosecond)
		require.Len(t, listOf(t, i, "").Buckets, 1)
		// One bucket is told as it is now.
		g.Allow("b")
		require.Equal(t, http.StatusOK, ask(i, "/api/buckets/one/b").Code)
	})
}

// A bucket is refusing for 10 seconds after its latest refusal.
func TestRefusingEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := made.Group[string](t, "1/d")
		i := show(t, "one", inspect.OfGroup(g))
		refusing := func() bool {
			l := listOf(t, i, "")
			require.Contains(t, ask(i, "/api/buckets/one/a").Body.String(), fmt.Sprintf(`"refusing":%v`, l.Buckets[0].Refusing))
			return l.Buckets[0].Refusing
		}
		g.Allow("a")
		require.False(t, refusing())
		time.Sleep(time.Second)
		g.Allow("a")
		require.True(t, refusing())
		time.Sleep(9 * time.Second)
		require.True(t, refusing())
		time.Sleep(time.Second)
		require.False(t, refusing())
		g.Allow("a")
		time.Sleep(time.Second)
		require.True(t, refusing())
		time.Sleep(time.Minute + 2*time.Second) // What scans remember is forgotten.
		require.False(t, refusing())
	})
}

// A function of the program that panics costs its answer no more than the rule.
func TestAPanicOfExplainEndsNothing(t *testing.T) {
	g := made.Group[string](t, "1/d")
	g.Allow("a")
	i := show(t, "one", inspect.OfGroup(g, inspect.WithExplain(func(string) (string, string, int) { panic("oh") })), inspect.WithLogger(slog.New(slog.DiscardHandler)))
	w := ask(i, "/api/buckets/one/a")
	require.Equal(t, http.StatusOK, w.Code)
	require.Contains(t, w.Body.String(), `"rule":null`)
}

// A stuckKey prints like all others, and hangs when it is asked for its Go syntax.
type stuckKey int

// Each run of the test makes them anew, or the next one would find unstick closed, and
// wait forever for a key to be stuck.
var stuck, unstick chan struct{}

func (stuckKey) String() string { return "same" }

func (stuckKey) GoString() string {
	select {
	case stuck <- struct{}{}:
	case <-unstick:
	}
	<-unstick
	return "go"
}

// Frames, details and Close must not wait for a method of a key.
func TestAKeyWhoseMethodHangsHoldsUpListsOnly(t *testing.T) {
	stuck, unstick = make(chan struct{}), make(chan struct{})
	g := made.Group[stuckKey](t, "1 per 10000s")
	require.True(t, g.Allow(1))
	require.True(t, g.Allow(2))
	i := inspect.New()
	i.Add("one", inspect.OfGroup(g))
	listed, rest := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(listed)
		ask(i, "/api/buckets")
	}()
	<-stuck
	reader := listen(t, i, "/api/events?source=one")
	go func() {
		defer close(rest)
		for {
			e, err := reader.tryNext()
			if err != nil {
				t.Error(err)
			}
			if err != nil || e.name == "frame" {
				break
			}
		}
		reader.cancel()
		if err := i.Close(); err != nil {
			t.Error(err)
		}
	}()
	select {
	case <-rest:
	case <-time.After(patience):
		t.Error("what does not need the text waits for it too")
	}
	close(unstick)
	<-listed
	<-rest
}

// A quittingKey ends the goroutine that makes text of it, while it is told to.
type quittingKey int

var quitting atomic.Bool

func (k quittingKey) String() string {
	if quitting.Load() {
		runtime.Goexit()
	}
	return strconv.Itoa(int(k))
}

func TestAScanThatDoesNotReturnHoldsUpNoLaterOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := made.Group[quittingKey](t, "1 per 10000s")
		require.True(t, g.Allow(1))
		i := show(t, "one", inspect.OfGroup(g))
		quitting.Store(true)
		var asking sync.WaitGroup
		asking.Go(func() { ask(i, "/api/buckets") })
		asking.Wait()
		quitting.Store(false)
		require.Len(t, listOf(t, i, "").Buckets, 1)
	})
}

// Everything at once, for the race detector: a Group whose keys come, wait and go, and
// pages and streams that look on and vanish, until Close.
func TestLookingOnWhileAGroupChanges(t *testing.T) {
	g := made.Group[string](t, "100/s burst 2 depth 3")
	s := made.Shaper(t, "1000/s depth 10")
	i := inspect.New()
	i.Add("many", inspect.OfGroup(g, inspect.WithExplain(func(key string) (string, string, int) { return key, "f", 1 })))
	server := httptest.NewServer(i)
	realtime.Close(t, server)
	t.Cleanup(func() { require.NoError(t, i.Close()) }) // first, as the server waits for its streams
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all sync.WaitGroup
	for k := range 4 {
		all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				key := strconv.Itoa(n * (k + 1) % 50)
				short, done := context.WithTimeout(ctx, 3*time.Millisecond)
				_ = g.Wait(short, key)
				_ = s.Wait(short)
				done()
			}
		})
	}
	looks := []string{"/", "/api/buckets?sort=-level&limit=5", "/api/buckets?refusing=true", "/api/buckets/many/7", "/api/line/many/7",
		"/api/top", "/api/events?source=many", "/api/events?source=many&key=7", "/?source=many&key=7"}
	var answered atomic.Int32
	for _, path := range looks {
		all.Go(func() {
			for ctx.Err() == nil {
				short, done := context.WithTimeout(ctx, 300*time.Millisecond)
				r, err := http.NewRequestWithContext(short, http.MethodGet, server.URL+path, nil)
				if err != nil {
					t.Error(err) // This is not the test's goroutine, so it must not call require.
					done()
					return
				}
				if response, err := http.DefaultClient.Do(r); err == nil {
					answered.Add(1)
					_, _ = io.Copy(io.Discard, response.Body)
					_ = response.Body.Close()
				}
				done()
			}
		})
	}
	all.Go(func() { i.Add("one", inspect.Of(s)) })
	for _, looking := range []time.Duration{700 * time.Millisecond, 300 * time.Millisecond} {
		time.Sleep(looking)
		before := answered.Load()
		realtime.Until(t, func() bool { return answered.Load() > before+int32(len(looks)) }, "each look is answered once more")
		require.NoError(t, g.Close()) // Then the same with a Group that is closed.
	}
	cancel()
	all.Wait()
	require.NoError(t, i.Close())
	http.DefaultClient.CloseIdleConnections()
}

// Whoever looks at 100,000 keys again and again must not need their memory again and again: a row
// has 112 bytes, and one scan is kept.
func TestListsTakeLittleMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys = 10_000
		g := made.Group[string](t, "1 per 10000s depth 5", shaper.WithMaxKeys(2*keys))
		for k := range keys {
			g.Allow(fmt.Sprintf("message_send/%06d", k))
		}
		i := show(t, "many", inspect.OfGroup(g))
		before := heap()
		for n := range 5 {
			require.Equal(t, http.StatusOK, ask(i, "/api/v1/buckets?sort=-level").Code)
			require.Less(t, heap()-before, int64(keys*150), "after %d lists", n+1)
			time.Sleep(2 * time.Second) // The next list needs another scan.
		}
	})
}

// A closed Group refuses all calls, whatever their keys. Its StatsOf tells of a bucket at rate.Inf, of which the
// page would say that every request leaves at once.
func TestAClosedGroupHasNoBuckets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := made.Group[string](t, "1/h depth 4")
		c := newConsole(t, inspect.OfGroup(g))
		lineUp(t, g, "a", 2)
		done := make(chan error)
		go func() { done <- g.Shutdown(t.Context()) }()
		synctest.Wait()
		require.Equal(t, http.StatusOK, ask(c, "/api/v1/buckets/one/a").Code, "its line still leaves")
		require.Equal(t, http.StatusNotFound, ask(c, "/api/v1/buckets/one/b").Code)
		c.post(t, "/api/v1/limits", `{"source":"one","key":"a","limits":"1/min depth 4","for":"10h"}`)
		require.NoError(t, <-done)
		require.ErrorIs(t, g.Wait(t.Context(), "a"), shaper.ErrClosed)
		require.Equal(t, http.StatusNotFound, ask(c, "/api/v1/buckets/one/a").Code)
		require.Equal(t, http.StatusNotFound, ask(c, "/api/v1/line/one/a").Code)
		require.Equal(t, http.StatusConflict, c.send("/api/v1/hold", `{"source":"one","key":"a","for":"1h"}`).Code)
		require.Equal(t, "limits 1/min depth 4 have ended", c.post(t, "/api/v1/reset", `{"source":"one","key":"a"}`).What)
	})
}

// manyKeys is how many buckets the benchmarks look at.
const manyKeys = 100_000

// manyBuckets makes a Group with that many buckets that last, of 100 kinds.
func manyBuckets(b *testing.B) *shaper.Group[string] {
	g := made.GroupBy(b, func(key string) (shaper.Limits, error) {
		if strings.HasPrefix(key, "line") {
			return shaper.Limits{Rate: 10, Depth: 10}, nil
		}
		return shaper.Limits{Rate: 1e-4, Burst: 2 + len(key)%5*20, Depth: len(key)}, nil
	}, shaper.WithMaxKeys(manyKeys+1000))
	for k := range manyKeys {
		key := fmt.Sprintf("message_send/%06d/%0*d", k*7919%manyKeys, k%20, 0)
		for range 1 + k%3 {
			g.Allow(key)
		}
	}
	require.Equal(b, manyKeys, g.Stats().Keys)
	b.Cleanup(func() { _ = g.Close() })
	return g
}

// BenchmarkScan is a list of the first 50 of 100,000 buckets, for which all of them are
// looked at anew.
func BenchmarkScan(b *testing.B) {
	g := manyBuckets(b)
	b.ReportAllocs()
	i := show(b, "many", inspect.OfGroup(g))
	for range 3 {
		ask(i, "/api/buckets")
		time.Sleep(1100 * time.Millisecond)
	}
	for b.Loop() {
		ask(i, "/api/buckets")
		b.StopTimer()
		time.Sleep(1100 * time.Millisecond) // The next is a second later at the earliest.
		b.StartTimer()
	}
}

// BenchmarkHeap is how much memory 100,000 buckets take, and how much more it is after one list and
// after five: what has been collected is left out.
//
//	go test -run=^$ -bench=Heap -benchtime=1x ./inspect
func BenchmarkHeap(b *testing.B) {
	empty := heap()
	g := manyBuckets(b)
	i := show(b, "many", inspect.OfGroup(g))
	alone := heap()
	for b.Loop() {
		b.ReportMetric(float64(alone-empty)/1e6, "MB-of-buckets")
		for n := 1; n <= 5; n++ {
			ask(i, "/api/v1/buckets?sort=-level")
			if n == 1 {
				b.ReportMetric(float64(heap()-empty)/1e6, "MB-after-one-list")
			}
			time.Sleep(1100 * time.Millisecond) // The next scan is a second later at the earliest.
		}
		b.ReportMetric(float64(heap()-empty)/1e6, "MB-after-five")
	}
	runtime.KeepAlive(g)
}

// heap returns how many bytes are in use.
func heap() int64 {
	runtime.GC()
	runtime.GC() // what only finalizers or a pool have held
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// BenchmarkList is a list of 100,000 buckets that have just been scanned.
func BenchmarkList(b *testing.B) {
	g := manyBuckets(b)
	i := show(b, "many", inspect.OfGroup(g))
	for _, query := range []string{"sort=key", "sort=-level", "sort=-refused&prefix=message_send/00", "sort=-fill&fill_gt=0.5&limit=1000"} {
		b.Run(query, func(b *testing.B) {
			b.ReportAllocs()
			size := 0
			for b.Loop() {
				size = ask(i, "/api/buckets?"+query).Body.Len()
			}
			b.ReportMetric(float64(size), "B/answer")
		})
	}
}

// BenchmarkLookingOn is a program with 100,000 buckets that serves calls of many keys.
// 200 of the buckets have a line that leaves at 10 a second each; the calls are of other
// keys. It is measured alone, and while ten pages look on: each has a stream and asks for
// a list every second. What is told is how late requests leave, and for how long a call
// finds the lock taken.
//
//	go test -run=^$ -bench=LookingOn -benchtime=10s ./inspect
func BenchmarkLookingOn(b *testing.B) {
	for _, pages := range []int{0, 10} {
		b.Run(fmt.Sprintf("pages=%d", pages), func(b *testing.B) { lookOn(b, pages) })
	}
}

func lookOn(b *testing.B, pages int) {
	g := manyBuckets(b)
	i := inspect.New()
	i.Add("many", inspect.OfGroup(g))
	server := httptest.NewServer(i)
	defer server.Close()
	defer i.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	var lookers sync.WaitGroup
	look := func(path string, every time.Duration) {
		for ctx.Err() == nil {
			r, _ := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+path, nil)
			if response, err := http.DefaultClient.Do(r); err == nil {
				_, _ = io.Copy(io.Discard, response.Body)
				_ = response.Body.Close()
			}
			time.Sleep(every)
		}
	}
	for k := range pages {
		lookers.Go(func() { look(fmt.Sprintf("/api/events?source=many&key=line+%d", k), 0) })
		lookers.Go(func() { look("/api/buckets?source=many&sort=-waiting", time.Second) })
	}

	var late, taken samples
	for k := range 200 {
		lookers.Go(func() {
			key := fmt.Sprintf("line %d", k)
			for ctx.Err() == nil {
				wait, err := g.Limiter(key).Forecast(1)
				if err != nil {
					return
				}
				due := time.Now().Add(wait)
				if g.Wait(ctx, key) == nil && wait > 0 {
					late.add(time.Since(due))
				}
			}
		})
	}
	time.Sleep(2 * time.Second)
	late.reset()
	for b.Loop() {
		began := time.Now()
		g.Allow("probe")
		taken.add(time.Since(began))
		time.Sleep(100 * time.Microsecond)
	}
	b.ReportMetric(float64(late.quantile(0.5)), "late-p50-ns")
	b.ReportMetric(float64(late.quantile(0.99)), "late-p99-ns")
	b.ReportMetric(float64(late.quantile(1)), "late-max-ns")
	b.ReportMetric(float64(taken.quantile(0.99)), "call-p99-ns")
	b.ReportMetric(float64(taken.quantile(1)), "call-max-ns")
	cancel()
	lookers.Wait()
	http.DefaultClient.CloseIdleConnections()
}

// samples are durations.
type samples struct {
	mu    sync.Mutex
	taken []time.Duration
}

func (s *samples) add(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken = append(s.taken, d)
}

func (s *samples) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken = s.taken[:0]
}

func (s *samples) quantile(q float64) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.taken) == 0 {
		return 0
	}
	slices.Sort(s.taken)
	return s.taken[int(q*float64(len(s.taken)-1))]
}

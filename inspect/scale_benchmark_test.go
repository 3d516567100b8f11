package inspect_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/inspect"
	"example.com/leakybucket/internal/made"
	"example.com/leakybucket/shaper"
)

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

package promshaper_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/promshaper"
)

// A watch scrapes a registry again and again, and fails if anything that only grows goes
// back.
type watch struct {
	prometheus.Gatherer
	last map[string]*dto.Metric
}

func (w *watch) scrape(t testing.TB) map[string]*dto.Metric {
	now := gather(t, w)
	for name, old := range w.last {
		m := now[name]
		require.NotNil(t, m, "%s has gone", name)
		if old.Counter != nil {
			require.GreaterOrEqual(t, m.Counter.GetValue(), old.Counter.GetValue(), name)
		}
		if h := old.Histogram; h != nil {
			requireGrown(t, h, m.Histogram, name)
		}
	}
	for _, rule := range []string{"shaper", "group"} {
		var sum float64
		for _, reason := range []string{"queue_full", "too_late", "too_costly", "closed", "unavailable"} {
			sum += value(now["shaper_refusals_total{"+reason+","+rule+"}"])
		}
		require.Equal(t, value(now["shaper_requests_total{refused,"+rule+"}"]), sum)
		left := now["shaper_wait_seconds{"+rule+"}"].Histogram.GetSampleCount()
		require.LessOrEqual(t, float64(left), value(now["shaper_requests_total{departed,"+rule+"}"]))
	}
	w.last = now
	return now
}

func requireGrown(t testing.TB, old, now *dto.Histogram, name string) {
	require.GreaterOrEqual(t, now.GetSampleCount(), old.GetSampleCount(), name)
	require.GreaterOrEqual(t, now.GetSampleSum(), old.GetSampleSum(), name)
	require.GreaterOrEqual(t, now.GetZeroCount(), old.GetZeroCount(), name)
	for i, b := range old.Bucket {
		require.GreaterOrEqual(t, now.Bucket[i].GetCumulativeCount(), b.GetCumulativeCount(), "%s up to %v", name, b.GetUpperBound())
	}
	later := nativeBuckets(t, now)
	for number, count := range nativeBuckets(t, old) {
		require.GreaterOrEqual(t, later[number], count, "%s: bucket %d", name, number)
	}
}

// Scrapes run while requests come, wait, give up and are refused, keys come and go, and both
// sources are closed. Nothing that is counted is lost by any of that.
func TestCountersNeverGoBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShaper(t, "1000/s burst 3 depth 15 wait 12ms")
		g := newGroup(t, "100/s depth 3")
		c := promshaper.New()
		add(t, c, "shaper", promshaper.Of(s))
		add(t, c, "group", promshaper.OfGroup(g))
		w := watch{Gatherer: registryWith(t, c)}

		var calls sync.WaitGroup
		const callers, each = 20, 60
		for caller := range callers {
			random := rand.New(rand.NewPCG(1, uint64(caller)))
			calls.Go(func() {
				for i := range each {
					ctx, cancel := context.WithCancel(t.Context())
					giveUp := time.AfterFunc(time.Duration(random.Int64N(int64(20*time.Millisecond))), cancel)
					s.Wait(ctx)
					g.Wait(ctx, fmt.Sprint(i/10, random.IntN(10)))
					giveUp.Stop()
					cancel()
					time.Sleep(time.Duration(random.Int64N(int64(50 * time.Millisecond))))
				}
			})
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			calls.Wait()
		}()
		keys := 0.
		for scrapes := 0; ; scrapes++ {
			keys = max(keys, value(w.scrape(t)["shaper_keys{group}"]))
			if scrapes == 200 {
				require.NoError(t, s.Close())
				require.NoError(t, g.Close())
			}
			select {
			case <-ended:
			case <-time.After(5 * time.Millisecond):
				continue
			}
			break
		}
		require.Greater(t, keys, 10.)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		end := w.scrape(t)
		require.Zero(t, value(end["shaper_keys{group}"]), "all keys have been swept")
		all := 0.
		for _, result := range []string{"departed", "refused", "abandoned"} {
			n := value(end["shaper_requests_total{"+result+",shaper}"])
			require.Positive(t, n, result)
			require.Positive(t, value(end["shaper_requests_total{"+result+",group}"]), result)
			all += n
		}
		require.EqualValues(t, callers*each, all, "each call with a live context is counted once")
		require.Positive(t, value(end["shaper_refusals_total{closed,shaper}"]))
	})
}

// The same in real time, where scrapes and requests really run at once.
func TestScrapesDuringTraffic(t *testing.T) {
	t.Parallel()
	s := newShaper(t, "100000/s burst 10 depth 100")
	g := newGroup(t, "100000/s burst 10 depth 100")
	c := promshaper.New()
	add(t, c, "shaper", promshaper.Of(s))
	add(t, c, "group", promshaper.OfGroup(g))
	w := watch{Gatherer: registryWith(t, c)}
	var calls sync.WaitGroup
	for caller := range 4 {
		calls.Go(func() {
			for i := range 1000 {
				s.Wait(t.Context())
				g.Wait(t.Context(), fmt.Sprint(caller, i%7))
			}
		})
	}
	for range 50 {
		w.scrape(t)
	}
	calls.Wait()
	end := w.scrape(t)
	for _, rule := range []string{"shaper", "group"} {
		require.EqualValues(t, 4000, value(end["shaper_requests_total{departed,"+rule+"}"]))
		require.EqualValues(t, 4000, end["shaper_wait_seconds{"+rule+"}"].Histogram.GetSampleCount())
	}
}

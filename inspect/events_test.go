package inspect_test

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/inspect"
	"example.com/leakybucket/internal/made"
	"example.com/leakybucket/shaper"
)

// burst lets n calls come at once, whatever becomes of them.
func burst(s *shaper.Shaper, n int) {
	for range n {
		go func() { _ = s.Wait(context.Background()) }()
	}
	synctest.Wait()
}

// What a burst looks like: 10 of 13 arrive in the line or leave, 3 are refused, and then
// four leave in a second.
func TestAStreamShowsABurstDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		s := made.Shaper(t, "4/s depth 9")
		i := show(t, "one", inspect.Of(s), inspect.WithTitle("demo"))
		time.Sleep(30 * time.Millisecond) // Samples are taken at whole tenths of a second.
		burst(s, 13)
		time.Sleep(510 * time.Millisecond)

		r := listen(t, i, "/api/events?source=one")
		var hello struct {
			Title    string
			Sources  []struct{ Name string }
			Selected struct {
				Source  string
				Key, ID *string
			}
			Control bool
		}
		r.until("hello", &hello)
		require.Equal(t, "text/event-stream", r.header.Get("Content-Type"))
		require.Equal(t, "no", r.header.Get("X-Accel-Buffering"))
		require.Equal(t, "demo", hello.Title)
		require.Equal(t, "one", hello.Sources[0].Name)
		require.Equal(t, "one", hello.Selected.Source)
		require.Nil(t, hello.Selected.Key)
		require.False(t, hello.Control)
		var history struct {
			Step   float64 `json:"step_s"`
			Points []frame
		}
		r.until("history", &history)
		require.Equal(t, 0.1, history.Step)
		var detail struct {
			Bucket        bucket
			NextDeparture time.Time `json:"next_departure"`
		}
		r.until("detail", &detail)
		require.Equal(t, 7, detail.Bucket.Waiting)
		require.True(t, detail.NextDeparture.Equal(began.Add(780*time.Millisecond)))

		frames := history.Points
		for len(frames) < 36 {
			var f frame
			r.until("frame", &f)
			frames = append(frames, f)
		}
		// One leaves each quarter of a second from 30 ms on, and rates cover the last second, or
		// the time since Add.
		came := func(at int) (arrived, left, refused float64) { // at is in tenths of a second
			if at <= 0 {
				return 0, 0, 0
			}
			return 13, min(10, math.Floor((float64(at)-0.3)/2.5)+1), 3
		}
		for k, f := range frames {
			arrived, left, refused := came(k)
			arrivedBefore, leftBefore, refusedBefore := came(k - 10)
			seconds := min(max(float64(k), 1)/10, 1)
			require.Equal(t, time.Duration(k)*100*time.Millisecond, after(began, f))
			require.InDelta(t, (arrived-arrivedBefore)/seconds, f.Arrivals, 5e-4, k)
			require.InDelta(t, (left-leftBefore)/seconds, f.Departures, 5e-4, k)
			require.InDelta(t, (refused-refusedBefore)/seconds, f.Refusals, 5e-4, k)
			require.Equal(t, int(arrived-left-refused), f.Waiting, k)
			require.Equal(t, 4.0, *f.Rate)
			require.Equal(t, 9, *f.Depth)
			// So few leave that a shorter time than a second would tell nothing.
			require.Equal(t, []float64{f.Arrivals, f.Departures}, []float64{f.Brief.Arrivals, f.Brief.Departures})
		}
	})
}

// A burst that is over in less than half a second comes in as a peak and leaves as a band at the
// drain rate: in the last minute, and in the last hour by the greatest rates of each step.
func TestAFastBurstIsSeenAsABurstAndAnEvenBand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := made.Shaper(t, "200/s depth 100")
		i := show(t, "one", inspect.Of(s))
		time.Sleep(2*time.Second + 52*time.Millisecond)
		burst(s, 90)
		time.Sleep(8 * time.Second)
		past := pastOf(t, i, "/api/events?source=one")
		var arrivals, departures []float64
		for _, p := range past.Points[20:28] {
			arrivals, departures = append(arrivals, p.Brief.Arrivals), append(departures, p.Brief.Departures)
			require.InDelta(t, 0.1, p.Brief.OverS, 1e-9)
		}
		require.Equal(t, []float64{0, 900, 0, 0, 0, 0, 0, 0}, arrivals)
		require.Equal(t, []float64{0, 100, 200, 200, 200, 200, 0, 0}, departures)
		require.Len(t, past.Long, 1)
		require.Equal(t, 9.0, past.Long[0].Arrivals)
		require.Equal(t, 9.0, past.Long[0].Departures)
		require.Equal(t, 900.0, past.Long[0].Brief.Arrivals)
		require.Equal(t, 200.0, past.Long[0].Brief.Departures)
		require.Equal(t, 80, past.Long[0].Waiting, "the longest line of all samples")
	})
}

// The history keeps a minute in short steps and an hour in long ones, and then its memory grows no
// more. A reader that has seen a part of it gets the rest.
func TestTheHistoryIsOfTheLastMinuteAndTheLastHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		i := show(t, "one", inspect.Of(made.Shaper(t, "4/s")))
		time.Sleep(61*time.Minute + time.Millisecond)
		past := pastOf(t, i, "/api/events")
		require.Len(t, past.Points, 600)
		require.Equal(t, 61*time.Minute, after(began, past.Points[599]))
		require.Equal(t, 60*time.Minute+100*time.Millisecond, after(began, past.Points[0]))
		require.Equal(t, 10.0, past.LongStep)
		require.Len(t, past.Long, 360)
		require.Equal(t, 61*time.Minute, after(began, past.Long[359]))
		require.Equal(t, time.Minute+10*time.Second, after(began, past.Long[0]))

		later := pastOf(t, i, fmt.Sprintf("/api/events?since=%d", past.Points[589].AtMS))
		require.Equal(t, past.Points[590:], later.Points)
		require.Equal(t, past.Long[359:], later.Long)
		require.Equal(t, http.StatusBadRequest, ask(i, "/api/events?since=-1").Code)
		require.LessOrEqual(t, inspect.HistorySize, uintptr(77_000))
	})
}

// Whoever is on call sees at each source how it does, without opening it.
func TestTheHealthOfEachSourceIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := made.Shaper(t, "1/s depth 3")
		i := show(t, "one", inspect.Of(s))
		r := listen(t, i, "/api/events")
		require.Equal(t, "hello", r.next().name)
		time.Sleep(50 * time.Millisecond)
		told := func() string {
			var sources []struct{ Health string }
			r.until("sources", &sources)
			return sources[0].Health
		}
		burst(s, 3) // The last leaves after 2 s.
		require.Equal(t, "line", told())
		require.Equal(t, "rest", told())
		burst(s, 6)
		began := time.Now()
		require.Equal(t, "refusing", told(), "a line that is full is told as the worse of the two")
		require.Equal(t, "rest", told())
		require.InDelta(t, 10, time.Since(began).Seconds(), 1.1)
		require.Contains(t, ask(i, "/api/buckets").Body.String(), `"health":"rest"`)
	})
}

// pastOf returns the history that a stream begins with.
func pastOf(t *testing.T, i *inspect.Inspector, target string) (past struct {
	Points, Long []frame
	LongStep     float64 `json:"long_step_s"`
}) {
	r := listen(t, i, target)
	r.until("history", &past)
	r.leave()
	return past
}

// The history of a bucket goes on while nobody looks, for a minute.
func TestTheHistoryOfABucketOutlivesItsReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := made.Group[string](t, "1/min depth 5")
		i := show(t, "many", inspect.OfGroup(g))
		points := func() int {
			return len(pastOf(t, i, "/api/events?source=many&key=a").Points)
		}
		time.Sleep(time.Millisecond) // Samples are taken at whole tenths of a second.
		require.Zero(t, points())
		time.Sleep(59 * time.Second)
		require.Equal(t, 59*10, points())
		time.Sleep(61 * time.Second)
		require.Zero(t, points())
	})
}

// Whoever looks at one bucket also sees the figures of the whole source.
func TestAFrameOfABucketHasTheTotalsOfItsSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := made.Group[string](t, "1/min depth 9")
		i := show(t, "many", inspect.OfGroup(g))
		time.Sleep(2*time.Second + time.Millisecond)
		type totals struct{ Arrivals, Departures, Refusals, Abandoned, Waiting float64 }
		type both struct {
			Waiting int
			Totals  *totals
		}
		ofKey, ofAll := listen(t, i, "/api/events?source=many&key=a"), listen(t, i, "/api/events?source=many")
		var f both
		ofKey.until("frame", &f)
		require.Equal(t, &totals{}, f.Totals)
		ofAll.until("frame", &f)
		lineUp(t, g, "a", 3)
		lineUp(t, g, "b", 6)
		ofKey.until("frame", &f)
		require.Equal(t, 2, f.Waiting)
		require.Equal(t, &totals{Arrivals: 9, Departures: 2, Waiting: 7}, f.Totals)
		f = both{}
		ofAll.until("frame", &f)
		require.Equal(t, 7, f.Waiting)
		require.Nil(t, f.Totals)
	})
}

// A bucket is deleted when it has drained. Whoever looks at it sees it empty meanwhile,
// and sees no departures of long ago when it is made again.
func TestABucketMayComeAndGoWhileSomebodyLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := made.Group[string](t, "1/s burst 2 depth 5")
		i := show(t, "many", inspect.OfGroup(g))
		for range 5 {
			g.Allow("a")
		}
		r := listen(t, i, "/api/events?source=many&key=a")
		var d struct{ Bucket *bucket }
		r.until("detail", &d)
		require.Equal(t, uint64(3), d.Bucket.Refused)
		require.True(t, d.Bucket.Refusing)
		var f frame
		for range 50 {
			r.until("frame", &f)
		}
		require.Zero(t, f.Departures)
		require.Zero(t, *f.Level)
		require.Equal(t, 1.0, *f.Rate)
		d.Bucket = nil
		r.until("detail", &d)
		require.Nil(t, d.Bucket)
		g.Allow("a")
		r.until("frame", &f)
		require.Equal(t, 1.0, f.Departures)
		require.Zero(t, f.Refusals)

		// Its totals begin at 0 each time, so they may be as great as they were before.
		for range 50 {
			r.until("frame", &f)
		}
		g.Allow("a")
		r.until("frame", &f)
		require.Equal(t, 1.0, f.Departures)
		require.Equal(t, 1.0, f.Arrivals)
	})
}

// The keys that scans have met are forgotten a minute after the last list. A key that is not a
// string is known from scans alone.
func TestAStreamOfAKeyThatIsNotAStringOutlivesTheScan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := made.Group[int](t, "1 per 1h depth 5")
		i := show(t, "many", inspect.OfGroup(g))
		require.True(t, g.Allow(7))
		r := listen(t, i, "/api/events?source=many&key=7")
		for range 100 {
			var d struct{ Bucket *bucket }
			r.until("detail", &d)
			require.NotNil(t, d.Bucket)
			require.Equal(t, "7", d.Bucket.Key)
		}
		var f frame
		r.until("frame", &f)
		require.Greater(t, *f.Level, 0.9)
		require.True(t, g.Allow(8))
		require.Equal(t, http.StatusOK, ask(i, "/api/buckets/many/8").Code)
	})
}

// A reader that takes nothing for a while gets the latest frame then, and not those that
// it has missed.
func TestASlowReaderGetsTheLatestFrame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := show(t, "one", inspect.Of(made.Shaper(t, "4/s")))
		r := listen(t, i, "/api/events")
		var f frame
		r.until("frame", &f)
		last := f.AtMS
		time.Sleep(9*time.Second + time.Millisecond)
		var got []int64
		for range 3 {
			r.until("frame", &f)
			got = append(got, f.AtMS-last)
		}
		// The first was being written all the while.
		require.Equal(t, []int64{100, 9000, 9100}, got)
	})
}

func TestAReaderThatTakesNothingIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := show(t, "one", inspect.Of(made.Shaper(t, "4/s")))
		r := listen(t, i, "/api/events")
		var f frame
		r.until("frame", &f)
		began := time.Now()
		<-r.ended
		require.Equal(t, 10*time.Second+100*time.Millisecond, time.Since(began))
	})
}

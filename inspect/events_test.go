package inspect_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
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

func TestStreamsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := show(t, "one", inspect.Of(made.Shaper(t, "4/s")))
		var readers []*reader
		for range 256 {
			r := listen(t, i, "/api/events")
			require.Equal(t, "hello", r.next().name)
			readers = append(readers, r)
		}
		require.Equal(t, http.StatusServiceUnavailable, ask(i, "/api/events").Code)
		readers[7].cancel()
		<-readers[7].ended
		require.Equal(t, "hello", listen(t, i, "/api/events").next().name)
	})
}

func TestCloseEndsAllStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := inspect.New()
		i.Add("one", inspect.Of(made.Shaper(t, "4/s")))
		polite, stuck := listen(t, i, "/api/events"), listen(t, i, "/api/events")
		require.Equal(t, "hello", polite.next().name)
		require.Equal(t, "hello", stuck.next().name)
		time.Sleep(time.Second)
		ended := make(chan time.Time)
		go func() {
			_ = i.Close()
			ended <- time.Now()
		}()
		began := time.Now()
		for {
			e, err := polite.tryNext()
			require.NoError(t, err)
			if e.name == "bye" {
				break
			}
		}
		<-polite.ended
		require.Equal(t, began, time.Now())
		require.Equal(t, began.Add(time.Second), <-ended) // The other has that long to take something.
		<-stuck.ended
		require.Equal(t, http.StatusServiceUnavailable, ask(i, "/api/events").Code)
		require.Equal(t, http.StatusServiceUnavailable, ask(i, "/api/buckets").Code)
		require.NoError(t, i.Close())
		i.Add("late", inspect.Of(made.Shaper(t, "4/s"))) // It shows nothing, and begins nothing.
	})
}

// A plain wrapper, as of a middleware that logs, hides the write deadlines of a connection.
// With it a reader that takes nothing would be waited for without end, and so would Close.
func TestCloseDoesNotHangBehindAWriterWithoutDeadlines(t *testing.T) {
	i := inspect.New()
	i.Add("one", inspect.Of(made.Shaper(t, "4/s")))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i.ServeHTTP(struct {
			http.ResponseWriter
			http.Flusher
		}{w, w.(http.Flusher)}, r)
	}))
	defer server.Close()
	defer server.CloseClientConnections()
	response, err := http.Get(server.URL + "/api/events")
	require.NoError(t, err)
	defer response.Body.Close()
	require.Equal(t, http.StatusNotImplemented, response.StatusCode)
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Contains(t, string(text), "write deadlines")
	closed := make(chan error)
	go func() { closed <- i.Close() }()
	select {
	case err := <-closed:
		require.NoError(t, err)
	case <-time.After(patience):
		t.Fatal("Close hangs")
	}
}

func TestReportsAndNewSourcesAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := blank(t)
		one := made.Shaper(t, "4/s")
		i.Add("one", inspect.Of(one))
		r := listen(t, i, "/api/events")
		var report struct{ Message string }
		require.Equal(t, "hello", r.next().name)

		i.Report(errors.New("limits.yaml:3:5: what is that?"))
		r.until("report", &report)
		require.Equal(t, "limits.yaml:3:5: what is that?", report.Message)
		var hello struct{ Reports []struct{ Message string } }
		later := listen(t, i, "/api/events")
		later.until("hello", &hello)
		require.Len(t, hello.Reports, 1)
		i.Report(nil)
		r.until("report", &report)
		require.Empty(t, report.Message)
		later = listen(t, i, "/api/events")
		later.until("hello", &hello)
		require.Empty(t, hello.Reports)

		var sources []struct {
			Name   string
			Closed bool
		}
		many := made.Group[string](t, "4/s")
		i.Add("many", inspect.OfGroup(many))
		r.until("sources", &sources)
		require.Len(t, sources, 2)
		require.NoError(t, one.Close())
		require.NoError(t, many.Close())
		r.until("sources", &sources)
		require.True(t, sources[0].Closed)
		require.True(t, sources[1].Closed)
	})
}

func TestTwoSourcesOfOneNameAreAMistake(t *testing.T) {
	i := show(t, "one", inspect.Of(made.Shaper(t, "4/s")))
	require.PanicsWithValue(t, `inspect: there is a source named "one" already`, func() { i.Add("one", inspect.Of(made.Shaper(t, "4/s"))) })
	require.Panics(t, func() { i.Add("", inspect.Of(made.Shaper(t, "4/s"))) })
	require.Panics(t, func() { i.Add("two", nil) })
}

// Over a real connection, a server's ReadTimeout and WriteTimeout do not end a stream.
func TestAStreamOutlivesTheTimeoutsOfTheServer(t *testing.T) {
	for timeout := 300 * time.Millisecond; !outlives(t, timeout); timeout *= 2 {
		require.Less(t, timeout, patience, "a stream never begins in half that time")
	}
}

// outlives requires that a stream goes on when the timeouts of its server are over. It returns
// false if the stream has not begun long before, as the timeouts count until then.
func outlives(t *testing.T, timeout time.Duration) bool {
	t.Helper()
	i := inspect.New()
	i.Add("one", inspect.Of(made.Shaper(t, "4/s")))
	server := httptest.NewUnstartedServer(i)
	defer server.Close()
	defer i.Close()
	server.Config.ReadTimeout, server.Config.WriteTimeout = timeout, timeout
	server.Start()
	asked := time.Now()
	response, err := http.Get(server.URL + "/api/events")
	if err == nil {
		defer response.Body.Close()
	}
	if time.Since(asked) > timeout/2 {
		return false
	}
	require.NoError(t, err)
	r := &reader{t: t, events: bufio.NewScanner(response.Body)}
	for frames := 0; frames < 4 || time.Since(asked) < 3*timeout; frames++ {
		var f frame
		r.until("frame", &f)
	}
	return true
}

func TestARemovedSourceIsShownNoLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := blank(t)
		one, two := made.Group[string](t, "4/s"), made.Group[string](t, "4/s")
		one.Allow("a")
		two.Allow("b")
		i.Add("one", inspect.OfGroup(one))
		i.Add("two", inspect.OfGroup(two))
		gone, stays := listen(t, i, "/api/events?source=one&key=a"), listen(t, i, "/api/events?source=two")
		require.Equal(t, "hello", gone.next().name)
		require.Equal(t, "hello", stays.next().name)
		require.Equal(t, []string{"a", "b"}, keysOf(listOf(t, i, "sort=key")))

		i.Remove("one")
		var sources []struct{ Name string }
		stays.until("sources", &sources)
		require.Equal(t, []struct{ Name string }{{"two"}}, sources)
		for gone.next().name != "bye" {
		}
		<-gone.ended
		for _, target := range []string{"/api/buckets?source=one", "/api/buckets/one/a", "/api/events?source=one", "/api/line/one/a"} {
			require.Equal(t, http.StatusNotFound, ask(i, target).Code, target)
		}
		require.Equal(t, []string{"b"}, keysOf(listOf(t, i, "sort=key")))
		i.Remove("one") // There is none.

		other := made.Group[string](t, "4/s")
		other.Allow("c")
		i.Add("one", inspect.OfGroup(other))
		require.Equal(t, []string{"c"}, keysOf(listOf(t, i, "source=one")))
		again := listen(t, i, "/api/events?source=one&key=c")
		var frame struct{ Level *float64 }
		again.until("frame", &frame)
		require.NotNil(t, frame.Level)
	})
}

// Were the first Add after the last Remove to start a second sampler, every history would
// have each of its points twice.
func TestASourceInThePlaceOfTheOnlyOneIsSampledOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := show(t, "one", inspect.Of(made.Shaper(t, "4/s")))
		synctest.Wait()
		i.Remove("one")
		i.Add("one", inspect.Of(made.Shaper(t, "4/s")))
		time.Sleep(10*time.Second + time.Millisecond)
		var history struct{ Points []struct{} }
		listen(t, i, "/api/events").until("history", &history)
		require.Len(t, history.Points, 100)
	})
}

// A program may go on with a shaper that is shown no longer: a change for ten minutes would
// stay in force for ever.
func TestChangesOfARemovedSourceEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := made.Shaper(t, "50/s depth 100")
		c := newConsole(t, inspect.Of(s))
		other := made.Shaper(t, "50/s depth 100")
		c.Add("other", inspect.Of(other))
		c.post(t, "/api/limits", `{"source":"one","limits":"5/s","for":"10m"}`)
		c.post(t, "/api/hold", `{"source":"one","for":"10m"}`)
		c.post(t, "/api/limits", `{"source":"other","limits":"5/s","for":"10m"}`)
		c.Remove("one")
		require.Equal(t, made.Limits(t, "50/s depth 100"), s.Limits())
		require.Zero(t, s.Stats().HeldUntil)
		require.Equal(t, made.Limits(t, "5/s"), other.Limits())
		require.Contains(t, c.log.String(), `what="limits 5/s depth 0 have ended; back to 50/s depth 100 (the source was removed)"`)
	})
}

func TestAStreamThatBeganWithoutASourceStopsNoSampler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := blank(t)
		empty := listen(t, i, "/api/events")
		require.Equal(t, "hello", empty.next().name)
		i.Add("one", inspect.Of(made.Shaper(t, "4/s")))
		time.Sleep(3 * time.Second)
		empty.until("sources", &[]struct{}{})
	})
}

// Remove waits five seconds for a change that hangs. Whatever is asked of its source in that time must
// leave no change behind that nobody ends. And the change that hangs
// must not be mistaken for one of the source that comes next under the name: the API would say 200 to a
// hold, and hold what nobody sees any more.
func TestARemovedSourceWhoseChangeHangsLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hangs atomic.Bool
		blocked := make(chan struct{})
		old := made.GroupBy(t, func(key string) (shaper.Limits, error) {
			if key == "hangs" && hangs.Load() {
				<-blocked
			}
			return made.Limits(t, "1/h burst 9"), nil
		})
		goOn := sync.OnceFunc(func() { close(blocked) })
		c := newConsole(t, inspect.OfGroup(old))
		defer goOn()
		require.True(t, old.Allow("hangs"))
		require.True(t, old.Allow("a"))
		c.post(t, "/api/limits", `{"source":"one","key":"hangs","limits":"7/h","for":"10m"}`)
		hangs.Store(true)
		removed := make(chan time.Time, 1)
		begun := time.Now()
		go func() {
			c.Remove("one")
			removed <- time.Now()
		}()
		synctest.Wait()

		for path, change := range map[string]string{
			"/api/limits": `{"source":"one","key":"a","limits":"8/h","for":"10m"}`,
			"/api/hold":   `{"source":"one","key":"a","for":"10m"}`,
		} {
			refused(t, http.StatusNotFound, c.send(path, change))
		}
		require.Equal(t, http.StatusOK, ask(c, "/api/buckets/one/a").Code, "it is shown still")
		require.Equal(t, begun.Add(5*time.Second), <-removed)
		st, _ := old.StatsOf("a")
		require.Zero(t, st.HeldUntil)
		require.Equal(t, made.Limits(t, "1/h burst 9"), st.Limits)
		refused(t, http.StatusNotFound, ask(c, "/api/buckets/one/a"))
		inForce, past := c.recorded(t, "")
		require.Empty(t, inForce)
		require.Equal(t, "failed", *past[0].Outcome)

		next := made.Group[string](t, "2/h burst 9")
		c.Add("one", inspect.OfGroup(next))
		require.True(t, next.Allow("hangs"))
		shown, _ := c.overridden(t, "hangs")
		require.Nil(t, shown.Override)
		c.post(t, "/api/hold", `{"source":"one","key":"hangs","for":"10m"}`)
		c.post(t, "/api/limits", `{"source":"one","key":"hangs","limits":"9/h","for":"10m"}`)
		st, _ = next.StatsOf("hangs")
		require.NotZero(t, st.HeldUntil)
		require.Equal(t, made.Limits(t, "9/h"), st.Limits)
		st, _ = old.StatsOf("hangs")
		require.Zero(t, st.HeldUntil)

		before, ended := c.recorded(t, "")
		goOn()
		synctest.Wait()
		inForce, past = c.recorded(t, "")
		require.Equal(t, before, inForce, "the end of the old change is told to nobody")
		require.Equal(t, ended, past)
	})
}

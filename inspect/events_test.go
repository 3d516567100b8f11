package inspect_test

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/inspect"
	"example.com/leakybucket/shaper"
)

func shaperOf(t *testing.T, limits string, opts ...shaper.Option) *shaper.Shaper {
	l, err := shaper.ParseLimits(limits)
	require.NoError(t, err)
	s, err := shaper.New(l, opts...)
	require.NoError(t, err)
	return s
}

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
		s := shaperOf(t, "4/s depth 9")
		i := inspect.New(inspect.WithTitle("demo"))
		defer i.Close()
		i.Add("one", inspect.Of(s))
		time.Sleep(100 * time.Millisecond) // Samples are taken at whole quarters of a second.
		burst(s, 13)
		time.Sleep(500 * time.Millisecond)

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
		require.Equal(t, 0.25, history.Step)
		var detail struct {
			Bucket        bucket
			NextDeparture time.Time `json:"next_departure"`
		}
		r.until("detail", &detail)
		require.Equal(t, 7, detail.Bucket.Waiting)
		require.True(t, detail.NextDeparture.Equal(began.Add(850*time.Millisecond)))

		frames := history.Points
		for len(frames) < 16 {
			var f frame
			r.until("frame", &f)
			frames = append(frames, f)
		}
		// One leaves each quarter of a second from 0.1 s on, and rates cover the last second, or
		// the time since Add.
		for k, want := range []struct {
			arrivals, departures, refusals float64
			waiting                        int
		}{
			{0, 0, 0, 0},
			{13 / 0.25, 1 / 0.25, 3 / 0.25, 9},
			{13 / 0.5, 2 / 0.5, 3 / 0.5, 8},
			{13 / 0.75, 3 / 0.75, 3 / 0.75, 7},
			{13, 4, 3, 6},
			{0, 4, 0, 5},
			{0, 4, 0, 4},
			{0, 4, 0, 3},
			{0, 4, 0, 2},
			{0, 4, 0, 1},
			{0, 4, 0, 0},
			{0, 3, 0, 0},
			{0, 2, 0, 0},
			{0, 1, 0, 0},
			{0, 0, 0, 0},
		} {
			f := frames[k]
			require.Equal(t, time.Duration(k)*250*time.Millisecond, f.since(began))
			require.InDelta(t, want.arrivals, f.Arrivals, 1e-9, k)
			require.InDelta(t, want.departures, f.Departures, 1e-9, k)
			require.InDelta(t, want.refusals, f.Refusals, 1e-9, k)
			require.Equal(t, want.waiting, f.Waiting, k)
			require.Equal(t, 4.0, *f.Rate)
			require.Equal(t, 9, *f.Depth)
		}
	})
}

func TestTheHistoryIsOfTheLastMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		i := inspect.New()
		defer i.Close()
		i.Add("one", inspect.Of(shaperOf(t, "4/s")))
		time.Sleep(200*time.Second + time.Millisecond)
		var history struct{ Points []frame }
		listen(t, i, "/api/events").until("history", &history)
		require.Len(t, history.Points, 240)
		require.Equal(t, 200*time.Second, history.Points[239].since(began))
		require.Equal(t, 140*time.Second+250*time.Millisecond, history.Points[0].since(began))
	})
}

// The history of a bucket goes on while nobody looks, for a minute.
func TestTheHistoryOfABucketOutlivesItsReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := groupOf(t, "1/min depth 5")
		i := inspect.New()
		defer i.Close()
		i.Add("many", inspect.OfGroup(g))
		points := func() int {
			r := listen(t, i, "/api/events?source=many&key=a")
			var history struct{ Points []frame }
			r.until("history", &history)
			r.cancel()
			_ = r.conn.Close()
			<-r.ended
			return len(history.Points)
		}
		time.Sleep(time.Millisecond) // Samples are taken at whole quarters of a second.
		require.Zero(t, points())
		time.Sleep(59 * time.Second)
		require.Equal(t, 59*4, points())
		time.Sleep(61 * time.Second)
		require.Zero(t, points())
	})
}

// Whoever looks at one bucket also sees the figures of the whole source.
func TestAFrameOfABucketHasTheTotalsOfItsSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := groupOf(t, "1/min depth 9")
		i := inspect.New()
		defer i.Close()
		i.Add("many", inspect.OfGroup(g))
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
		g := groupOf(t, "1/s burst 2 depth 5")
		i := inspect.New()
		defer i.Close()
		i.Add("many", inspect.OfGroup(g))
		for range 5 {
			g.Allow("a")
		}
		r := listen(t, i, "/api/events?source=many&key=a")
		var d struct{ Bucket *bucket }
		r.until("detail", &d)
		require.Equal(t, uint64(3), d.Bucket.Refused)
		require.True(t, d.Bucket.Refusing)
		var f frame
		for range 20 {
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
	})
}

// The keys that scans have met are forgotten a minute after the last list. A key that is not a
// string is known from scans alone.
func TestAStreamOfAKeyThatIsNotAStringOutlivesTheScan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := shaper.ParseLimits("1 per 1h depth 5")
		require.NoError(t, err)
		g, err := shaper.NewGroup(func(int) (shaper.Limits, error) { return l, nil })
		require.NoError(t, err)
		i := inspect.New()
		defer i.Close()
		i.Add("many", inspect.OfGroup(g))
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
		i := inspect.New()
		defer i.Close()
		i.Add("one", inspect.Of(shaperOf(t, "4/s")))
		r := listen(t, i, "/api/events")
		var f frame
		r.until("frame", &f)
		last := f.At
		time.Sleep(9*time.Second + time.Millisecond)
		var got []int64
		for range 3 {
			r.until("frame", &f)
			got = append(got, f.At-last)
		}
		// The first was being written all the while.
		require.Equal(t, []int64{250, 9000, 9250}, got)
	})
}

func TestAReaderThatTakesNothingIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := inspect.New()
		defer i.Close()
		i.Add("one", inspect.Of(shaperOf(t, "4/s")))
		r := listen(t, i, "/api/events")
		var f frame
		r.until("frame", &f)
		began := time.Now()
		<-r.ended
		require.Equal(t, 10*time.Second+250*time.Millisecond, time.Since(began))
	})
}

func TestAClosedTabLeavesNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := inspect.New()
		defer i.Close()
		i.Add("one", inspect.Of(shaperOf(t, "4/s")))
		for range 300 { // more than there may be at once
			r := listen(t, i, "/api/events")
			require.Equal(t, "hello", r.next().name)
			r.cancel()
			_ = r.conn.Close()
			<-r.ended
		}
	})
}

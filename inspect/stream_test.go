package inspect_test

import (
	"bufio"
	"errors"
	"io"
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

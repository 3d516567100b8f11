package inspect_test

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/inspect"
)

func TestStreamsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := inspect.New()
		defer i.Close()
		i.Add("one", inspect.Of(shaperOf(t, "4/s")))
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
		i.Add("one", inspect.Of(shaperOf(t, "4/s")))
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
		i.Add("late", inspect.Of(shaperOf(t, "4/s"))) // It shows nothing, and begins nothing.
	})
}

// A plain wrapper, as of a middleware that logs, hides the write deadlines of a connection.
// With it a reader that takes nothing would be waited for without end, and so would Close.
func TestCloseDoesNotHangBehindAWriterWithoutDeadlines(t *testing.T) {
	i := inspect.New()
	i.Add("one", inspect.Of(shaperOf(t, "4/s")))
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
		i := inspect.New()
		defer i.Close()
		one := shaperOf(t, "4/s")
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
		require.Contains(t, ask(i, "/").Body.String(), "limits.yaml:3:5: what is that?")
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
		many := groupOf(t, "4/s")
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
	i := inspect.New()
	defer i.Close()
	i.Add("one", inspect.Of(shaperOf(t, "4/s")))
	require.PanicsWithValue(t, `inspect: there is a source named "one" already`, func() { i.Add("one", inspect.Of(shaperOf(t, "4/s"))) })
	require.Panics(t, func() { i.Add("", inspect.Of(shaperOf(t, "4/s"))) })
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
	i.Add("one", inspect.Of(shaperOf(t, "4/s")))
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

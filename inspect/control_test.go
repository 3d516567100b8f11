package inspect_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/inspect"
	"example.com/leakybucket/shaper"
)

const token = "correct horse battery staple"

// A console is an Inspector with control, which is called without a network, so that it
// can run in a bubble.
type console struct {
	*inspect.Inspector
	log *logText
}

// newConsole returns a console for a source named "one". It must be closed.
func newConsole(source inspect.Source, opts ...inspect.Option) console {
	log := &logText{}
	opts = append([]inspect.Option{inspect.WithControl(token + "\n"), inspect.WithLogger(slog.New(slog.NewTextHandler(log, nil)))}, opts...)
	c := console{inspect.New(opts...), log}
	c.Add("one", source)
	return c
}

// A logText is the text of a log.
type logText struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// call sends a request from this machine, with changes made to it.
func (c console) call(method, path, body string, edits ...func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Host, r.RemoteAddr = "localhost:8080", "127.0.0.1:4000"
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer "+token)
	}
	for _, edit := range edits {
		edit(r)
	}
	w := httptest.NewRecorder()
	c.ServeHTTP(w, r)
	return w
}

// post sends a request that must be answered with a change, and returns that.
func (c console) post(t *testing.T, path, body string) (done change) {
	t.Helper()
	w := c.call(http.MethodPost, path, body)
	require.Equal(t, http.StatusOK, w.Code, "%s", w.Body)
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &done))
	return done
}

// A change is what the control part tells of a change.
type change struct {
	At                     time.Time
	Who, What, Source, Key string
	ID                     string
	Until                  *time.Time
	Change                 record
}

// A record is a change as data.
type record struct {
	Kind, Source, Key, ID, Who string
	From                       time.Time
	Until, Ended               *time.Time
	Limits, Before             *string
	EndedBy                    *string `json:"ended_by"`
	Outcome, Error             *string
}

// recorded returns all changes that are in force, and those that have ended, the latest first.
func (c console) recorded(t *testing.T, query string) (inForce, past []record) {
	t.Helper()
	w := c.call(http.MethodGet, "/api/changes"+query, "")
	require.Equal(t, http.StatusOK, w.Code, "%s", w.Body)
	var answer struct {
		InForce []record `json:"in_force"`
		Past    []record
	}
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer))
	require.NotNil(t, answer.InForce)
	require.NotNil(t, answer.Past)
	return answer.InForce, answer.Past
}

// changes returns what has been changed of late, oldest first, as a new stream is told.
func (c console) changes(t *testing.T) (all []change) {
	t.Helper()
	w := c.call(http.MethodHead, "/api/events", "")
	require.Equal(t, http.StatusOK, w.Code)
	r := httptest.NewRequest(http.MethodGet, "/api/events", nil)
	r.Host, r.RemoteAddr = "localhost", "127.0.0.1:4000"
	ctx, cancel := contextThatHasEnded()
	defer cancel()
	w = httptest.NewRecorder()
	c.ServeHTTP(w, r.WithContext(ctx))
	_, text, ok := strings.Cut(w.Body.String(), "event: hello\ndata: ")
	require.True(t, ok, "%s", w.Body)
	text, _, _ = strings.Cut(text, "\n")
	var hello struct{ Changes []change }
	require.NoError(t, json.Unmarshal([]byte(text), &hello))
	return hello.Changes
}

// whats returns what was changed, without the rest.
func whats(changes []change) (all []string) {
	for _, c := range changes {
		all = append(all, c.What)
	}
	return all
}

func limits(t *testing.T, text string) shaper.Limits {
	t.Helper()
	l, err := shaper.ParseLimits(text)
	require.NoError(t, err)
	return l
}

func newShaper(t *testing.T, text string) *shaper.Shaper {
	t.Helper()
	s, err := shaper.New(limits(t, text))
	require.NoError(t, err)
	return s
}

func TestLimitsAreChangedForATimeAndThenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShaper(t, "50/s depth 100")
		c := newConsole(inspect.Of(s))
		defer c.Close()
		start := time.Now()
		done := c.post(t, "/api/limits", `{"source":"one","limits":"5/s depth 10","for":"10m","who":"Ann \"the boss\"\n"}`)
		require.Equal(t, limits(t, "5/s depth 10"), s.Limits())
		until := start.Add(10 * time.Minute).UTC()
		require.Equal(t, change{
			At: start.UTC(), Who: `"Ann \"the boss\"\n" at 127.0.0.1:4000`, Source: "one", Until: &until,
			What: "limits set to 5/s depth 10, in place of 50/s depth 100",
			Change: record{
				Kind: "limits", Source: "one", Who: done.Who, From: start.UTC(), Until: &until,
				Limits: new("5/s depth 10"), Before: new("50/s depth 100"),
			},
		}, done)

		time.Sleep(10*time.Minute - 1)
		synctest.Wait()
		require.Equal(t, limits(t, "5/s depth 10"), s.Limits())
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.Equal(t, limits(t, "50/s depth 100"), s.Limits())

		changes := c.changes(t)
		require.Len(t, changes, 2)
		require.Equal(t, done, changes[0])
		ended := done.Change
		ended.Ended, ended.Outcome = &until, new("put_back")
		require.Equal(t, change{
			At: until, Who: done.Who, Source: "one", What: "limits 5/s depth 10 have ended; back to 50/s depth 100", Change: ended,
		}, changes[1])
		require.Contains(t, c.log.String(), `who="\"Ann \\\"the boss\\\"\\n\" at 127.0.0.1:4000" what="limits set to 5/s depth 10, in place of 50/s depth 100" source=one key="" until=2000-01-01T00:10:00.000Z`)
		require.Contains(t, c.log.String(), `what="limits 5/s depth 10 have ended; back to 50/s depth 100"`)
		require.NotContains(t, c.log.String(), token)
	})
}

func TestALaterChangeReplacesTheEndOfTheEarlierOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShaper(t, "50/s")
		c := newConsole(inspect.Of(s))
		defer c.Close()
		c.post(t, "/api/limits", `{"source":"one","limits":"5/s","for":"10m"}`)
		time.Sleep(9 * time.Minute)
		c.post(t, "/api/limits", `{"source":"one","limits":"6/s","for":"10m"}`)
		time.Sleep(10*time.Minute - 1)
		synctest.Wait()
		require.Equal(t, limits(t, "6/s"), s.Limits())
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.Equal(t, limits(t, "50/s"), s.Limits())
	})
}

func TestAChangeOfLimitsIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShaper(t, "50/s")
		c := newConsole(inspect.Of(s))
		defer c.Close()
		c.post(t, "/api/limits", `{"source":"one","limits":"5/s","for":"10m"}`)
		time.Sleep(time.Minute)
		c.post(t, "/api/hold", `{"source":"one","for":"30m"}`)
		done := c.post(t, "/api/reset", `{"source":"one","who":"Bob"}`)
		require.Equal(t, "limits 5/s depth 0 have ended; back to 50/s depth 0", done.What)
		require.Equal(t, `"Bob" at 127.0.0.1:4000`, done.Who)
		require.Nil(t, done.Until)
		require.Equal(t, limits(t, "50/s"), s.Limits())
		require.Equal(t, time.Now().Add(30*time.Minute), s.Stats().HeldUntil, "the hold stays")
		_, message := refused(t, http.StatusConflict, c.call(http.MethodPost, "/api/reset", `{"source":"one"}`))
		require.Contains(t, message, "have not been changed here")

		// Its end does not come a second time.
		require.NoError(t, s.SetLimits(limits(t, "5/s")))
		time.Sleep(9 * time.Minute)
		synctest.Wait()
		require.Equal(t, limits(t, "5/s"), s.Limits())
		require.Len(t, c.changes(t), 3)
	})
}

// Somebody else's limits are newer than what was in force before the change.
func TestTheEndOfAChangeLeavesTheLimitsOfOthersInForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShaper(t, "50/s")
		c := newConsole(inspect.Of(s))
		defer c.Close()
		c.post(t, "/api/limits", `{"source":"one","limits":"5/s","for":"10m"}`)
		require.NoError(t, s.SetLimits(limits(t, "70/s")))
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		require.Equal(t, limits(t, "70/s"), s.Limits())
		require.Contains(t, c.log.String(), "limits 5/s depth 0 have ended; 70/s depth 0, which others have set meanwhile, stay in force")

		// They are what a later change puts back, even if an earlier one has not ended.
		c.post(t, "/api/limits", `{"source":"one","limits":"5/s","for":"10m"}`)
		require.NoError(t, s.SetLimits(limits(t, "80/s")))
		c.post(t, "/api/limits", `{"source":"one","limits":"6/s","for":"10m"}`)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		require.Equal(t, limits(t, "80/s"), s.Limits())
	})
}

func TestCloseEndsAllChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShaper(t, "50/s depth 9")
		c := newConsole(inspect.Of(s))
		c.post(t, "/api/limits", `{"source":"one","limits":"5/s depth 9","for":"10m"}`)
		done := c.post(t, "/api/hold", `{"source":"one","for":"10m"}`)
		require.Equal(t, done.Until, c.post(t, "/api/hold", `{"source":"one","for":"2m"}`).Until, "the one that ends last counts")
		start, left := time.Now(), make(chan time.Duration, 1)
		go func() {
			if s.Wait(t.Context()) == nil {
				left <- time.Since(start)
			}
		}()
		time.Sleep(time.Minute)
		require.NoError(t, c.Close())
		require.Equal(t, limits(t, "50/s depth 9"), s.Limits())
		require.Equal(t, time.Minute, <-left)
		require.Contains(t, c.log.String(), "limits 5/s depth 9 have ended; back to 50/s depth 9 (the inspector is closed)")
		require.Contains(t, c.log.String(), "the hold has ended (the inspector is closed)")
		require.Equal(t, http.StatusServiceUnavailable, c.call(http.MethodPost, "/api/limits", `{}`).Code)
		require.NoError(t, c.Close(), "Close may be called again")
	})
}

func TestALineIsHeldAndReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShaper(t, "50/s depth 9")
		c := newConsole(inspect.Of(s))
		defer c.Close()
		start, left := time.Now(), make(chan time.Duration, 2)
		wait := func() {
			if s.Wait(t.Context()) == nil {
				left <- time.Since(start)
			}
		}
		done := c.post(t, "/api/hold", `{"source":"one","for":"30s"}`)
		require.Equal(t, start.Add(30*time.Second).UTC(), *done.Until)
		go wait()
		require.Equal(t, 30*time.Second, <-left)
		synctest.Wait()

		c.post(t, "/api/hold", `{"source":"one","for":"30s"}`)
		go wait()
		time.Sleep(10 * time.Second)
		done = c.post(t, "/api/release", `{"source":"one"}`)
		require.Nil(t, done.Until)
		require.Equal(t, 40*time.Second, <-left)
		time.Sleep(time.Minute)
		c.post(t, "/api/release", `{"source":"one"}`)
		require.Equal(t, []string{"held", "the hold has ended", "held", "released", "released, but it was not held"}, whats(c.changes(t)))
	})
}

// An upstream that has asked for a pause of two minutes gets it, whatever an operator
// has wanted for half a minute.
func TestTheHoldsOfOthersStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShaper(t, "50/s depth 9")
		c := newConsole(inspect.Of(s))
		start := time.Now()
		s.Hold(2 * time.Minute)
		done := c.post(t, "/api/hold", `{"source":"one","for":"30s"}`)
		require.Equal(t, start.Add(2*time.Minute).UTC(), *done.Until, "the answer tells the end that counts")
		require.NoError(t, c.Close())
		require.Equal(t, start.Add(2*time.Minute), s.Stats().HeldUntil)

		c = newConsole(inspect.Of(s))
		defer c.Close()
		c.post(t, "/api/release", `{"source":"one"}`)
		c.post(t, "/api/hold", `{"source":"one","for":"30s"}`)
		s.Hold(time.Minute)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		require.Equal(t, []string{"released", "held", "the hold has ended; others hold the line until 2000-01-01T00:01:00Z"}, whats(c.changes(t)))
	})
}

func TestACapIsKeptByLimitsThatNameNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShaper(t, "50/s inflight 3")
		c := newConsole(inspect.Of(s))
		defer c.Close()
		c.post(t, "/api/limits", `{"source":"one","limits":"5/s","for":"10m"}`)
		require.Equal(t, limits(t, "5/s inflight 3"), s.Limits())
		c.post(t, "/api/limits", `{"source":"one","limits":"5/s inflight 4","for":"10m"}`)
		require.Equal(t, limits(t, "5/s inflight 4"), s.Limits())
	})
}

func TestAReaderOfEventsIsToldOfAChangeAtOnce(t *testing.T) {
	c := newConsole(inspect.Of(newShaper(t, "50/s")))
	server := httptest.NewServer(c)
	defer server.Close()
	defer c.Close()
	r, err := http.Get(server.URL + "/api/events")
	require.NoError(t, err)
	defer func() { _ = r.Body.Close() }()
	lines := bufio.NewScanner(r.Body)
	next := func(event string) (told change) {
		for lines.Scan() {
			if lines.Text() == "event: "+event && lines.Scan() {
				require.NoError(t, json.Unmarshal([]byte(strings.TrimPrefix(lines.Text(), "data: ")), &told))
				return told
			}
		}
		require.Fail(t, "the stream has ended", "before the event %q", event)
		return told
	}
	next("hello")
	done := c.post(t, "/api/limits", `{"source":"one","limits":"5/s","for":"1h"}`)
	require.Equal(t, done, next("change"))
	go c.Close()
	require.Equal(t, "limits 5/s depth 0 have ended; back to 50/s depth 0 (the inspector is closed)", next("change").What)
	next("bye")
}

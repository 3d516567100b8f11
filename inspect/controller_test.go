package inspect_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/inspect"
	"example.com/leakybucket/internal/made"
)

const token = "correct horse battery staple"

// A console is an Inspector with control, which is called without a network, so that it
// can run in a bubble.
type console struct {
	*inspect.Inspector
	log *logText
}

// newConsole returns a console for a source named "one", until the test ends.
func newConsole(t *testing.T, source inspect.Source, opts ...inspect.Option) console {
	log := &logText{}
	opts = append([]inspect.Option{inspect.WithControl(token + "\n"), inspect.WithLogger(slog.New(slog.NewTextHandler(log, nil)))}, opts...)
	return console{show(t, "one", source, opts...), log}
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

// send sends a request that changes something, with changes made to it.
func (c console) send(path, body string, edits ...func(*http.Request)) *httptest.ResponseRecorder {
	return recorded(c, command(path, body, edits...))
}

// post sends a request that must be answered with a change, and returns that.
func (c console) post(t *testing.T, path, body string) (done change) {
	t.Helper()
	w := c.send(path, body)
	require.Equal(t, http.StatusOK, w.Code, "%s", w.Body)
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &done))
	return done
}

type (
	change = inspect.Told
	record = inspect.Record
)

// recorded returns all changes that are in force, and those that have ended, the latest first.
func (c console) recorded(t *testing.T, query string) (inForce, past []record) {
	t.Helper()
	var answer struct {
		InForce []record `json:"in_force"`
		Past    []record
	}
	told(t, c, "/api/v1/changes"+query, &answer)
	return answer.InForce, answer.Past
}

// changes returns the latest changes, oldest first, as a new stream is told.
func (c console) changes(t *testing.T) []change {
	t.Helper()
	var hello struct{ Changes []change }
	r := listen(t, c, "/api/events")
	r.until("hello", &hello)
	r.leave()
	return hello.Changes
}

// whats returns the field What of each change.
func whats(changes []change) (all []string) {
	for _, c := range changes {
		all = append(all, c.What)
	}
	return all
}

func TestLimitsAreChangedForATimeAndThenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := made.Shaper(t, "50/s depth 100")
		c := newConsole(t, inspect.Of(s))
		start := time.Now()
		done := c.post(t, "/api/limits", `{"source":"one","limits":"5/s depth 10","for":"10m","who":"Ann \"the boss\"\n"}`)
		require.Equal(t, made.Limits(t, "5/s depth 10"), s.Limits())
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
		require.Equal(t, made.Limits(t, "5/s depth 10"), s.Limits())
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.Equal(t, made.Limits(t, "50/s depth 100"), s.Limits())

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
		s := made.Shaper(t, "50/s")
		c := newConsole(t, inspect.Of(s))
		c.post(t, "/api/limits", `{"source":"one","limits":"5/s","for":"10m"}`)
		time.Sleep(9 * time.Minute)
		c.post(t, "/api/limits", `{"source":"one","limits":"6/s","for":"10m"}`)
		time.Sleep(10*time.Minute - 1)
		synctest.Wait()
		require.Equal(t, made.Limits(t, "6/s"), s.Limits())
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.Equal(t, made.Limits(t, "50/s"), s.Limits())
	})
}

func TestAChangeOfLimitsIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := made.Shaper(t, "50/s")
		c := newConsole(t, inspect.Of(s))
		c.post(t, "/api/limits", `{"source":"one","limits":"5/s","for":"10m"}`)
		time.Sleep(time.Minute)
		c.post(t, "/api/hold", `{"source":"one","for":"30m"}`)
		done := c.post(t, "/api/reset", `{"source":"one","who":"Bob"}`)
		require.Equal(t, "limits 5/s depth 0 have ended; back to 50/s depth 0", done.What)
		require.Equal(t, `"Bob" at 127.0.0.1:4000`, done.Who)
		require.Nil(t, done.Until)
		require.Equal(t, made.Limits(t, "50/s"), s.Limits())
		require.Equal(t, time.Now().Add(30*time.Minute), s.Stats().HeldUntil, "the hold stays")
		_, message := refused(t, http.StatusConflict, c.send("/api/reset", `{"source":"one"}`))
		require.Contains(t, message, "have not been changed here")

		// Its end does not come a second time.
		require.NoError(t, s.SetLimits(made.Limits(t, "5/s")))
		time.Sleep(9 * time.Minute)
		synctest.Wait()
		require.Equal(t, made.Limits(t, "5/s"), s.Limits())
		require.Len(t, c.changes(t), 3)
	})
}

// Somebody else's limits are newer than the limits before the change.
func TestTheEndOfAChangeLeavesTheLimitsOfOthersInForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := made.Shaper(t, "50/s")
		c := newConsole(t, inspect.Of(s))
		c.post(t, "/api/limits", `{"source":"one","limits":"5/s","for":"10m"}`)
		require.NoError(t, s.SetLimits(made.Limits(t, "70/s")))
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		require.Equal(t, made.Limits(t, "70/s"), s.Limits())
		require.Contains(t, c.log.String(), "limits 5/s depth 0 have ended; 70/s depth 0, which others have set meanwhile, stay in force")
	})
}

func TestCloseEndsAllChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := made.Shaper(t, "50/s depth 9")
		c := newConsole(t, inspect.Of(s))
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
		stream := listen(t, c, "/api/events")
		require.Equal(t, "hello", stream.next().name)
		closed := make(chan error, 1)
		go func() { closed <- c.Close() }()
		heard := ""
		for e := stream.next(); e.name != "bye"; e = stream.next() {
			heard += e.data
		}
		require.Contains(t, heard, "back to 50/s depth 9 (the inspector is closed)")
		require.NoError(t, <-closed)
		require.Equal(t, made.Limits(t, "50/s depth 9"), s.Limits())
		require.Equal(t, time.Minute, <-left)
		require.Contains(t, c.log.String(), "limits 5/s depth 9 have ended; back to 50/s depth 9 (the inspector is closed)")
		require.Contains(t, c.log.String(), "the hold has ended (the inspector is closed)")
		require.Equal(t, http.StatusServiceUnavailable, c.send("/api/limits", `{}`).Code)
		require.NoError(t, c.Close(), "Close may be called again")
	})
}

// Outside a bubble time passes between any two lines of the program, so a hold ends later than whoever asked for it has computed.
// It must not be taken for a hold of others, which Close leaves in force.
func TestCloseEndsAHoldByAClockThatGoesOn(t *testing.T) {
	for range 100 {
		s := made.Shaper(t, "50/s depth 9")
		c := newConsole(t, inspect.Of(s))
		c.post(t, "/api/hold", `{"source":"one","for":"10m"}`)
		require.NotZero(t, s.Stats().HeldUntil)
		require.NoError(t, c.Close())
		require.Zero(t, s.Stats().HeldUntil)
	}
}

func TestALineIsHeldAndReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := made.Shaper(t, "50/s depth 9")
		c := newConsole(t, inspect.Of(s))
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
		s := made.Shaper(t, "50/s depth 9")
		c := newConsole(t, inspect.Of(s))
		start := time.Now()
		s.Hold(2 * time.Minute)
		done := c.post(t, "/api/hold", `{"source":"one","for":"30s"}`)
		require.Equal(t, start.Add(2*time.Minute).UTC(), *done.Until, "the answer tells the end that counts")
		require.NoError(t, c.Close())
		require.Equal(t, start.Add(2*time.Minute), s.Stats().HeldUntil)

		c = newConsole(t, inspect.Of(s))
		defer c.Close()
		c.post(t, "/api/release", `{"source":"one"}`)
		c.post(t, "/api/hold", `{"source":"one","for":"30s"}`)
		s.Hold(time.Minute)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		require.Equal(t, []string{"released", "held", "the hold has ended; others hold the line until 2000-01-01T00:01:00Z"}, whats(c.changes(t)))
	})
}

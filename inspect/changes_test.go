package inspect_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
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
	"example.com/leakybucket/shaper/buckettest"
	"example.com/leakybucket/shaper/shared"
)

// overridden returns the bucket of a key, and the name of its rule.
func (c console) overridden(t *testing.T, key string) (of bucket, rule string) {
	t.Helper()
	listed := listOf(t, c, "prefix="+key)
	var d struct {
		Bucket bucket
		Rule   struct{ Rule string }
	}
	told(t, c, "/api/buckets/one/"+key, &d)
	require.Len(t, listed.Buckets, 1)
	require.Equal(t, listed.Buckets[0].Override, d.Bucket.Override)
	return d.Bucket, d.Rule.Rule
}

// Whoever looks at a bucket must see that its limits differ from its rule, until when, and who has
// set them, however many other changes have come since.
func TestAnOverrideIsPartOfItsBucketAfterManyLaterChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := made.Group[string](t, "1 per 1h burst 9")
		c := newConsole(t, inspect.OfGroup(g, inspect.WithExplain(func(string) (string, string, int) { return "usual", "limits.yaml", 3 })))
		require.True(t, g.Allow("a"))
		none, rule := c.overridden(t, "a")
		require.Nil(t, none.Override)
		require.Equal(t, "usual", rule)
		start := time.Now().UTC()
		c.post(t, "/api/limits", `{"source":"one","key":"a","limits":"1 per 2h burst 9","for":"2h","who":"Ann"}`)
		for k := range 250 {
			time.Sleep(time.Second)
			c.post(t, "/api/limits", fmt.Sprintf(`{"source":"one","key":"b%d","limits":"1 per 2h","for":"1s"}`, k))
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()

		got, rule := c.overridden(t, "a")
		require.Equal(t, "usual", rule)
		require.Equal(t, "1 per 2h burst 9 depth 0", got.Limits)
		require.NotNil(t, got.Override)
		require.Equal(t, start, got.Override.From)
		require.Equal(t, start.Add(2*time.Hour), *got.Override.Until)
		require.Equal(t, `"Ann" at 127.0.0.1:4000`, got.Override.Who)
		require.Equal(t, "1/h burst 9 depth 0", got.Override.Before)

		inForce, past := c.recorded(t, "?source=one")
		require.Len(t, inForce, 1)
		require.Equal(t, []string{"limits", "a", "1 per 2h burst 9 depth 0", "1/h burst 9 depth 0"},
			[]string{inForce[0].Kind, inForce[0].ID, *inForce[0].Limits, *inForce[0].Before})
		require.Nil(t, inForce[0].Ended)
		require.Len(t, past, 200)
		require.Equal(t, "b249", past[0].Key)
		require.Equal(t, "b50", past[199].Key)
		require.Equal(t, "put_back", *past[0].Outcome)
		require.Equal(t, *past[0].Until, *past[0].Ended)

		stream := listen(t, c, "/api/events")
		var hello struct {
			Changes []change
			InForce []record `json:"in_force"`
		}
		stream.until("hello", &hello)
		require.Len(t, hello.Changes, 20)
		require.Equal(t, inForce, hello.InForce)

		c.post(t, "/api/reset", `{"source":"one","key":"a"}`)
		var told change
		stream.until("change", &told)
		require.Equal(t, "put_back", *told.Change.Outcome)
		require.Equal(t, "127.0.0.1:4000", *told.Change.EndedBy)
		none, _ = c.overridden(t, "a")
		require.Nil(t, none.Override)
		inForce, past = c.recorded(t, "")
		require.Empty(t, inForce)
		require.Equal(t, told.Change, past[0])
	})
}

// What became of each change is data: nobody has to read it out of words.
func TestWhatBecameOfAChangeIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fails atomic.Bool
		g := made.GroupBy(t, func(int) (shaper.Limits, error) {
			if fails.Load() {
				return shaper.Limits{}, errors.New("no database")
			}
			return shaper.Limits{Rate: 1. / 60, Burst: 9}, nil
		})
		c := newConsole(t, inspect.OfGroup(g))
		latest := func() string {
			_, past := c.recorded(t, "")
			return *past[0].Outcome
		}
		require.True(t, g.Allow(7))
		c.post(t, "/api/limits", `{"source":"one","key":"7","limits":"1/s","for":"10m"}`)
		c.post(t, "/api/limits", `{"source":"one","key":"7","limits":"2/s","for":"10m"}`)
		require.Equal(t, "replaced", latest())
		inForce, _ := c.recorded(t, "")
		require.Len(t, inForce, 1)
		require.Equal(t, "1/min burst 9 depth 0", *inForce[0].Before, "before the first of them")
		require.NoError(t, g.SetLimits(7, shaper.Limits{Rate: 3}))
		c.post(t, "/api/reset", `{"source":"one","key":"7"}`)
		require.Equal(t, "overtaken", latest())
		require.NoError(t, g.ResetLimits(7))

		c.post(t, "/api/hold", `{"source":"one","key":"7","for":"10s"}`)
		c.post(t, "/api/release", `{"source":"one","key":"7"}`)
		require.Equal(t, "released", latest())
		c.post(t, "/api/hold", `{"source":"one","key":"7","for":"10s"}`)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.Equal(t, "ended", latest())

		// A key whose bucket has gone, and whose text no list knows any more, is reset all the same.
		c.post(t, "/api/limits", `{"source":"one","key":"7","limits":"1000/s","for":"10m"}`)
		time.Sleep(3 * time.Minute)
		require.Equal(t, http.StatusNotFound, ask(c, "/api/buckets/one/7").Code)
		c.post(t, "/api/reset", `{"source":"one","key":"7"}`)
		require.Equal(t, "put_back", latest())

		require.True(t, g.AllowN(7, 9))
		require.Equal(t, http.StatusOK, ask(c, "/api/buckets/one/7").Code)
		c.post(t, "/api/limits", `{"source":"one","key":"7","limits":"1/h","for":"1s"}`)
		fails.Store(true)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		inForce, _ = c.recorded(t, "")
		require.Contains(t, *inForce[0].Error, "no database")
		require.Nil(t, inForce[0].Ended)
		require.Equal(t, http.StatusNotFound, ask(c, "/api/changes?source=two").Code)
		c.Remove("one")
		require.Equal(t, "failed", latest())
		require.NoError(t, c.Close())
	})
}

// Two Inspectors for different people, one made from the other, have one list of changes; the token
// of one opens nothing at the other.
func TestInspectorsOfOneKindShareTheirChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := made.Shaper(t, "50/s")
		pages := newConsole(t, inspect.Of(s))
		const another = "another token of some length"
		admin := console{pages.With(inspect.WithControl(another), inspect.WithLogger(slog.New(slog.DiscardHandler))), pages.log}
		readers := console{pages.With(), pages.log}
		pages.post(t, "/api/limits", `{"source":"one","limits":"5/s","for":"1h"}`)
		inForce, _ := readers.recorded(t, "")
		require.Len(t, inForce, 1)
		refused(t, http.StatusForbidden, readers.send("/api/reset", `{"source":"one"}`))
		refused(t, http.StatusUnauthorized, admin.send("/api/reset", `{"source":"one"}`))
		w := admin.send("/api/reset", `{"source":"one"}`, header("Authorization", "Bearer "+another))
		require.Equal(t, http.StatusOK, w.Code, w.Body)
		require.Equal(t, made.Limits(t, "50/s"), s.Limits())
		inForce, past := pages.recorded(t, "")
		require.Empty(t, inForce)
		require.Len(t, past, 1)
		require.NoError(t, admin.Close())
		refused(t, http.StatusServiceUnavailable, ask(pages, "/api/buckets"))
	})
}

// Limits that others have set since are theirs: nobody may be told that Ann has set them.
func TestLimitsThatOthersHaveSetSinceAreNotToldAsAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := made.Group[string](t, "1/h burst 9")
		c := newConsole(t, inspect.OfGroup(g))
		require.True(t, g.Allow("a"))
		c.post(t, "/api/limits", `{"source":"one","key":"a","limits":"7/h","for":"10m","who":"Ann"}`)
		got, _ := c.overridden(t, "a")
		require.NotNil(t, got.Override)
		require.NoError(t, g.SetLimits("a", made.Limits(t, "33/h")))
		time.Sleep(time.Second)
		got, _ = c.overridden(t, "a")
		require.Equal(t, "33/h depth 0", got.Limits)
		require.Nil(t, got.Override)

		c.post(t, "/api/limits", `{"source":"one","key":"a","limits":"8/h","for":"10m","who":"Bob"}`)
		_, past := c.recorded(t, "")
		require.Equal(t, "overtaken", *past[0].Outcome)
		got, _ = c.overridden(t, "a")
		require.Equal(t, "33/h depth 0", got.Override.Before)
	})
}

// keyLimits returns the limits of a key, whose bucket need not be in use.
func keyLimits(t *testing.T, g *shaper.Group[string], key string) shaper.Limits {
	t.Helper()
	l, err := g.LimitsOf(key)
	require.NoError(t, err)
	return l
}

// What is told to be in force must be in force, also when the program itself has set other limits since.
func TestALimitThatOthersHaveReplacedIsNotToldToBeInForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, g := made.Shaper(t, "50/s"), made.Group[string](t, "50/s")
		c := newConsole(t, inspect.Of(s))
		c.Add("keys", inspect.OfGroup(g))
		require.True(t, g.Allow("set") && g.Allow("reset") && g.Allow("stays"))
		c.post(t, "/api/limits", `{"source":"one","limits":"7/s","for":"10m"}`)
		for _, key := range []string{"set", "reset", "stays"} {
			c.post(t, "/api/limits", `{"source":"keys","key":"`+key+`","limits":"7/s","for":"10m"}`)
		}
		require.NoError(t, s.SetLimits(made.Limits(t, "60/s")))
		require.NoError(t, g.SetLimits("set", made.Limits(t, "60/s")))
		require.NoError(t, g.ResetLimits("reset"))
		g.Reload()

		stream := listen(t, c, "/api/events")
		var hello struct {
			InForce []record `json:"in_force"`
		}
		stream.until("hello", &hello)
		inForce, past := c.recorded(t, "")
		require.Equal(t, inForce, hello.InForce)
		require.Len(t, inForce, 1)
		require.Equal(t, "stays", inForce[0].Key)
		require.Len(t, past, 3)
		for _, r := range past {
			require.Equal(t, "overtaken", *r.Outcome, r.Source+r.Key)
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		require.Equal(t, made.Limits(t, "60/s"), s.Limits())
		require.Equal(t, made.Limits(t, "60/s"), keyLimits(t, g, "set"))
		require.Equal(t, made.Limits(t, "50/s"), keyLimits(t, g, "reset"))
		require.Equal(t, made.Limits(t, "50/s"), keyLimits(t, g, "stays"))
	})
}

// A restart must not undo what an operator has done for a time.
func TestAChangeIsResumedForTheRestOfItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sources := func(c console) (*shaper.Shaper, *shaper.Group[string]) {
			s, g := made.Shaper(t, "50/s"), made.Group[string](t, "50/s")
			c.Add("line", inspect.Of(s))
			c.Add("keys", inspect.OfGroup(g))
			return s, g
		}
		first := newConsole(t, inspect.Of(made.Shaper(t, "1/s")))
		sources(first)
		first.post(t, "/api/limits", `{"source":"line","limits":"7/s","for":"10m","who":"Ann"}`)
		first.post(t, "/api/limits", `{"source":"keys","key":"a","limits":"8/s","for":"10m","who":"Ann"}`)
		first.post(t, "/api/limits", `{"source":"keys","key":"a","limits":"9/s","for":"20m","who":"Ann"}`)
		first.post(t, "/api/hold", `{"source":"line","for":"10m"}`)
		inForce, _ := first.recorded(t, "")
		changes := first.Changes()
		require.Len(t, changes, 3)
		require.NoError(t, first.Close())
		require.Empty(t, first.Changes())

		time.Sleep(4 * time.Minute)
		second := newConsole(t, inspect.Of(made.Shaper(t, "1/s")))
		s, g := sources(second)
		for _, c := range changes {
			require.NoError(t, second.Resume(c))
		}
		again, _ := second.recorded(t, "")
		require.Equal(t, inForce, again)
		require.Equal(t, changes, second.Changes())
		require.Equal(t, made.Limits(t, "7/s"), s.Limits())
		require.Equal(t, made.Limits(t, "9/s"), keyLimits(t, g, "a"))
		require.Equal(t, made.Limits(t, "50/s"), changes[0].Before, "of the first of two")

		time.Sleep(6*time.Minute - 1)
		synctest.Wait()
		require.Equal(t, made.Limits(t, "7/s"), s.Limits())
		require.True(t, s.Stats().HeldUntil.After(time.Now()))
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.Equal(t, made.Limits(t, "50/s"), s.Limits())
		require.False(t, s.Stats().HeldUntil.After(time.Now()))
		require.Equal(t, made.Limits(t, "9/s"), keyLimits(t, g, "a"))
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		require.Equal(t, made.Limits(t, "50/s"), keyLimits(t, g, "a"))

		require.ErrorContains(t, second.Resume(changes[0]), "the change ended at")
		late := changes[1]
		late.Source, late.Until = "none", time.Now().Add(time.Hour)
		require.ErrorContains(t, second.Resume(late), `"none"`)
		late.Source, late.Key = "line", "key"
		require.ErrorContains(t, second.Resume(late), `the source "line" has no bucket of the key "key"`)
	})
}

// Limits that a program has put in force for good may be the very ones of the change: its end must not take them away.
func TestTheEndOfAChangeThatWasOvertakenLeavesTheSameLimitsInForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := made.Shaper(t, "50/s")
		c := newConsole(t, inspect.Of(s))
		c.post(t, "/api/limits", `{"source":"one","limits":"7/s","for":"10m"}`)
		earlier := c.Changes()[0]
		time.Sleep(time.Minute)
		c.post(t, "/api/limits", `{"source":"one","limits":"7/s","for":"10m"}`)
		c.Overtake(earlier) // It has been replaced.
		require.Len(t, c.Changes(), 1)
		require.NoError(t, s.SetLimits(made.Limits(t, "7/s")))
		c.Overtake(c.Changes()[0])
		inForce, past := c.recorded(t, "")
		require.Empty(t, inForce)
		require.Equal(t, "overtaken", *past[0].Outcome)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		require.Equal(t, made.Limits(t, "7/s"), s.Limits())
	})
}

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

// A hold that processes have together stays in their Bucket, and nobody must be told that it has ended.
func TestAHoldOfAllProcessesIsNotToldToBeReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := made.Shaper(t, "50/s depth 9", shaper.WithBucket(buckettest.NewMemory(), "k", shared.Options{}))
		c := newConsole(t, inspect.Of(s))
		start, left := time.Now(), make(chan time.Duration, 1)
		c.post(t, "/api/hold", `{"source":"one","for":"30s"}`)
		go func() {
			if s.Wait(t.Context()) == nil {
				left <- time.Since(start)
			}
		}()
		time.Sleep(10 * time.Second)
		c.post(t, "/api/release", `{"source":"one"}`)
		require.GreaterOrEqual(t, <-left, 30*time.Second)
		c.post(t, "/api/release", `{"source":"one"}`)
		require.Equal(t, []string{
			"held", "released in this process alone: a hold that the processes with this bucket have together ends by itself", "released, but it was not held",
		}, whats(c.changes(t)))
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

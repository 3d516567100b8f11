package inspect_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/adapt"
	"example.com/leakybucket/inspect"
	"example.com/leakybucket/internal/made"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
	"example.com/leakybucket/shaper/shared"
)

// limitsOf returns the limits that the bucket of a key has; none if it is not in use.
func limitsOf(g *shaper.Group[string], key string) shaper.Limits {
	st, _ := g.StatsOf(key)
	return st.Limits
}

func TestTheLimitsOfOneKeyAreChangedForATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		usual := made.Limits(t, "1 per 1h burst 9")
		g := made.GroupBy(t, func(string) (shaper.Limits, error) { return usual, nil })
		c := newConsole(t, inspect.OfGroup(g))
		require.True(t, g.Allow("a/b"))
		require.True(t, g.Allow("other"))
		done := c.post(t, "/api/limits", `{"source":"one","key":"a/b","limits":"1 per 2h burst 9","for":"10m"}`)
		require.Equal(t, "a/b", done.Key)
		require.Equal(t, "a%2Fb", done.ID)
		require.Equal(t, made.Limits(t, "1 per 2h burst 9"), limitsOf(g, "a/b"))
		require.Equal(t, usual, limitsOf(g, "other"))
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		require.Equal(t, usual, limitsOf(g, "a/b"))

		// A key that has no bucket yet gets the limits with its first call. Its id can say
		// what no JSON text can.
		c.post(t, "/api/limits", `{"source":"one","id":"%ff","limits":"1 per 2h burst 9","for":"10m"}`)
		require.True(t, g.Allow("\xff"))
		require.Equal(t, made.Limits(t, "1 per 2h burst 9"), limitsOf(g, "\xff"))
		require.NoError(t, c.Close())
		require.Equal(t, usual, limitsOf(g, "\xff"))
	})
}

// A change for a time is one of the ceiling of a rate that adapts, whatever the rate is when it begins and ends.
func TestAChangeForATimeIsOneOfTheCeiling(t *testing.T) {
	for _, end := range []string{"by itself", "reset", "Close"} {
		t.Run(end, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := made.Shaper(t, "100/s depth 9")
				a, err := adapt.New(s, adapt.Config{Min: 1, Start: 100})
				require.NoError(t, err)
				c := newConsole(t, inspect.OfAdaptive(s, a))
				a.Observe(adapt.Refused, 0)
				require.Equal(t, "90/s depth 9", s.Limits().String())
				c.post(t, "/api/limits", `{"source":"one","key":"","limits":"50/s depth 5","for":"10m"}`)
				require.Equal(t, "50/s depth 5", s.Limits().String())
				time.Sleep(time.Minute)
				a.Observe(adapt.Refused, 0)
				require.Equal(t, "40/s depth 5", s.Limits().String())
				inForce, _ := c.recorded(t, "")
				require.Equal(t, "100/s depth 9", *inForce[0].Before)
				switch end {
				case "by itself":
					time.Sleep(9 * time.Minute)
					synctest.Wait()
				case "reset":
					c.post(t, "/api/reset", `{"source":"one","key":""}`)
				case "Close":
					require.NoError(t, c.Close())
				}
				a.Observe(adapt.OK, 0)
				require.Equal(t, "40/s depth 9", s.Limits().String())
				require.EqualValues(t, 100, a.Stats().Max)
			})
		})
	}
}

// Changes of one instant are listed by their keys, in the same order each time.
func TestChangesOfOneInstantHaveAnOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		usual := made.Limits(t, "1 per 1h burst 9")
		c := newConsole(t, inspect.OfGroup(made.GroupBy(t, func(string) (shaper.Limits, error) { return usual, nil })))
		for _, key := range "cgahbfde" {
			c.post(t, "/api/limits", fmt.Sprintf(`{"source":"one","key":"%c","limits":"1 per 2h burst 9","for":"10m"}`, key))
		}
		inForce, _ := c.recorded(t, "")
		keys := ""
		for _, change := range inForce {
			keys += change.Key
		}
		require.Equal(t, "hgfedcba", keys, "the latest first")
	})
}

// What Group.SetLimits has said of a key is the program's own, before a change through the
// API and during it, also while the key has no bucket.
func TestTheLimitsThatAProgramHasGivenAKeyAreNotLost(t *testing.T) {
	usual, own, others := made.Limits(t, "1 per 1h burst 9"), made.Limits(t, "2 per 1h burst 9"), made.Limits(t, "3 per 1h burst 9")
	const change = `{"source":"one","key":"k","limits":"7 per 1h burst 9","for":"10s"}`
	set := func(l shaper.Limits) func(*shaper.Group[string]) error {
		return func(g *shaper.Group[string]) error { return g.SetLimits("k", l) }
	}
	reset := func(g *shaper.Group[string]) error { return g.ResetLimits("k") }
	nothing := func(*shaper.Group[string]) error { return nil }
	for _, c := range []struct {
		name           string
		before, during func(*shaper.Group[string]) error
		then           shaper.Limits
	}{
		{"no others", nothing, nothing, usual},
		{"set before", set(own), nothing, own},
		{"set during", nothing, set(others), others},
		{"set before and during", set(own), set(others), others},
		{"reset during", set(own), reset, usual},
	} {
		for _, inUse := range []bool{true, false} {
			for _, end := range []string{"by itself", "reset", "Close"} {
				t.Run(fmt.Sprintf("%s, in use: %v, end: %s", c.name, inUse, end), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						g := made.GroupBy(t, func(string) (shaper.Limits, error) { return usual, nil })
						console := newConsole(t, inspect.OfGroup(g))
						require.NoError(t, c.before(g))
						require.True(t, !inUse || g.Allow("k"))
						console.post(t, "/api/limits", change)
						console.post(t, "/api/limits", change)
						require.NoError(t, c.during(g))
						switch end {
						case "by itself":
							time.Sleep(10 * time.Second)
							synctest.Wait()
						case "reset":
							console.post(t, "/api/reset", `{"source":"one","key":"k"}`)
						default:
							require.NoError(t, console.Close())
						}
						require.True(t, g.Allow("k"))
						for _, st := range g.All() {
							require.Equal(t, c.then, st.Limits, "%s", console.log)
						}
					})
				})
			}
		}
	}
}

// Limits with a cap can't be put back while a bucket without one is in use, or the other
// way round. A key that has no bucket when it is changed may have one when the change ends.
func TestAChangeOfAKeyThatIsNotInUseCanEndWhileItIs(t *testing.T) {
	for _, c := range []struct {
		usual, wanted, given string
		ofAll                int // the cap of all processes: then requests say when they end, whatever their limits
	}{
		{"1 per 1h burst 9 inflight 2", "1 per 2h burst 9", "1 per 2h burst 9 inflight 2", 0},
		{"1 per 1h burst 9 inflight 2", "1 per 2h burst 9 inflight 3", "1 per 2h burst 9 inflight 3", 0},
		{"1 per 1h burst 9", "1 per 2h burst 9 inflight 3", "", 0},
		{"1 per 1h burst 9", "1 per 2h burst 9", "1 per 2h burst 9", 0},
		{"1 per 1h burst 9 depth 1", "1 per 2h burst 9 depth 1 inflight 3", "1 per 2h burst 9 depth 1 inflight 3", 5},
	} {
		t.Run(fmt.Sprint(c.usual, " to ", c.wanted, ", of all ", c.ofAll), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var opts []shaper.GroupOption
				if c.ofAll > 0 {
					opts = append(opts, shaper.WithBuckets(buckettest.NewMemory(), strings.Clone, shared.Options{InFlight: c.ofAll}))
				}
				g := made.GroupBy(t, func(string) (shaper.Limits, error) { return made.Limits(t, c.usual), nil }, opts...)
				console := newConsole(t, inspect.OfGroup(g))
				body := fmt.Sprintf(`{"source":"one","key":"k","limits":%q,"for":"10s"}`, c.wanted)
				if c.given == "" {
					parameter, message := refused(t, http.StatusBadRequest, console.send("/api/limits", body))
					require.Equal(t, "limits", parameter)
					require.Contains(t, message, "Limits.InFlight is 0 and can't become 3")
					return
				}
				// A second change replaces the first, also while the key is not in use.
				console.post(t, "/api/limits", `{"source":"one","key":"k","limits":"1 per 9h burst 9","for":"1s"}`)
				console.post(t, "/api/limits", body)
				release, err := g.Acquire(t.Context(), "k", 1)
				require.NoError(t, err)
				defer release()
				require.Equal(t, made.Limits(t, c.given), limitsOf(g, "k"))
				time.Sleep(10 * time.Second)
				synctest.Wait()
				require.Equal(t, made.Limits(t, c.usual), limitsOf(g, "k"), "%q", whats(console.changes(t)))
			})
		})
	}
}

func TestNothingIsChangedWhileTheLimitsOfAKeyCannotBeHad(t *testing.T) {
	var panics atomic.Bool
	g := made.GroupBy(t, func(string) (shaper.Limits, error) {
		if panics.Load() {
			panic("no database at all")
		}
		return shaper.Limits{}, errors.New("no database")
	})
	c := newConsole(t, inspect.OfGroup(g))
	for _, says := range []string{"no database", "no database at all"} {
		_, message := refused(t, http.StatusConflict, c.send("/api/limits", `{"source":"one","key":"k","limits":"1/h","for":"10m"}`))
		require.Contains(t, message, says)
		panics.Store(!panics.Load())
	}
	require.False(t, g.Allow("k"))
	require.Empty(t, c.changes(t))
}

// The limits function of a Group reads a database, say. While it fails, the limits of a
// change can't be replaced, but they must not stay for good.
func TestAChangeThatCannotEndIsEndedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		usual := made.Limits(t, "1 per 1h burst 9")
		var broken atomic.Int32
		g := made.GroupBy(t, func(string) (shaper.Limits, error) {
			switch broken.Load() {
			case 1:
				return usual, errors.New("no database")
			case 2:
				panic("no database at all")
			}
			return usual, nil
		})
		c := newConsole(t, inspect.OfGroup(g))
		require.True(t, g.Allow("k"))
		c.post(t, "/api/limits", `{"source":"one","key":"k","limits":"1 per 2h burst 9","for":"10m"}`)
		broken.Store(1)
		time.Sleep(10*time.Minute + 7*time.Second)
		synctest.Wait()
		_, message := refused(t, http.StatusConflict, c.send("/api/reset", `{"source":"one","key":"k"}`))
		require.Contains(t, message, "no database")
		broken.Store(2)
		time.Sleep(5 * time.Second)
		broken.Store(0)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		for _, st := range g.All() {
			require.Equal(t, usual, st.Limits)
		}
		changes := whats(c.changes(t))
		require.Len(t, changes, 3, "%q", changes)
		require.Contains(t, changes[1], "no database; that is tried every 5s")
		require.Equal(t, "limits 1 per 2h burst 9 depth 0 have ended; back to 1/h burst 9 depth 0", changes[2])
	})
}

// A limits function that waits for its database, or a log that can't be written to, must
// keep neither other changes nor the end of the process waiting.
func TestAFunctionThatBlocksHoldsUpNoOtherChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		usual := made.Limits(t, "1 per 1h burst 9")
		var blocks atomic.Bool
		goOn := make(chan struct{})
		g := made.GroupBy(t, func(key string) (shaper.Limits, error) {
			if key != "other" && blocks.Load() {
				<-goOn
			}
			return usual, nil
		})
		c := newConsole(t, inspect.OfGroup(g))
		body := func(key string) string {
			return fmt.Sprintf(`{"source":"one","key":%q,"limits":"1 per 2h burst 9","for":"10m"}`, key)
		}
		require.True(t, g.Allow("k") && g.Allow("ending") && g.Allow("other"))
		c.post(t, "/api/limits", body("k"))
		c.post(t, "/api/limits", body("ending"))
		blocks.Store(true)
		codes := make(chan int, 3)
		for path, body := range map[string]string{
			"/api/reset":  `{"source":"one","key":"ending"}`,
			"/api/hold":   `{"source":"one","key":"new","for":"10m"}`,
			"/api/limits": body("unused"),
		} {
			go func() { codes <- c.send(path, body).Code }()
		}
		synctest.Wait()
		c.post(t, "/api/limits", body("other"))
		require.Equal(t, made.Limits(t, "1 per 2h burst 9"), limitsOf(g, "other"))
		c.post(t, "/api/hold", `{"source":"one","key":"ending","for":"10m"}`)

		start := time.Now()
		require.NoError(t, c.Close())
		require.Equal(t, 5*time.Second, time.Since(start))
		require.Equal(t, usual, limitsOf(g, "other"))
		require.Equal(t, made.Limits(t, "1 per 2h burst 9"), limitsOf(g, "k"), "its limits function blocks")
		require.Empty(t, codes)

		close(goOn)
		synctest.Wait()
		require.Len(t, codes, 3)
		require.NoError(t, c.Close())
		require.Equal(t, start.Add(5*time.Second), time.Now())
		require.True(t, g.Allow("unused"))
		for key, st := range g.All() {
			require.Equal(t, usual, st.Limits, "%s", key)
			require.Zero(t, st.HeldUntil, "%s", key)
		}
	})
}

func TestConcurrentChangesEndWithWhatWasInForce(t *testing.T) {
	s := made.Shaper(t, "1 per 1h")
	g := made.Group[int](t, "1 per 1000s burst 20")
	for key := range 3 {
		require.True(t, g.Allow(key))
	}
	c := newConsole(t, inspect.Of(s))
	c.Add("many", inspect.OfGroup(g))
	require.Equal(t, http.StatusOK, ask(c, "/api/buckets").Code) // Now it knows the keys.
	var calls, callers sync.WaitGroup
	calls.Add(30)
	for k := range 4 {
		callers.Go(func() {
			for n := range 60 {
				bucket := []string{`"source":"one"`, fmt.Sprintf(`"source":"many","key":"%d"`, k%3)}[n/3%2]
				change := []struct{ path, fields string }{
					{"/api/limits", fmt.Sprintf(`,"limits":"%d/min","for":"1h"`, n+1)},
					{"/api/hold", `,"for":"1h"`},
					{"/api/release", ""},
				}[n%3]
				code := c.send(change.path, "{"+bucket+change.fields+"}").Code
				if code != http.StatusOK && code != http.StatusServiceUnavailable {
					t.Errorf("%s is answered with status %d", change.path, code)
				}
				if k == 0 && n < 30 {
					calls.Done()
				}
			}
		})
	}
	calls.Wait()
	require.NoError(t, c.Close())
	callers.Wait()
	require.Equal(t, made.Limits(t, "1 per 1h"), s.Limits())
	require.Zero(t, s.Stats().HeldUntil)
	for key, st := range g.All() {
		require.Equal(t, shaper.Limits{Rate: 0.001, Burst: 20}, st.Limits, "key %d", key)
		require.Zero(t, st.HeldUntil, "key %d", key)
	}
}

// A key that shares its bucket, because there are too many, has no bucket of its own to look at. It
// can be held, with the others, and the hold is known and ends as any other.
func TestAKeyThatSharesItsBucketIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := made.Group[string](t, "1/s depth 9", shaper.WithMaxKeys(1))
		c := newConsole(t, inspect.OfGroup(g))
		require.True(t, g.Allow("own"))
		g.Limiter("own").Hold(24 * time.Hour) // so that it is not deleted
		leaves := func() time.Duration {
			wait, err := g.Limiter("shares").Forecast(1)
			require.NoError(t, err)
			return wait
		}
		require.Zero(t, leaves())
		hold := func(span time.Duration) change {
			return c.post(t, "/api/hold", fmt.Sprintf(`{"source":"one","key":"shares","for":"%v"}`, span))
		}
		done := hold(10 * time.Minute)
		require.Contains(t, done.What, "the keys that share its bucket")
		require.Equal(t, time.Now().Add(10*time.Minute), done.Until.Local())
		require.Equal(t, 10*time.Minute, leaves())
		require.Equal(t, time.Now().Add(10*time.Minute), hold(time.Minute).Until.Local(), "the longer one counts")
		inForce, _ := c.recorded(t, "")
		require.Len(t, inForce, 1)

		require.Equal(t, "released", c.post(t, "/api/release", `{"source":"one","key":"shares"}`).What)
		require.Zero(t, leaves())
		hold(10 * time.Minute)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		require.Zero(t, leaves())
		_, past := c.recorded(t, "")
		require.Equal(t, "ended", *past[0].Outcome)

		hold(10 * time.Minute)
		require.NoError(t, c.Close())
		require.Zero(t, leaves(), "a hold ends with the Inspector")
	})
}

// One limits function that blocks must hang neither other questions nor Remove and Close. Here the
// table of keys is full, so for a key without a bucket only its limits say which bucket it shares.
func TestALimitsFunctionThatBlocksHoldsUpNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		blocked := make(chan struct{})
		g := made.GroupBy(t, func(key string) (shaper.Limits, error) {
			if key == "blocks" {
				<-blocked
			}
			return shaper.Limits{Rate: 1, Depth: 9}, nil
		}, shaper.WithMaxKeys(1))
		for range 2 {
			go g.Wait(t.Context(), "own")
			go g.Wait(t.Context(), "shares")
		}
		synctest.Wait()
		c := newConsole(t, inspect.OfGroup(g))
		c.Add("two", inspect.OfGroup(g))
		var asking sync.WaitGroup
		asking.Go(func() {
			ask(c, "/api/buckets/one/blocks")
		})
		asking.Go(func() {
			c.send("/api/limits", `{"source":"one","key":"blocks","limits":"1/s","for":"1m"}`)
		})
		synctest.Wait()
		start := time.Now()
		for _, path := range []string{"line/one/own", "buckets/one/own", "line/one/blocks"} {
			ask(c, "/api/"+path)
		}
		c.Remove("two")
		require.Equal(t, start, time.Now())
		c.Remove("one")
		require.LessOrEqual(t, time.Since(start), 5*time.Second)
		require.NoError(t, c.Close())
		require.LessOrEqual(t, time.Since(start), 10*time.Second)
		close(blocked)
		asking.Wait()
	})
}

// refused requires that an answer is an error, and returns its parameter and message.
func refused(t *testing.T, status int, w *httptest.ResponseRecorder) (parameter, message string) {
	t.Helper()
	require.Equal(t, status, w.Code, "%s", w.Body)
	var answer struct {
		Error struct{ Parameter, Message string }
	}
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer))
	require.NotEmpty(t, answer.Error.Message)
	return answer.Error.Parameter, answer.Error.Message
}

const valid = `{"source":"one","limits":"5/s","for":"10m"}`

func header(name string, values ...string) func(*http.Request) {
	return func(r *http.Request) {
		r.Header.Del(name)
		for _, value := range values {
			r.Header.Add(name, value)
		}
	}
}

func TestNothingCanBeChangedWithoutAProperToken(t *testing.T) {
	for _, c := range []struct {
		opts []inspect.Option
		err  string // of New; "": none
		says string
	}{
		{nil, "", "made without WithControl"},
		{[]inspect.Option{inspect.WithHosts("shapers.internal")}, "", "made without WithControl"},
		{[]inspect.Option{inspect.WithControl("")}, "WithControl has no token", "WithControl has no token"},
		{[]inspect.Option{inspect.WithControl("  \n")}, "WithControl has no token", "WithControl has no token"},
		{[]inspect.Option{inspect.WithHosts("shapers.internal"), inspect.WithControl("")}, "WithHosts lets other machines call", "WithHosts lets other machines call"},
	} {
		s := made.Shaper(t, "50/s")
		i := console{log: &logText{}}
		i.Inspector = inspect.New(append(c.opts, inspect.WithLogger(slog.New(slog.NewTextHandler(i.log, nil))))...)
		i.Add("one", inspect.Of(s))
		if c.err == "" {
			require.NoError(t, i.Err())
		} else {
			require.ErrorContains(t, i.Err(), c.err)
			require.Contains(t, i.log.String(), c.err)
		}
		for _, path := range []string{"/api/limits", "/api/reset", "/api/hold", "/api/release"} {
			_, message := refused(t, http.StatusForbidden, i.send(path, valid, header("Authorization", "Bearer fifteen letters")))
			require.Contains(t, message, c.says)
		}
		require.Equal(t, http.StatusOK, ask(i, "/api/buckets").Code, "the rest is served")
		require.Equal(t, made.Limits(t, "50/s"), s.Limits())
		require.NoError(t, i.Close())
	}
}

func TestARequestThatMayNotChangeAnythingIsRefused(t *testing.T) {
	s := made.Shaper(t, "50/s")
	c := newConsole(t, inspect.Of(s))
	for name, r := range map[string]struct {
		status int
		edit   func(*http.Request)
	}{
		"no token":               {http.StatusUnauthorized, header("Authorization")},
		"an empty token":         {http.StatusUnauthorized, header("Authorization", "Bearer ")},
		"another token":          {http.StatusUnauthorized, header("Authorization", "Bearer "+token+"r")},
		"a part of the token":    {http.StatusUnauthorized, header("Authorization", "Bearer "+token[:len(token)-1])},
		"another scheme":         {http.StatusUnauthorized, header("Authorization", "Basic "+token)},
		"two tokens":             {http.StatusUnauthorized, header("Authorization", "Bearer "+token, "Bearer "+token)},
		"a page of another site": {http.StatusForbidden, header("Sec-Fetch-Site", "cross-site")},
		"a page of the same site, but another origin": {http.StatusForbidden, header("Sec-Fetch-Site", "same-site")},
		"an old browser's page of another origin":     {http.StatusForbidden, header("Origin", "http://localhost:9999")},
		"a name that was made to point here":          {http.StatusMisdirectedRequest, func(r *http.Request) { r.Host = "evil.example" }},
		"another machine":                             {http.StatusForbidden, func(r *http.Request) { r.RemoteAddr = "192.0.2.7:4000" }},
		"a form":                                      {http.StatusUnsupportedMediaType, header("Content-Type", "application/x-www-form-urlencoded")},
		"plain text":                                  {http.StatusUnsupportedMediaType, header("Content-Type", "text/plain")},
		"no type":                                     {http.StatusUnsupportedMediaType, header("Content-Type")},
		"a token in the query":                        {http.StatusBadRequest, func(r *http.Request) { r.URL.RawQuery = "token=x" }},
	} {
		w := c.send("/api/limits", valid, r.edit)
		_, message := refused(t, r.status, w)
		require.NotContains(t, w.Body.String(), token, name)
		require.Equal(t, r.status == http.StatusUnauthorized, strings.HasPrefix(w.Header().Get("WWW-Authenticate"), "Bearer "), "%s: %s", name, message)
	}
	w := ask(c, "/api/limits")
	refused(t, http.StatusMethodNotAllowed, w)
	require.Equal(t, "POST", w.Header().Get("Allow"))
	require.Equal(t, made.Limits(t, "50/s"), s.Limits())
	require.Empty(t, c.changes(t))
	require.NotContains(t, c.log.String(), token)
	require.Equal(t, 2, strings.Count(c.log.String(), "a wrong token was sent"))

	// The page itself, and curl with an odd way of writing, may.
	for _, edits := range [][]func(*http.Request){
		{header("Sec-Fetch-Site", "same-origin"), header("Origin", "http://localhost:8080")},
		{header("Authorization", "bearer   "+token), header("Content-Type", "application/json; charset=utf-8")},
	} {
		require.Equal(t, http.StatusOK, c.send("/api/limits", valid, edits...).Code)
	}
}

func TestAWrongBodyIsRefusedByTheNameOfItsField(t *testing.T) {
	s := made.Shaper(t, "50/s")
	g := made.Group[string](t, "1/s")
	c := newConsole(t, inspect.Of(s))
	c.Add("many", inspect.OfGroup(g))
	defer c.Close()
	for _, r := range []struct {
		status              int
		path, body          string
		parameter, contains string
	}{
		{400, "limits", ``, "body", "not a JSON object"},
		{400, "limits", `null`, "body", "not a JSON object"},
		{400, "limits", `[` + valid + `]`, "body", "not a JSON object"},
		{400, "limits", `"limits"`, "body", "not a JSON object"},
		{400, "limits", `{"source":"one"`, "body", "not JSON"},
		{400, "limits", `{"source":"one",}`, "body", "not JSON"},
		{400, "limits", `{"source" "one"}`, "body", "not JSON"},
		{400, "limits", valid + valid, "body", "something follows"},
		{400, "limits", valid + `x`, "body", "something follows"},
		{400, "limits", "{\"source\":\"\xff\"}", "body", "not UTF-8"},
		{400, "limits", strings.Repeat(`{"source":`, 5000), "source", "must be a string"},
		{400, "limits", `{"source":["one"]}`, "source", "must be a string"},
		{400, "limits", `{"source":null}`, "source", "must be a string"},
		{400, "limits", `{"source":"one","for":600,"limits":"5/s"}`, "for", "must be a string"},
		{400, "limits", `{"source":"one","source":"two"}`, "source", "twice"},
		{400, "limits", `{"Source":"one"}`, "Source", "not a field"},
		{400, "limits", `{"__proto__":"one"}`, "__proto__", "not a field"},
		{404, "limits", `{"source":"two","limits":"5/s","for":"10m"}`, "source", "not the name of a source"},
		{404, "limits", `{"source":"one","key":"k","limits":"5/s","for":"10m"}`, "key", "no bucket"},
		{400, "limits", `{"source":"many","limits":"5/s","for":"10m"}`, "key", "missing"},
		{400, "limits", `{"source":"many","key":"k","id":"k","limits":"5/s","for":"10m"}`, "id", "beside key"},
		{400, "limits", `{"source":"many","id":"%","limits":"5/s","for":"10m"}`, "id", "invalid URL escape"},
		{400, "limits", `{"source":"one","limits":"5/s depht 3","for":"10m"}`, "limits", "column 5"},
		{400, "limits", `{"source":"one","limits":"0/s","for":"10m"}`, "limits", "must be above 0"},
		{400, "limits", `{"source":"one","limits":"5/s inflight 3","for":"10m"}`, "limits", "Limits.InFlight"},
		{400, "limits", `{"source":"one","limits":"5/s","for":"999ms"}`, "for", "from 1s to 24h"},
		{400, "limits", `{"source":"one","limits":"5/s","for":"24h0m1s"}`, "for", "from 1s to 24h"},
		{400, "limits", `{"source":"one","limits":"5/s","for":"-10m"}`, "for", "from 1s to 24h"},
		{400, "hold", `{"source":"one","for":"for ever"}`, "for", "from 1s to 24h"},
		{400, "hold", fmt.Sprintf(`{"source":"one","for":"10m","who":"%s"}`, strings.Repeat("x", 101)), "who", "at most 100 bytes"},
		{413, "limits", `{"source":"` + strings.Repeat("x", 64<<10) + `"}`, "", "larger than 65536 bytes"},
		{413, "limits", strings.Repeat("[", 1<<20), "", "larger than 65536 bytes"},
	} {
		parameter, message := refused(t, r.status, c.send("/api/"+r.path, r.body))
		require.Equal(t, r.parameter, parameter, "%.100s: %s", r.body, message)
		require.Contains(t, message, r.contains, "%.100s", r.body)
	}
	require.Equal(t, made.Limits(t, "50/s"), s.Limits())
	require.Empty(t, c.changes(t))
}

func TestTheLogWarnsOfAShortToken(t *testing.T) {
	for token, warns := range map[string]bool{"fifteen letters": true, "0123456789abcdef": false} {
		var log logText
		i := inspect.New(inspect.WithControl(token), inspect.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		require.NoError(t, i.Err())
		require.Equal(t, warns, strings.Contains(log.String(), "is short"), "%s", log.String())
		require.NotContains(t, log.String(), token)
		require.NoError(t, i.Close())
	}
}

func TestTokensCannotBeTriedQuickly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newConsole(t, inspect.Of(made.Shaper(t, "50/s")), inspect.WithHosts("shapers.internal"))
		from := func(address string) func(*http.Request) {
			return func(r *http.Request) { r.RemoteAddr = address }
		}
		wrong := header("Authorization", "Bearer 0123456789abcdef")
		try := func(address string, edits ...func(*http.Request)) int {
			return c.send("/api/limits", valid, append(edits, from(address))...).Code
		}
		for range 50 {
			require.Equal(t, http.StatusOK, try("192.0.2.1:4000"), "the right token spends nothing")
		}
		for range 20 {
			require.Equal(t, http.StatusUnauthorized, try("192.0.2.1:4000", wrong))
		}
		// From now on nothing that this address sends tells it whether a token is right.
		w := c.send("/api/limits", valid, wrong, from("192.0.2.1:4001"))
		refused(t, http.StatusTooManyRequests, w)
		require.Equal(t, "1", w.Header().Get("Retry-After"))
		require.Equal(t, http.StatusTooManyRequests, try("192.0.2.1:4001"))
		require.Equal(t, http.StatusOK, try("192.0.2.2:4000"), "others may still change things")
		time.Sleep(200*time.Millisecond - 1)
		require.Equal(t, http.StatusTooManyRequests, try("192.0.2.1:4001", wrong))
		time.Sleep(time.Nanosecond)
		require.Equal(t, http.StatusUnauthorized, try("192.0.2.1:4001", wrong))
		require.Equal(t, http.StatusTooManyRequests, try("192.0.2.1:4001", wrong))

		// A network of IPv6 is one address.
		for n := range 20 {
			require.Equal(t, http.StatusUnauthorized, try(fmt.Sprintf("[2001:db8::%d]:4000", n), wrong))
		}
		require.Equal(t, http.StatusTooManyRequests, try("[2001:db8::9999]:4000", wrong))
		require.Equal(t, http.StatusUnauthorized, try("[2001:db8:0:1::1]:4000", wrong))
	})
}

// Each request that docs/inspect.md shows does what it says.
func TestTheDocumentedChangesAreAccepted(t *testing.T) {
	guide, err := os.ReadFile("../docs/inspect.md")
	require.NoError(t, err)
	shown := regexp.MustCompile(`--json '(.*)' http://127\.0\.0\.1:6060(/api/v1/\w+)\n`).FindAllStringSubmatch(string(guide), -1)
	require.Len(t, shown, 5)
	g := made.Group[string](t, "1/s")
	c := newConsole(t, inspect.Of(made.Shaper(t, "50/s depth 100")))
	c.Add("upstream", inspect.Of(made.Shaper(t, "50/s depth 100")))
	c.Add("clients", inspect.OfGroup(g))
	defer c.Close()
	for _, m := range shown {
		c.post(t, m[2], m[1])
	}
	require.Contains(t, string(guide), strings.Join(whats(c.changes(t))[:1], ""))
}

// The document says which fields a body has, and which of them it must have.
func TestTheDocumentedFieldsAreThoseThatAreTaken(t *testing.T) {
	c := newConsole(t, inspect.Of(made.Shaper(t, "50/s")))
	paths := 0
	for path, operations := range document().Paths {
		post, ok := operations["post"]
		if !ok {
			continue
		}
		paths++
		of := post.RequestBody.Content["application/json"].Schema
		for _, name := range []string{"source", "key", "id", "limits", "for", "who", "until"} {
			parameter, message := refused(t, http.StatusBadRequest, c.send(path, fmt.Sprintf(`{%q:1}`, name)))
			require.Equal(t, name, parameter)
			_, documented := of.Properties[name]
			require.Contains(t, message, map[bool]string{true: "must be a string", false: "is not a field here"}[documented], "%s of %s", name, path)
		}
		for _, missing := range of.Required {
			fields := map[string]string{}
			for _, name := range of.Required {
				if name != missing {
					fields[name] = "x"
				}
			}
			body, err := json.Marshal(fields)
			require.NoError(t, err)
			parameter, _ := refused(t, http.StatusBadRequest, c.send(path, string(body)))
			require.Equal(t, missing, parameter, path)
		}
	}
	require.Equal(t, 4, paths)
}

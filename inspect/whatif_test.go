package inspect_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/inspect"
	"example.com/leakybucket/internal/made"
	"example.com/leakybucket/shaper"
)

type outcome = inspect.Outcome

// whatIf asks how the arrivals at the bucket of a key would have fared under limits.
func (c console) whatIf(t *testing.T, key, limits string) (answer inspect.WhatIf) {
	t.Helper()
	q := url.Values{"source": {"one"}, "limits": {limits}, "key": {key}}
	told(t, c, "/api/what-if?"+q.Encode(), &answer)
	for _, o := range []outcome{answer.Now, answer.Then} {
		require.Equal(t, answer.Arrivals, o.Departed+o.Refused+o.Abandoned+o.Waiting, "each arrival counts once: %+v", o)
		require.Equal(t, o.Refused, o.QueueFull+o.TooLate+o.TooCostly+o.Closed+o.Unavailable)
	}
	return answer
}

func TestWhatIfTellsABurstUnderOtherLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := made.Shaper(t, "50/s depth 4")
		c := newConsole(t, inspect.Of(s))
		start := time.Now().UTC()
		first := c.whatIf(t, "", "25/s depth 9")
		require.Equal(t, inspect.WhatIf{
			At: start, Limits: "25/s depth 9", InWords: first.InWords, Since: start, Notes: []string{},
		}, first, "the recording begins with the first call")
		require.NotEmpty(t, first.InWords)

		for range 8 {
			go s.Wait(t.Context())
		}
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		got := c.whatIf(t, "", "25/s depth 9")
		require.Equal(t, 8, got.Arrivals)
		require.Equal(t, start, got.Since)
		require.Equal(t, 0.2, got.SpanS)
		require.False(t, got.Complete, "it has not recorded for a minute")
		require.Equal(t, outcome{Departed: 5, Refused: 3, QueueFull: 3, WaitP50: new(0.04), WaitP95: new(0.08), WaitMax: new(0.08)}, got.Now)
		require.Equal(t, outcome{Departed: 6, Waiting: 2, WaitP50: new(0.08), WaitP95: new(0.2), WaitMax: new(0.2)}, got.Then)

		time.Sleep(time.Minute - 200*time.Millisecond - 1)
		require.False(t, c.whatIf(t, "", "25/s depth 9").Complete)
		time.Sleep(time.Nanosecond)
		got = c.whatIf(t, "", "25/s depth 9")
		require.True(t, got.Complete)
		require.Equal(t, 60.0, got.SpanS)
		require.Equal(t, 8, got.Arrivals)
		require.Equal(t, 8, got.Then.Departed)
		time.Sleep(time.Nanosecond)
		require.Zero(t, c.whatIf(t, "", "25/s depth 9").Arrivals, "they came more than a minute ago")
	})
}

// Else those who ask and go, again and again, would keep the replays of others waiting.
func TestAReplayIsNotWaitedForByACallerThatHasGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newConsole(t, inspect.Of(made.Shaper(t, "50/s")))
		end := inspect.BeginReplay(c.Inspector)
		ctx, cancel := context.WithCancel(t.Context())
		var gone, stays sync.WaitGroup
		gone.Go(func() {
			ask(c, "/api/what-if?source=one&limits=5/s", func(r *http.Request) { *r = *r.WithContext(ctx) })
		})
		stays.Go(func() {
			w := ask(c, "/api/what-if?source=one&limits=5/s")
			if w.Code != http.StatusOK {
				t.Errorf("the caller that stays is answered with status %d", w.Code)
			}
		})
		synctest.Wait()
		cancel()
		gone.Wait()
		end()
		stays.Wait()
	})
}

func TestARecordingEndsWhenNobodyAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := made.Shaper(t, "50/s")
		c := newConsole(t, inspect.Of(s))
		start := time.Now().UTC()
		c.whatIf(t, "", "1/s")
		time.Sleep(4 * time.Minute)
		require.True(t, c.whatIf(t, "", "1/s").Complete)
		time.Sleep(5*time.Minute - 1)
		require.Equal(t, 60.0, c.whatIf(t, "", "1/s").SpanS, "it was asked for less than five minutes ago")
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		again := c.whatIf(t, "", "1/s")
		require.Equal(t, start.Add(14*time.Minute-1), again.Since, "it begins anew")
	})
}

// Whoever may read can ask about any keys, and must not take what-if away from the others.
func TestTheRecordingOfLeastInterestGivesItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := made.Group[string](t, "1/s")
		c := newConsole(t, inspect.OfGroup(g))
		for k := range 16 {
			c.whatIf(t, fmt.Sprint("key/", k), "1/s")
			time.Sleep(time.Second)
		}
		c.whatIf(t, "key/0", "1/s") // An old one that is asked for again stays.
		for k := range 15 {
			time.Sleep(time.Second)
			c.whatIf(t, fmt.Sprint("another/", k), "1/s")
		}
		require.True(t, g.Allow("key/0"))
		require.True(t, g.Allow("key/1"))
		require.Equal(t, 1, c.whatIf(t, "key/0", "1/s").Arrivals)
		require.Zero(t, c.whatIf(t, "key/1", "1/s").Arrivals, "it begins anew")
		require.True(t, g.Allow("another/14"))
		require.Equal(t, 1, c.whatIf(t, "another/14", "1/s").Arrivals)
		time.Sleep(5*time.Minute - 1)
		require.True(t, c.whatIf(t, "key/0", "1/s").Complete)
		time.Sleep(time.Minute)
		require.False(t, c.whatIf(t, "another/14", "1/s").Complete, "it has ended, as nobody asked for it")
		require.NoError(t, c.Close())
		require.Equal(t, http.StatusServiceUnavailable, ask(c, "/api/what-if?source=one&key=k&limits=1/s").Code)
	})
}

func TestWhatIfSaysWhatItDoesNotKnow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := made.Shaper(t, "1000/s depth 5 inflight 2")
		c := newConsole(t, inspect.Of(s))
		c.whatIf(t, "", "1/s")
		s.Hold(time.Hour)
		notes := c.whatIf(t, "", "1/s").Notes
		require.Len(t, notes, 2)
		require.Contains(t, notes[0], "no cap on requests in flight")
		require.Contains(t, notes[1], "the line is held")
		require.NoError(t, c.Close())
	})
	synctest.Test(t, func(t *testing.T) {
		s := made.Shaper(t, "1/s", shaper.WithDryRun())
		c := newConsole(t, inspect.Of(s))
		c.whatIf(t, "", "1/s")
		for range 3 {
			require.NoError(t, s.Wait(t.Context()))
		}
		got := c.whatIf(t, "", "1/s depth 1")
		require.Equal(t, []string{"the bucket is in dry run: now counts as if its limits were enforced"}, got.Notes)
		require.Equal(t, 2, got.Now.QueueFull)
		require.Equal(t, 1, got.Then.QueueFull)
	})
	synctest.Test(t, func(t *testing.T) {
		s := made.Shaper(t, "1000/s depth 20000")
		for range 12_001 {
			go s.Wait(t.Context())
		}
		synctest.Wait()
		c := newConsole(t, inspect.Of(s))
		c.whatIf(t, "", "1000/s depth 20000")
		go s.Wait(t.Context())
		time.Sleep(11 * time.Second)
		got := c.whatIf(t, "", "1000/s depth 20000")
		require.Equal(t, 1, got.Now.Waiting)
		require.Equal(t, 1, got.Then.Departed, "2000 are not known that are in line before it")
		require.Equal(t, []string{"only the first 10000 requests in line when the recording began are known"}, got.Notes)
	})
	synctest.Test(t, func(t *testing.T) {
		g := made.GroupBy(t, func(string) (shaper.Limits, error) { return shaper.Limits{}, errors.New("no database") })
		c := newConsole(t, inspect.OfGroup(g))
		require.Equal(t, http.StatusOK, ask(c, "/api/what-if?source=one&id=k&limits=1/s").Code)
		require.False(t, g.Allow("k"))
		require.Error(t, g.Wait(t.Context(), "k"))
		got := c.whatIf(t, "k", "1/s")
		require.Zero(t, got.Arrivals)
		require.Equal(t, []string{"left out are calls whose limits could not be had: 2"}, got.Notes)
	})
}

func TestMoreArrivalsThanAreKeptAreNotComplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := made.Shaper(t, "1/s")
		c := newConsole(t, inspect.Of(s))
		require.True(t, s.Allow())
		c.whatIf(t, "", "1/s")
		time.Sleep(2 * time.Minute)
		for range 6000 {
			s.Allow()
		}
		require.True(t, c.whatIf(t, "", "1/s").Complete)
		time.Sleep(10 * time.Second)
		since := time.Now().UTC()
		for range 6000 {
			time.Sleep(time.Millisecond)
			s.Allow()
		}
		got := c.whatIf(t, "", "2/s")
		require.False(t, got.Complete)
		require.Equal(t, 10_000, got.Arrivals)
		require.Equal(t, 1+12, got.Then.Departed, "the first, and those of the last six seconds; the level is not that of two minutes before")
		require.Equal(t, since.Add(-10*time.Second), got.Since)
		require.Equal(t, []string{"only the latest 10000 arrivals are kept; they are replayed from an empty bucket on"}, got.Notes)
	})
}

func TestCallsOfAClosedBucketAreRefusedUnderAnyLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := made.Shaper(t, "1/s depth 9")
		c := newConsole(t, inspect.Of(s))
		c.whatIf(t, "", "1/s")
		for range 4 {
			go s.Wait(t.Context())
		}
		time.Sleep(1500 * time.Millisecond)
		require.NoError(t, s.Close())
		require.False(t, s.Allow())
		synctest.Wait()
		got := c.whatIf(t, "", "2/s depth 9")
		require.Equal(t, outcome{Departed: 2, Refused: 3, Closed: 3, WaitP50: new(0.0), WaitP95: new(1.0), WaitMax: new(1.0)}, got.Now)
		require.Equal(t, outcome{Departed: 4, Refused: 1, Closed: 1, WaitP50: new(0.5), WaitP95: new(1.5), WaitMax: new(1.5)}, got.Then)
	})
}

// One limits function that blocks must hang neither other questions nor Remove and Close. Here the
// table of keys is full, so for a key without a bucket only its limits say which bucket it shares.
func TestALimitsFunctionThatBlocksHoldsUpNoWhatIf(t *testing.T) {
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
			ask(c, "/api/what-if?source=one&key=blocks&limits=1/s")
		})
		asking.Go(func() {
			c.send("/api/limits", `{"source":"one","key":"blocks","limits":"1/s","for":"1m"}`)
		})
		synctest.Wait()
		start := time.Now()
		c.whatIf(t, "own", "1/s")
		ask(c, "/api/line/one/blocks")
		ask(c, "/api/buckets/one/blocks")
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

// A load is what comes to a bucket.
type load []struct {
	after    time.Duration // the one before
	cost     int
	allow    bool
	deadline time.Duration // after it has come; 0: none
	patience time.Duration // its caller gives up; 0: it does not
}

func randomLoad(chance *rand.Rand, impatient bool) (l load) {
	l = make(load, 150)
	for i := range l {
		r := &l[i]
		r.cost = 1
		if chance.IntN(3) == 0 {
			r.after = time.Duration(chance.Int64N(int64(80 * time.Millisecond)))
		}
		switch chance.IntN(8) {
		case 0:
			r.cost += chance.IntN(6)
		case 1:
			r.allow = true
		case 2:
			r.deadline = time.Duration(1 + chance.Int64N(int64(time.Second)))
		case 3, 4:
			if impatient {
				r.patience = time.Duration(1 + chance.Int64N(int64(time.Second)))
			}
		}
	}
	return l
}

// play lets the load come to a bucket. It returns while some of it may wait.
func (l load) play(ctx context.Context, s *shaper.Shaper, calls *sync.WaitGroup) {
	for _, r := range l {
		time.Sleep(r.after)
		if r.allow {
			s.AllowN(r.cost)
			continue
		}
		ctx, cancel := context.WithCancel(ctx)
		if r.deadline > 0 {
			ctx, cancel = context.WithTimeout(ctx, r.deadline)
		}
		if r.patience > 0 {
			time.AfterFunc(r.patience, cancel)
		}
		calls.Go(func() {
			defer cancel()
			_ = s.WaitN(ctx, r.cost)
		})
		synctest.Wait()
	}
}

// playAndAsk plays a load in a bubble, and asks how it would have fared under limits. If seed is
// above 0, seed requests wait before anybody asks.
func playAndAsk(t *testing.T, under, limits string, l load, seed int) (answer inspect.WhatIf) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := made.Shaper(t, under)
		c := newConsole(t, inspect.Of(s))
		var calls sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		defer calls.Wait()
		defer cancel()
		for range seed {
			calls.Go(func() { _ = s.Wait(ctx) })
		}
		time.Sleep(time.Duration(seed) * time.Millisecond)
		synctest.Wait()
		c.whatIf(t, "", limits)
		l.play(ctx, s, &calls)
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		answer = c.whatIf(t, "", limits)
		require.Equal(t, len(l), answer.Arrivals)
	})
	return answer
}

// A replay under the limits that are in force must tell the real events, also when the recording
// began while requests waited.
func TestTheReplayOfTheSameLimitsIsWhatHasHappened(t *testing.T) {
	chance := rand.New(rand.NewPCG(14, 4))
	var met outcome
	for n := range 60 {
		limits := []string{"30/s depth 5", "7/s burst 3 depth 20", "20/s burst 4", "3/s depth 40 wait 2s", "100 per 3s depth 200"}[n%5]
		got := playAndAsk(t, limits, limits, randomLoad(chance, true), n%4*7)
		require.Equal(t, got.Now, got.Then, "%s, load %d", limits, n)
		met.Departed += got.Now.Departed
		met.QueueFull += got.Now.QueueFull
		met.TooLate += got.Now.TooLate
		met.TooCostly += got.Now.TooCostly
		met.Abandoned += got.Now.Abandoned
		met.Waiting += got.Now.Waiting
	}
	for _, n := range []int{met.Departed, met.QueueFull, met.TooLate, met.TooCostly, met.Abandoned, met.Waiting} {
		require.Greater(t, n, 50, "%+v", met)
	}
}

// The replay knows what requests have reserved and not what became of it, so under the very same limits it tells
// of refusals that nobody has met.
func TestWhatIfSaysThatItDoesNotSettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limits = "10/s burst 30 depth 5"
		g := made.Group[string](t, limits)
		c := newConsole(t, inspect.OfGroup(g))
		require.True(t, g.Allow("a"))
		require.Empty(t, c.whatIf(t, "a", limits).Notes)
		for range 20 {
			settle, err := g.Reserve(t.Context(), "a", 20)
			require.NoError(t, err)
			time.Sleep(50 * time.Millisecond)
			settle(2)
		}
		got := c.whatIf(t, "a", limits)
		require.Len(t, got.Notes, 1)
		require.Contains(t, got.Notes[0], "the replay keeps their estimates")
		require.Equal(t, 20, got.Now.Departed)
		require.Less(t, got.Then.Departed, 20)

		time.Sleep(10 * time.Second)
		require.Equal(t, http.StatusNotFound, ask(c, "/api/buckets/one/a").Code)
		require.Len(t, c.whatIf(t, "a", limits).Notes, 1, "its bucket has gone, and its arrivals are still told")
	})
}

// A block may be over when somebody asks, and the refusals that it has caused still count.
func TestWhatIfSaysThatItBlocksNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := made.Shaper(t, "10/s", shaper.WithBlock(5*time.Second))
		c := newConsole(t, inspect.Of(s))
		require.Empty(t, c.whatIf(t, "", "10/s").Notes)
		for range 4 {
			_ = s.Wait(t.Context())
			s.Allow()
			time.Sleep(time.Second)
		}
		time.Sleep(20 * time.Second)
		require.Zero(t, s.Stats().BlockedUntil)
		got := c.whatIf(t, "", "10/s")
		require.Less(t, got.Now.Departed, got.Then.Departed)
		require.Len(t, got.Notes, 1)
		require.Contains(t, got.Notes[0], "the replay blocks nobody")
	})
}

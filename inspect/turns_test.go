package inspect_test

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"strings"
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

type turns = inspect.Turns

// textOf returns the rows in short, with the instants at which their next requests leave.
func textOf(t turns, since time.Time) (rows []string) {
	for _, r := range t.Rows {
		text := fmt.Sprintf("%s: %d", r.Key, r.Waiting)
		if r.Weight != nil {
			text += fmt.Sprintf(" by %d, cost %d, oldest %vs", *r.Weight, r.Cost, *r.OldestWaitS)
		}
		if r.Leaves != nil {
			text += fmt.Sprintf(", at %v", r.Leaves.Sub(since))
		}
		rows = append(rows, text+fmt.Sprintf(", left %v", r.Departed))
	}
	return rows
}

// turnsOf asks for the keys of a source.
func turnsOf(t *testing.T, i http.Handler, target string) (answer turns) {
	t.Helper()
	told(t, i, target, &answer)
	return answer
}

// comes lets n requests of a key come at once.
func comes(s *shaper.Shaper, key string, n int) {
	for range n {
		go func() { _ = s.For(key).Wait(context.Background()) }()
	}
	synctest.Wait()
}

func weights(key string) int { return len(key) }

func TestAStreamTellsWhoseTurnItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := made.Shaper(t, "4/s depth 100", shaper.WithFairQueue(weights))
		i := show(t, "one", inspect.Of(s))
		began := time.Now()
		time.Sleep(100 * time.Millisecond)
		comes(s, "b", 10)
		comes(s, "aa", 3)
		time.Sleep(800 * time.Millisecond)

		r := listen(t, i, "/api/v1/events?source=one")
		var detail struct {
			Turns turns
		}
		r.until("detail", &detail)
		require.Equal(t, []string{"b: 8 by 1, cost 8, oldest 0.8s, at 1.35s, left []", "aa: 1 by 2, cost 1, oldest 0.8s, at 1.1s, left []"}, textOf(detail.Turns, began))
		e := r.next()
		for e.name != "detail" {
			e = r.next()
		}
		checkEvent(t, e)
		for range 2 {
			r.until("detail", &detail)
		}
		require.Equal(t, []string{"b: 1 by 1, cost 1, oldest 2.9s, at 3.1s, left [0 3 4]", "aa: 0, left [0 1 0]"}, textOf(detail.Turns, began), "the first second began before anybody looked")
		require.Equal(t, 1, detail.Turns.Keys)
		require.Equal(t, 1, detail.Turns.Waiting)
		require.Equal(t, 7, detail.Turns.Rows[0].DepartedSum)

		time.Sleep(1100 * time.Millisecond) // Samples are taken at whole seconds.
		require.NoError(t, s.For("ccc").WaitN(t.Context(), 2), "it finds no line")
		time.Sleep(time.Second)
		answer := turnsOf(t, i, "/api/v1/keys/one/?max=2")
		require.Equal(t, []string{"b: 0, left [0 3 4 1 0]", "aa: 0, left [0 1 0 0 0]"}, textOf(answer, began))
		require.Equal(t, 1, answer.Others.DepartedSum)
		require.Equal(t, 2, answer.Others.DepartedCost)
		require.Equal(t, []int{0, 0, 0, 0, 1}, answer.Others.Departed)

		r.cancel()
		<-r.ended
		time.Sleep(61 * time.Second)
		require.Empty(t, turnsOf(t, i, "/api/v1/keys/one/").Rows, "nothing is noted while nobody looks")
	})
}

// Keys come from clients, who may make them up. What a look takes is bounded all the same, and whoever
// fills the line is still seen.
func TestMadeUpKeysDoNotHideWhoFillsTheLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := made.Shaper(t, "100/s depth 20000", shaper.WithFairQueue(func(key string) int { return map[string]int{"heavy": 1000}[key] }))
		i := show(t, "one", inspect.Of(s))
		time.Sleep(5 * time.Millisecond) // Nothing leaves at the instants at which samples are taken.
		comes(s, "", 1)
		for k := range 3000 {
			comes(s, fmt.Sprintf("%d%s\xff", k, strings.Repeat("x", 1000)), 1)
		}
		comes(s, "burst", 90)
		comes(s, "heavy", 80)

		answer := turnsOf(t, i, "/api/v1/keys/one/")
		require.Equal(t, 3002, answer.Keys)
		require.Equal(t, 3002-24, answer.Others.Keys)
		require.Len(t, answer.Rows, 24)
		require.Equal(t, "burst", answer.Rows[0].Key)
		require.Equal(t, 90, answer.Rows[0].Waiting)
		require.Equal(t, "heavy", answer.Rows[1].Key, "though it is through long before the others")
		require.Nil(t, answer.Rows[0].Leaves, "nobody walks along the line to it")
		require.Equal(t, 3170, countOf(answer.Rows, 0)+answer.Others.Waiting)
		for _, r := range answer.Rows[2:] {
			require.True(t, r.Cut)
			require.Len(t, r.Key, 256)
		}
		listed := ask(i, "/api/v1/keys/one/?max=64")
		require.Less(t, listed.Body.Len(), 64*1024)
		require.Less(t, ask(i, "/api/v1/line/one/?max=1").Body.Len(), 1000)
		require.Equal(t, http.StatusBadRequest, ask(i, "/api/v1/keys/one/?max=65").Code)

		time.Sleep(2500 * time.Millisecond) // 80 requests of heavy have left, and 119 others, until the latest sample.
		answer = turnsOf(t, i, "/api/v1/keys/one/")
		mover := answer.Rows[16]
		require.Equal(t, "heavy", mover.Key, "the last third is of keys of which most have left")
		require.Equal(t, 0, mover.Waiting)
		require.Equal(t, 80, mover.DepartedSum)
		require.Equal(t, 199, countOf(answer.Rows, 1)+answer.Others.DepartedSum)
	})
}

// countOf returns how many requests of rows wait, or have left.
func countOf(rows []inspect.Turn, left int) (n int) {
	for _, r := range rows {
		n += []int{r.Waiting, r.DepartedSum}[left]
	}
	return n
}

func TestOnlyAShaperWithFairQueueHasTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := made.Shaper(t, "4/s depth 2")
		i := show(t, "one", inspect.Of(s))
		i.Add("many", inspect.OfGroup(made.Group[string](t, "1/s")))
		burst(s, 5)
		require.Equal(t, http.StatusNotFound, ask(i, "/api/v1/keys/one/").Code)
		require.Equal(t, http.StatusNotFound, ask(i, "/api/v1/keys/many/x").Code)
		require.NotContains(t, ask(i, "/api/v1/buckets/one/").Body.String(), `"key":null`)
		var line struct{ Line []map[string]any }
		told(t, i, "/api/v1/line/one/", &line)
		require.Len(t, line.Line, 2)
		require.NotContains(t, line.Line[0], "key")
		var detail map[string]any
		listen(t, i, "/api/v1/events?source=one").until("detail", &detail)
		require.NotContains(t, detail, "turns")
	})
}

// Whose requests wait is told whatever else the Shaper does: a cap on those in flight, estimates that
// are settled later, a level that other processes share.
func TestTurnsGoWithAllElse(t *testing.T) {
	for _, test := range []struct {
		name, limits string
		bucket       shared.Bucket // nil: its own
		enter        func(ctx context.Context, s *shaper.Shaper, key string) (end func(), err error)
	}{
		{
			"a cap on requests in flight", "100/s depth 9 inflight 1", nil,
			func(ctx context.Context, s *shaper.Shaper, key string) (func(), error) {
				return s.For(key).Acquire(ctx, 1)
			},
		},
		{
			"reservations", "1/s depth 9", nil,
			func(ctx context.Context, s *shaper.Shaper, key string) (func(), error) {
				settle, err := s.For(key).Reserve(ctx, 3)
				return func() { settle(1) }, err
			},
		},
		{
			"a shared bucket", "1/s depth 9", buckettest.NewMemory(),
			func(ctx context.Context, s *shaper.Shaper, key string) (func(), error) {
				return func() {}, s.For(key).Wait(ctx)
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				opts := []shaper.Option{shaper.WithFairQueue(nil)}
				if test.bucket != nil {
					opts = append(opts, shaper.WithBucket(test.bucket, "k", shared.Options{}))
				}
				s := made.Shaper(t, test.limits, opts...)
				i := show(t, "one", inspect.Of(s))
				ends := make(chan func(), 4)
				for _, key := range []string{"a", "a", "a", "b"} {
					go func() {
						end, err := test.enter(context.Background(), s, key)
						if err == nil {
							ends <- end
						}
					}()
					synctest.Wait()
				}
				got := turnsOf(t, i, "/api/v1/keys/one/")
				require.Len(t, got.Rows, 2)
				require.Equal(t, "a", got.Rows[0].Key)
				require.Equal(t, 2, got.Rows[0].Waiting)
				require.Equal(t, 1, got.Rows[1].Waiting)
				for range 4 {
					(<-ends)()
				}
				time.Sleep(1500 * time.Millisecond) // Samples are taken at whole seconds.
				got = turnsOf(t, i, "/api/v1/keys/one/")
				require.Equal(t, 0, got.Waiting)
				require.Equal(t, 3, countOf(got.Rows, 1), "the first left before anybody looked")
				require.NoError(t, s.Close())
			})
		})
	}
}

type quota = inspect.View

// sample is a state with something to see everywhere.
func sample() inspect.Quota {
	return inspect.Quota{
		Provider: "openai",
		Parts:    []inspect.QuotaPart{{Name: "requests", Used: 100, Limit: 500}, {Name: "tokens", Used: 67_500, Limit: 90_000, Level: 0.8, Reserved: 0.2}},
		Level:    0.4, Reserved: 0.1, Capacity: 0.5,
		Teams: []inspect.QuotaTeam{
			{Team: "gold", Weight: 4, Waiting: 3, MinuteRequests: 70, MinuteTokens: 50_000, HourRequests: 700, HourTokens: 500_000, LongestWait: 1500 * time.Millisecond},
			{Team: "batch", Weight: 1, MinuteTokens: 10_000, HourTokens: 90_000, Refused: 2},
		},
		Others:      inspect.QuotaTeam{HourTokens: 7000, MinuteTokens: 7500},
		LongestWait: 2 * time.Second, Refused: 2, Refusals: 5, Forfeited: 1000, Hint: "a larger burst keeps it", Replicas: "The line is at 10.0.0.7:8080.",
	}
}

func TestAQuotaIsToldWithTheLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := made.Shaper(t, "4/s depth 9")
		i := blank(t)
		var asked atomic.Int64
		i.Add("openai", inspect.OfQuota(s, func(teams int) inspect.Quota {
			asked.Add(1)
			return sample()
		}))
		i.Add("plain", inspect.Of(s))
		time.Sleep(10 * time.Second)
		require.Zero(t, asked.Load(), "nobody looks")

		var got quota
		told(t, i, "/api/v1/quota/openai/?teams=1", &got)
		require.Equal(t, "openai", got.Provider)
		require.Equal(t, 0.2, got.Parts[0].Share)
		require.Equal(t, 0.75, got.Parts[1].Share)
		require.Equal(t, "tokens", *got.Scarcest)
		require.Zero(t, got.Parts[0].Level)
		require.Equal(t, 0.8, got.Parts[1].Level)
		require.Equal(t, 0.2, got.Parts[1].Reserved)
		require.Equal(t, 0.8, got.Level)
		require.Equal(t, 0.2, got.Reserved)
		require.Len(t, got.Teams, 1, "no more than were asked for")
		require.Equal(t, 1.5, got.Teams[0].LongestWaitS)
		require.EqualValues(t, 97_000, got.Others.HourTokens, "with the teams that are not told")
		require.Equal(t, "a larger burst keeps it", *got.Hint)
		require.Equal(t, "The line is at 10.0.0.7:8080.", *got.Replicas)

		r := listen(t, i, "/api/v1/events?source=openai")
		e := r.next()
		for e.name != "detail" {
			e = r.next()
		}
		checkEvent(t, e)
		before := asked.Load()
		require.EqualValues(t, 1, before)
		others := listen(t, i, "/api/v1/events?source=openai")
		var detail struct{ Quota *quota }
		for range 5 {
			others.until("detail", &detail)
			r.until("detail", &detail)
			require.Len(t, detail.Quota.Teams, 2)
		}
		require.LessOrEqual(t, asked.Load()-before, int64(5), "once a second, however many look")

		require.Equal(t, http.StatusNotFound, ask(i, "/api/v1/quota/plain/").Code)
		require.Equal(t, http.StatusNotFound, ask(i, "/api/v1/quota/nobody/").Code)
		require.Equal(t, http.StatusBadRequest, ask(i, "/api/v1/quota/openai/?teams=51").Code)
		var plain map[string]any
		listen(t, i, "/api/v1/events?source=plain").until("detail", &plain)
		require.NotContains(t, plain, "quota")
	})
}

func TestABucketWithoutABurstIsFullWhileItHasALevel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		level := 0.4
		c := newConsole(t, inspect.OfQuota(made.Shaper(t, "4/s depth 9"), func(int) inspect.Quota { return inspect.Quota{Level: level, Reserved: level / 2} }))
		defer c.Close()
		for _, want := range []float64{1, 0} {
			var got quota
			told(t, c, "/api/v1/quota/one/", &got)
			require.Equal(t, [2]float64{want, want / 2}, [2]float64{got.Level, got.Reserved})
			level = 0
			time.Sleep(time.Second)
		}
	})
}

// What the program tells may be anything. What the page is told is bounded, and has numbers only.
func TestAQuotaThatMakesNoSenseIsToldAsWellAsItGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := made.Shaper(t, "4/s depth 9")
		broken := false
		c := newConsole(t, inspect.OfQuota(s, func(teams int) inspect.Quota {
			if broken {
				panic("oh")
			}
			strange := inspect.Quota{Level: math.NaN(), Reserved: math.Inf(1), Capacity: 0, Parts: make([]inspect.QuotaPart, 100)}
			for range 100 {
				strange.Teams = append(strange.Teams, inspect.QuotaTeam{Team: strings.Repeat("\xff<b>", 500)})
			}
			return strange
		}))
		defer c.Close()
		var got quota
		told(t, c, "/api/v1/quota/one/", &got)
		require.Zero(t, got.Level)
		require.Nil(t, got.Scarcest)
		require.Len(t, got.Parts, 8)
		require.Len(t, got.Teams, 20)
		require.Less(t, len(got.Teams[0].Team), 600)

		time.Sleep(time.Second)
		broken = true
		for range 2 {
			require.Equal(t, http.StatusInternalServerError, ask(c, "/api/v1/quota/one/").Code)
		}
		require.Equal(t, 1, strings.Count(c.log.String(), "OfQuota panicked"))
	})
}

func requireReasonsAddUp(t *testing.T, b bucket) {
	t.Helper()
	require.Equal(t, b.Refused, b.QueueFull+b.TooLate+b.TooCostly+b.Closed+b.Unavailable)
}

// Were an outage of the shared bucket told as a closed one, an operator would look for who has
// closed it, and not at the server that is down.
func TestAnOutageIsNotTakenForAClosedBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := buckettest.NewMemory()
		s := made.Shaper(t, "1/s", shaper.WithBucket(server, "k", shared.Options{}))
		c := newConsole(t, inspect.Of(s))
		require.NoError(t, s.Wait(t.Context()))
		detail := func() (answer struct {
			Bucket   bucket
			Refusals []struct{ Reason string }
		}) {
			told(t, c, "/api/v1/buckets/one/", &answer)
			requireReasonsAddUp(t, answer.Bucket)
			return answer
		}
		up := detail().Bucket.Shared
		require.NotNil(t, up)
		require.Equal(t, "shared", up.State)
		require.Nil(t, up.Error)

		server.Fail(func(int, string) buckettest.Fault { return buckettest.FailBefore })
		time.Sleep(10 * time.Second)
		for range 11 {
			require.ErrorIs(t, s.Wait(t.Context()), shaper.ErrUnavailable)
		}
		down := detail()
		require.EqualValues(t, 11, down.Bucket.Unavailable)
		require.Zero(t, down.Bucket.Closed)
		require.Equal(t, "down", down.Bucket.Shared.State)
		require.NotEmpty(t, *down.Bucket.Shared.Error)
		require.GreaterOrEqual(t, down.Bucket.Shared.Failures, uint64(3))
		require.Len(t, down.Refusals, 11)
		for _, r := range down.Refusals {
			require.Equal(t, "unavailable", r.Reason)
		}

		l := listOf(t, c, "")
		require.Equal(t, down.Bucket.Shared, l.Buckets[0].Shared)
		require.Equal(t, down.Bucket.Unavailable, l.Buckets[0].Unavailable)
		require.Equal(t, "down", l.Sources[0].Shared.State)

		time.Sleep(1100 * time.Millisecond)
		require.Contains(t, ask(c, "/api/v1/buckets").Body.String(), `"health":"unavailable"`)
	})
}

// A line whose seats other processes have would seem to hang: how many this process has of all is shown, also while the
// Bucket can't be asked, of one line and of a key, and by a source whether there is such a cap.
func TestSeatsOfAllProcessesAreShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := buckettest.NewMemory()
		cap := shared.Options{InFlight: 6, Fallback: shared.FallbackLocal(3)}
		s := made.Shaper(t, "100/s depth 9", shaper.WithBucket(server, "k", cap))
		g := made.Group[string](t, "100/s depth 9", shaper.WithBuckets(server, strings.Clone, cap))
		c := newConsole(t, inspect.Of(s))
		c.Add("many", inspect.OfGroup(g))
		requireShown := func(state string, seats int) {
			t.Helper()
			time.Sleep(1100 * time.Millisecond) // A list may be a second old.
			l := listOf(t, c, "")
			require.Len(t, l.Buckets, 2)
			for _, b := range l.Buckets {
				require.Equal(t, state, b.Shared.State)
				require.Equal(t, 6, b.Shared.InFlightMax)
				require.Equal(t, seats, b.Shared.Seats)
				require.Zero(t, b.InFlightMax, "its own limits have no cap")
			}
			for _, source := range l.Sources {
				require.Equal(t, 6, source.Shared.InFlightMax)
			}
			for _, of := range []string{"one/", "many/a"} {
				var detail struct {
					InWords []string `json:"in_words"`
				}
				told(t, c, "/api/v1/buckets/"+of, &detail)
				require.Equal(t, "at most 6 are in flight at the same time, in all processes together", detail.InWords[0])
			}
		}
		for range 3 {
			for _, acquire := range []func() (func(), error){
				func() (func(), error) { return s.Acquire(t.Context(), 1) },
				func() (func(), error) { return g.Acquire(t.Context(), "a", 1) },
			} {
				release, err := acquire()
				require.NoError(t, err)
				defer release()
			}
		}
		requireShown("shared", 3)
		server.Fail(func(int, string) buckettest.Fault { return buckettest.FailBefore })
		time.Sleep(9 * time.Second)
		requireShown("local", 2)
		server.Fail(nil)
		time.Sleep(5 * time.Second)
		requireShown("shared", 3)

		own := made.Shaper(t, "100/s depth 9 inflight 2", shaper.WithBucket(server, "own", cap))
		c.Add("own", inspect.Of(own))
		var detail struct {
			InWords []string `json:"in_words"`
		}
		told(t, c, "/api/v1/buckets/own/", &detail)
		require.Equal(t, []string{"at most 2 are in flight at the same time", "at most 6 in all processes together"}, detail.InWords[:2])
	})
}

// What is leased and not used yet can't be used by others: it is shown.
func TestWhatIsHeldOfASharedBucketIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := made.GroupBy(t, func(string) (shaper.Limits, error) { return made.Limits(t, "20/s depth 50"), nil },
			shaper.WithBuckets(buckettest.NewMemory(), func(key string) string { return key }, shared.Options{}))
		for range 40 {
			go g.Wait(t.Context(), "k")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		c := newConsole(t, inspect.OfGroup(g))
		st, ok := g.StatsOf("k")
		require.True(t, ok)
		require.Positive(t, st.Bucket.Leased)
		l := listOf(t, c, "")
		require.Equal(t, st.Bucket.Held, l.Buckets[0].Shared.Held)
		requireReasonsAddUp(t, l.Buckets[0])
	})
}

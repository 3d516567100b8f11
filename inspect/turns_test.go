package inspect_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
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

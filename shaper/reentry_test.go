package shaper

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A request that was let go and sent back by the upstream enters once more, at
// the head. Only Transport does so, so that it is tested from inside.

// reentries is a shaper in a bubble and the requests that have left it, in order.
type reentries struct {
	*Shaper
	begun time.Time

	mu   sync.Mutex
	left []string
}

func playReentries(t *testing.T, l Limits, timeline func(t *testing.T, r *reentries)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s, err := New(l)
		require.NoError(t, err)
		timeline(t, &reentries{Shaper: s, begun: time.Now()})
		require.NoError(t, s.Close())
	})
}

// enters is a call in a goroutine of its own.
func (r *reentries) enters(ctx context.Context, name string, n int, kind entryKind) {
	go func() {
		_, err := r.acquire(ctx, n, kind)
		r.mu.Lock()
		defer r.mu.Unlock()
		if err != nil {
			name = fmt.Sprint(name, ": ", err)
		}
		r.left = append(r.left, fmt.Sprint(time.Since(r.begun), " ", name))
	}()
	synctest.Wait()
}

func (r *reentries) sleepUntil(at time.Duration) {
	time.Sleep(at - time.Since(r.begun))
	synctest.Wait()
}

// It leaves before those in line, by the rule that holds for all, and finds a
// place where newcomers are refused: as the line is full or too long, or as the
// shaper is being shut down.
func TestAReentryLeavesBeforeTheLine(t *testing.T) {
	ctx := context.Background()
	playReentries(t, Limits{Rate: 10, Depth: 2, MaxWait: 200 * time.Millisecond}, func(t *testing.T, r *reentries) {
		r.enters(ctx, "a", 1, newcomer)
		r.enters(ctx, "b", 1, newcomer)
		r.enters(ctx, "c", 1, newcomer)
		r.enters(ctx, "d", 1, newcomer)
		go func() { _ = r.Shutdown(ctx) }()
		r.sleepUntil(50 * time.Millisecond)
		r.enters(ctx, "again", 5, reentry)
		require.Equal(t, 3, r.Stats().Waiting, "one more than Depth")
		r.sleepUntil(time.Minute)
		require.Equal(t, []string{
			"0s a", "0s d: shaper: queue is full (retry after 100ms)", "100ms again", "600ms b", "700ms c",
		}, r.left)
		_, err := r.acquire(ctx, 1, reentry)
		require.ErrorIs(t, err, ErrClosed)
	})
}

// Depth 0 refuses newcomers who would have to wait, and those whose cost can't
// fit; this one was in already.
func TestAReentryWaitsWithoutDepth(t *testing.T) {
	ctx := context.Background()
	playReentries(t, Limits{Rate: 10}, func(t *testing.T, r *reentries) {
		r.enters(ctx, "a", 1, newcomer)
		r.enters(ctx, "b", 1, newcomer)
		r.enters(ctx, "again", 2, reentry)
		r.sleepUntil(time.Minute)
		require.Equal(t, []string{"0s a", "0s b: shaper: queue is full (retry after 100ms)", "100ms again"}, r.left)
	})
}

func TestAReentryLeavesAtOnceIfItMay(t *testing.T) {
	ctx := context.Background()
	playReentries(t, Limits{Rate: 10, Burst: 5, Depth: 9}, func(t *testing.T, r *reentries) {
		r.enters(ctx, "again", 1, reentry)
		r.enters(ctx, "a", 3, newcomer)
		r.enters(ctx, "dear", 5, newcomer) // It waits for an empty bucket,
		r.enters(ctx, "again", 1, reentry) // and this one needs none.
		r.sleepUntil(time.Minute)
		require.Equal(t, []string{"0s again", "0s a", "0s again", "500ms dear"}, r.left)
	})
	// It became the head just now: it is not late, however long its slot is past.
	playReentries(t, Limits{Rate: 10, Burst: 50, Depth: 9}, func(t *testing.T, r *reentries) {
		r.enters(ctx, "a", 40, newcomer)
		r.enters(ctx, "dear", 60, newcomer)
		r.sleepUntil(3 * time.Second)
		r.enters(ctx, "again", 1, reentry)
		require.Equal(t, []string{"0s a", "3s again"}, r.left)
		st := r.Stats()
		require.Zero(t, st.Missed)
		require.Equal(t, 11., st.Level)
		r.sleepUntil(time.Minute)
	})
}

// The hold that follows a refusal is for it too, and so is the cap.
func TestAReentryWaitsForTheHoldAndForASeat(t *testing.T) {
	ctx := context.Background()
	playReentries(t, Limits{Rate: 10, Depth: 9}, func(t *testing.T, r *reentries) {
		r.enters(ctx, "a", 1, newcomer)
		r.enters(ctx, "b", 1, newcomer)
		r.Hold(time.Second)
		r.enters(ctx, "again", 1, reentry)
		r.sleepUntil(time.Minute)
		require.Equal(t, []string{"0s a", "1s again", "1.1s b"}, r.left)
	})
	for _, line := range []int{0, 1} {
		playReentries(t, Limits{Rate: 10, Depth: 9, InFlight: 1}, func(t *testing.T, r *reentries) {
			first, err := r.acquire(ctx, 1, newcomer)
			require.NoError(t, err)
			for range line {
				r.enters(ctx, "b", 1, newcomer)
			}
			r.sleepUntil(time.Second)
			r.enters(ctx, "again", 1, reentry)
			require.Empty(t, r.left, "there is no seat")
			first.end()
			r.sleepUntil(2 * time.Second)
			require.Equal(t, []string{"1s again"}, r.left)
			require.Equal(t, line, r.Stats().Waiting)
		})
	}
}

// Its context counts as any other's does.
func TestAReentryCanBeTooLateOrGiveUp(t *testing.T) {
	playReentries(t, Limits{Rate: 10, Depth: 9}, func(t *testing.T, r *reentries) {
		ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		defer cancel()
		r.enters(context.Background(), "a", 1, newcomer)
		r.Hold(time.Second)
		r.enters(ctx, "late", 1, reentry)
		r.Hold(0)
		r.enters(context.Background(), "b", 1, newcomer)
		r.enters(ctx, "gone", 1, reentry)
		cancel()
		synctest.Wait()
		r.enters(ctx, "done", 1, reentry)
		r.sleepUntil(time.Minute)
		require.Equal(t, []string{
			"0s a", "0s late: shaper: would leave too late (retry after 500.000001ms)",
			"0s gone: context canceled", "0s done: context canceled", "100ms b",
		}, r.left)
	})
}

// Ahead of it are those like it, whom its deadline has to bear; the newcomers it
// passes, and MaxWait is for them alone.
func TestAReentryCountsThoseLikeIt(t *testing.T) {
	ctx := context.Background()
	for _, row := range []struct {
		left time.Duration
		want []string
	}{
		{600 * time.Millisecond, []string{
			"0s a", "0s third: shaper: would leave too late (retry after 1ns)", "100ms first", "300ms second", "600ms dear",
		}},
		{600*time.Millisecond + 1, []string{
			"0s a", "100ms first", "300ms second", "600ms third", "700ms dear",
		}},
	} {
		t.Run(row.left.String(), func(t *testing.T) {
			playReentries(t, Limits{Rate: 10, Depth: 1, MaxWait: 100 * time.Millisecond}, func(t *testing.T, r *reentries) {
				r.enters(ctx, "a", 1, newcomer)
				r.enters(ctx, "dear", 50, newcomer)
				r.enters(ctx, "first", 2, reentry)
				r.enters(ctx, "second", 3, reentry)
				within, cancel := context.WithTimeout(ctx, row.left)
				defer cancel()
				r.enters(within, "third", 1, reentry)
				r.sleepUntil(time.Minute)
				require.Equal(t, row.want, r.left)
			})
		})
	}
}

// Nobody knows when a seat becomes free, so the ticker has nothing to wait for.
// In a bubble a timer that is set all the same would hide that everybody hangs.
func TestATickerThatHasNothingToWaitForSetsNoTimer(t *testing.T) {
	playReentries(t, Limits{Rate: 10, Depth: 9, InFlight: 1}, func(t *testing.T, r *reentries) {
		first, err := r.acquire(context.Background(), 1, newcomer)
		require.NoError(t, err)
		r.enters(context.Background(), "b", 1, newcomer)
		r.ticker.mu.Lock()
		require.False(t, r.ticker.timer.Disarm(), "the timer is set")
		r.ticker.mu.Unlock()
		first.end()
		r.sleepUntil(time.Second)
		require.Equal(t, []string{"100ms b"}, r.left)
	})
}

// A seat that comes back is the head's before release returns, and the end of a
// hold its slot: the ticker, who may be late, is not waited for.
func TestASeatThatIsReleasedIsHandedOn(t *testing.T) {
	ctx := context.Background()
	requireNoLine := func(t *testing.T, r *reentries) {
		r.Shaper.mu.Lock() // Without looking for who is due, as every method does.
		defer r.Shaper.mu.Unlock()
		require.Zero(t, r.flow.line.len)
	}
	playReentries(t, Limits{Rate: 10, Depth: 9, InFlight: 1}, func(t *testing.T, r *reentries) {
		first, err := r.acquire(ctx, 1, newcomer)
		require.NoError(t, err)
		r.enters(ctx, "b", 1, newcomer)
		r.sleepUntil(time.Second)
		first.end()
		requireNoLine(t, r)
	})
	playReentries(t, Limits{Rate: 10, Depth: 9}, func(t *testing.T, r *reentries) {
		r.Hold(time.Minute)
		r.enters(ctx, "a", 1, newcomer)
		r.Hold(0)
		requireNoLine(t, r)
	})
}

// A request with a key re-enters ahead of its own key alone.
func TestAReserveRetryLeavesBeforeTheLineOfItsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(Limits{Rate: 1, Depth: 3}, WithFairQueue(nil))
		require.NoError(t, err)
		require.NoError(t, s.Wait(t.Context()))
		var left []string
		again := func(l *KeyLimiter, ctx context.Context, n int) (func(int), error) {
			v, err := l.made().reserve(ctx, n, reentry)
			return settleOf(v), err
		}
		for _, call := range []struct {
			name, key string
			reserve   func(*KeyLimiter, context.Context, int) (func(int), error)
		}{
			{"a1", "a", (*KeyLimiter).Reserve}, {"a2", "a", (*KeyLimiter).Reserve}, {"b1", "b", (*KeyLimiter).Reserve},
			{"a again", "a", again}, // The line is full.
		} {
			go func() {
				settle, err := call.reserve(s.For(call.key), t.Context(), 1)
				if err != nil {
					t.Errorf("%s: %v", call.name, err)
					return
				}
				left = append(left, call.name)
				settle(1)
			}()
			synctest.Wait()
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		require.Equal(t, []string{"b1", "a again", "a1", "a2"}, left)
	})
}

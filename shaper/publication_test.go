package shaper_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
)

// A twin is one of two shapers that meet the same calls at the same instants. The one refuses
// without its lock where it can. The other has a Recording, so it never does.
type twin struct {
	s      *shaper.Shaper
	events []shaper.Event
	cancel []context.CancelFunc // of those that have come to wait
}

func newTwin(t *testing.T, l shaper.Limits) *twin {
	w := new(twin)
	hook := func(_ context.Context, ev shaper.Event) { w.events = append(w.events, ev) }
	var err error
	w.s, err = shaper.New(l, shaper.WithTrace(&shaper.Trace{Refused: hook}))
	require.NoError(t, err)
	return w
}

// Whatever is refused without the lock is refused as with it: the error, the counts, the hooks,
// and what is kept of refusals are the same, at every instant and after every change.
func TestARefusalWithoutTheLockIsTheOneWithIt(t *testing.T) {
	t.Parallel()
	limits := []shaper.Limits{
		{Rate: 1, Depth: 3},
		{Rate: 3, Burst: 4, Depth: 2},
		{Rate: 1},
		{Rate: 2, Burst: 3},
		{Rate: 1, Depth: 6, MaxWait: 2500 * time.Millisecond},
		{Rate: 0.7, Burst: 2, Depth: 1, MaxWait: time.Second},
		{Rate: rate.Inf, Depth: 1},
	}
	compared := int64(0)
	for seed := range uint64(300) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 17))
			l := limits[r.IntN(len(limits))]
			twins := [2]*twin{newTwin(t, l), newTwin(t, l)}
			count := shaper.AuditRefusals(twins[0].s)
			twins[1].s.Record(1)
			for range 60 {
				both(t, twins, someStep(r, limits), r.IntN(4) == 0)
			}
			for _, w := range twins {
				for _, cancel := range w.cancel {
					cancel()
				}
				require.NoError(t, w.s.Close())
			}
			compared += count.Load()
		})
	}
	require.Greater(t, compared, int64(3000), "the scripts are too tame")
}

// both takes a step with both twins, and requires that it comes to the same. Now and then it
// looks at all that they tell of themselves.
func both(t *testing.T, twins [2]*twin, step func(*twin) any, look bool) {
	t.Helper()
	first, second := step(twins[0]), step(twins[1])
	synctest.Wait()
	require.Equal(t, second, first)
	require.Equal(t, twins[1].events, twins[0].events)
	if look { // Looking takes the lock, after which nothing is published.
		require.Equal(t, twins[1].s.Stats(), twins[0].s.Stats())
		require.Equal(t, twins[1].s.Refusals(), twins[0].s.Refusals())
	}
}

// someStep returns one of the things that a twin may meet.
func someStep(r *rand.Rand, limits []shaper.Limits) func(*twin) any {
	cost, left := 1+r.IntN(3), time.Duration(1+r.Int64N(int64(4*time.Second)))
	switch kind := r.IntN(24); {
	case kind < 6:
		return func(w *twin) any { return w.s.AllowN(cost) }
	case kind < 12:
		return func(w *twin) any { return w.enter(cost, nil) }
	case kind < 16:
		return func(w *twin) any { return w.enter(cost, &left) }
	case kind == 16:
		return func(w *twin) any {
			if len(w.cancel) > 0 {
				w.cancel[cost%len(w.cancel)]()
			}
			return nil
		}
	case kind == 17:
		l := limits[r.IntN(len(limits))]
		return func(w *twin) any { return w.s.SetLimits(l) }
	case kind == 18:
		return func(w *twin) any { w.s.Hold(left * time.Duration(cost-1)); return nil }
	}
	slept := false
	return func(w *twin) any {
		if !slept {
			time.Sleep(left / 8)
		}
		slept = true
		return nil
	}
}

// enter calls WaitN, and returns what it has returned if it did so at once.
func (w *twin) enter(cost int, left *time.Duration) any {
	ctx, cancel := context.WithCancel(context.Background())
	if left != nil {
		ctx, cancel = context.WithTimeout(context.Background(), *left)
	}
	w.cancel = append(w.cancel, cancel)
	var returned atomic.Pointer[shaper.RejectError]
	go func() {
		var rejected *shaper.RejectError
		if errors.As(w.s.WaitN(ctx, cost), &rejected) {
			returned.Store(rejected)
		}
	}()
	synctest.Wait()
	return returned.Load()
}

// A call that has read the clock before others were refused without the lock does not put it
// back: what it changes comes after them.
func TestTheClockNeverGoesBehindARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustMake(t, shaper.Limits{Rate: 1})
		compared := shaper.AuditRefusals(s)
		require.True(t, s.Allow())
		require.False(t, s.Allow())
		time.Sleep(500 * time.Millisecond)
		require.False(t, s.Allow())
		require.Equal(t, int64(1), compared.Load())
		require.Equal(t, int64(500*time.Millisecond), shaper.LockAt(s, 0))
	})
}

// A refusal at the instant of the next slot comes after that, however late the ticker is.
func TestNobodyIsRefusedWhenASlotIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustMake(t, shaper.Limits{Rate: 1, Depth: 1})
		compared := shaper.AuditRefusals(s)
		require.True(t, s.Allow())
		go func() { _ = s.Wait(context.Background()) }()
		synctest.Wait()
		require.Error(t, s.Wait(t.Context()))
		time.Sleep(time.Second - 1)
		rejected := s.Wait(t.Context())
		require.Equal(t, time.Duration(1), rejected.(*shaper.RejectError).RetryAfter)
		require.Equal(t, int64(1), compared.Load())
		time.Sleep(time.Nanosecond)
		require.NoError(t, s.Wait(t.Context()), "the place is free")
	})
}

// Few refusals publish nothing, and what lets a call leave begins the count anew.
func TestOnlyManyRefusalsInARowArePublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustMake(t, shaper.Limits{Rate: 1})
		for range 3 {
			require.True(t, s.Allow())
			for range shaper.PublishAfter - 1 {
				require.False(t, s.Allow())
				require.False(t, shaper.RefusesWithoutLock(s))
			}
			time.Sleep(time.Second)
		}
		require.True(t, s.Allow())
		for range shaper.PublishAfter {
			require.False(t, s.Allow())
		}
		require.True(t, shaper.RefusesWithoutLock(s))
		require.Equal(t, uint64(4*shaper.PublishAfter-3), s.Stats().QueueFull)
		require.False(t, shaper.RefusesWithoutLock(s), "Stats has taken the lock")
		require.False(t, s.Allow())
		require.False(t, shaper.RefusesWithoutLock(s), "who looks after each refusal pays for no publication")
	})
}

// Many goroutines are refused at once while others look. In the end every refusal has been
// counted, in the meantime no count goes back, and the latest are there in their order.
func TestEveryRefusalOfAStormIsCounted(t *testing.T) {
	const callers, each = 16, 2000
	s := mustMake(t, shaper.Limits{Rate: 1. / 3600})
	compared := shaper.AuditRefusals(s)
	require.True(t, s.Allow())
	var calls, looks sync.WaitGroup
	var over atomic.Bool
	looks.Go(func() {
		for before := s.Stats(); !over.Load(); {
			now := s.Stats()
			if now.QueueFull < before.QueueFull || now.LastCall.Before(before.LastCall) {
				t.Errorf("%+v after %+v", now, before)
			}
			before = now
			time.Sleep(50 * time.Microsecond)
		}
	})
	began := time.Now()
	for range callers {
		calls.Go(func() {
			for range each {
				if s.Allow() {
					t.Error("nothing can leave")
				}
			}
		})
	}
	calls.Wait()
	over.Store(true)
	looks.Wait()
	st := s.Stats()
	require.Equal(t, uint64(callers*each), st.QueueFull)
	require.Equal(t, uint64(callers*each), st.Refused)
	require.False(t, st.LastCall.Before(began))
	require.NotZero(t, compared.Load())
	latest := s.Refusals()
	require.Len(t, latest, 64)
	require.Equal(t, st.LastCall, latest[63].At)
	for i, one := range latest[1:] {
		require.False(t, one.At.Before(latest[i].At))
	}
}

// newRefusing returns a shaper that refuses every request of the next hour without its lock.
func newRefusing(t *testing.T) *shaper.Shaper {
	s := mustMake(t, shaper.Limits{Rate: 1. / 3600})
	require.True(t, s.Allow())
	for range shaper.PublishAfter {
		require.False(t, s.Allow())
	}
	require.True(t, shaper.RefusesWithoutLock(s))
	return s
}

// A Recording that begins while calls are refused without the lock has all that come from then on.
func TestARecordingMissesNoRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRefusing(t)
		recording := s.Record(4)
		require.False(t, shaper.RefusesWithoutLock(s))
		for range 2 * shaper.PublishAfter {
			require.False(t, s.Allow())
			require.False(t, shaper.RefusesWithoutLock(s))
		}
		arrivals := recording.Arrivals()
		require.Len(t, arrivals, 4)
		for _, a := range arrivals {
			require.ErrorIs(t, a.Err, shaper.ErrQueueFull)
		}
	})
}

// A call that is refused does not wait for somebody who has the lock.
func TestARefusalWaitsForNoLock(t *testing.T) {
	s := newRefusing(t)
	release := shaper.HoldLock(s)
	refused := make(chan error, 1)
	go func() {
		if s.Allow() {
			refused <- nil
		}
		refused <- s.Wait(context.Background())
	}()
	select {
	case err := <-refused:
		require.ErrorIs(t, err, shaper.ErrQueueFull)
	case <-time.After(time.Minute):
		t.Error("a refusal waits for the lock")
	}
	release()
	require.Equal(t, uint64(shaper.PublishAfter+2), s.Stats().QueueFull)
}

// Without the lock, too, the errors of 16 refusals are one allocation, and a call that returns
// no error allocates nothing.
func TestARefusalWithoutTheLockAllocatesItsErrorAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRefusing(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.LessOrEqual(t, testing.AllocsPerRun(100, func() {
			for range 16 {
				_ = s.Wait(ctx)
			}
		}), 1.)
		require.Zero(t, testing.AllocsPerRun(1000, func() { s.Allow() }))
		require.True(t, shaper.RefusesWithoutLock(s))
	})
}

// A request that was admitted before enters the line, however many newcomers are refused.
func TestAReentryIsNotRefusedWithNewcomers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRefusing(t)
		_, err := shaper.EnterAsReentry(s, t.Context(), 1)
		require.NoError(t, err)
	})
}

// From Close or Shutdown on, nobody is told that the line is full.
func TestNobodyIsToldThatAClosedShaperIsFull(t *testing.T) {
	for name, end := range map[string]func(*shaper.Shaper) error{
		"Close":    (*shaper.Shaper).Close,
		"Shutdown": func(s *shaper.Shaper) error { return s.Shutdown(context.Background()) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newRefusing(t)
				require.NoError(t, end(s))
				for range 2 * shaper.PublishAfter {
					require.ErrorIs(t, s.Wait(t.Context()), shaper.ErrClosed)
				}
			})
		})
	}
}

// With a cap, requests end without what withdraws a publication, so nothing is published.
func TestWithACapEveryRefusalTakesTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustMake(t, shaper.Limits{Rate: 1, InFlight: 1})
		release, err := s.Acquire(t.Context(), 1)
		require.NoError(t, err)
		defer release()
		for range 2 * shaper.PublishAfter {
			_, err := s.Acquire(t.Context(), 1)
			require.ErrorIs(t, err, shaper.ErrQueueFull)
			require.False(t, shaper.RefusesWithoutLock(s))
		}
	})
}

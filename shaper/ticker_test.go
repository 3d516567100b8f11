package shaper

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/exact"
	"example.com/leakybucket/internal/realtime"
)

// onTicker makes a Shaper whose dispatcher a given ticker serves, beside others.
func onTicker(tk *ticker, l Limits) *Shaper {
	s := &Shaper{flow: flow{bucket: newBucket(l), entered: -1}}
	s.flow.lineOrNew()
	s.prepare(options{}, tk, &s.observer)
	return s
}

// An outcome is how a wait ended, and when.
type outcome struct {
	at  time.Duration
	err error
}

// outcomeOf lets a request wait, and returns the channel that tells how that ends.
func outcomeOf(ctx context.Context, s *Shaper, began time.Time) <-chan outcome {
	ended := make(chan outcome, 1)
	go func() {
		err := s.Wait(ctx)
		ended <- outcome{time.Since(began), err}
	}()
	synctest.Wait()
	return ended
}

func (t *ticker) runs() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.running
}

func TestOneTickerServesTheLinesOfSeveralDispatchers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var tk ticker
		slow, quick := onTicker(&tk, Limits{Rate: 1, Depth: 9}), onTicker(&tk, Limits{Rate: 4, Depth: 9})
		ctx := context.Background()
		require.True(t, slow.Allow())
		require.True(t, quick.Allow())
		require.False(t, tk.runs())

		// The ticker sleeps until the slot of slow when the line of quick forms, and goes on with
		// slow when the line of quick has emptied. At 1 s both have a slot.
		var ended []<-chan outcome
		for _, s := range []*Shaper{slow, slow, quick, quick, quick, quick} {
			ended = append(ended, outcomeOf(ctx, s, began))
		}
		tk.mu.Lock()
		serving := tk.serving
		tk.mu.Unlock()
		require.Equal(t, int16(2), serving)
		for i, at := range []time.Duration{1000, 2000, 250, 500, 750, 1000} {
			require.Equal(t, outcome{at: at * time.Millisecond}, <-ended[i], "%d", i)
		}
		synctest.Wait()
		require.False(t, tk.runs(), "no line is left")

		// It ends only when the last line has emptied, and another line starts it again.
		soon, cancel := context.WithCancel(ctx)
		first, second := outcomeOf(soon, slow, began), outcomeOf(ctx, quick, began)
		third := outcomeOf(ctx, quick, began)
		require.Equal(t, outcome{at: 2 * time.Second}, <-second, "the bucket of quick was empty")
		cancel()
		require.Equal(t, outcome{2 * time.Second, context.Canceled}, <-first)
		synctest.Wait()
		require.True(t, tk.runs())
		require.Equal(t, outcome{at: 2250 * time.Millisecond}, <-third)
		synctest.Wait()
		require.False(t, tk.runs())
		require.False(t, tk.timer.Disarm(), "it would go off for nobody")
	})
}

// The call that moves a head forward wakes a ticker that sleeps for another dispatcher.
func TestATickerSleepsNoLongerThanTheEarliestOfItsDispatchers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var tk ticker
		a, b := onTicker(&tk, Limits{Rate: 1. / 3600, Depth: 9}), onTicker(&tk, Limits{Rate: 1. / 3600, Depth: 9})
		require.True(t, a.Allow())
		require.True(t, b.Allow())
		first := outcomeOf(context.Background(), a, began)
		second := outcomeOf(context.Background(), b, began)
		time.Sleep(time.Second)
		require.NoError(t, b.SetLimits(Limits{Rate: 1, Depth: 9}))
		got := <-second
		require.NoError(t, got.err)
		require.Equal(t, 1999722223*time.Nanosecond, got.at, "a second less what has leaked in the first")
		require.Equal(t, outcome{at: time.Hour}, <-first)
	})
}

// Close of one dispatcher refuses its line alone; the goroutine ends with the last line.
func TestATickerEndsWhenAllItsDispatchersAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var tk ticker
		a, b := onTicker(&tk, Limits{Rate: 1, Depth: 9}), onTicker(&tk, Limits{Rate: 1, Depth: 9})
		require.True(t, a.Allow())
		require.True(t, b.Allow())
		first, second := outcomeOf(context.Background(), a, began), outcomeOf(context.Background(), b, began)
		a.closeLines()
		require.ErrorIs(t, (<-first).err, ErrClosed)
		require.Equal(t, outcome{at: time.Second}, <-second, "another dispatcher's line goes on")
		third := outcomeOf(context.Background(), b, began)
		require.True(t, tk.runs())
		b.closeLines()
		tk.waitForEnd()
		require.False(t, tk.runs())
		require.ErrorIs(t, (<-third).err, ErrClosed)
		require.Equal(t, time.Second, time.Since(began))
		tk.waitForEnd()
	})
}

// The ticker may be about to go to sleep when a head gets an instant. So that is published
// before the ticker's lock is taken: else the ticker would sleep on for the instant before.
func TestNoSlotIsMissedByATickerAboutToSleep(t *testing.T) {
	var tk ticker
	s := onTicker(&tk, Limits{Rate: 1, Depth: 1})
	require.True(t, s.Allow())
	tk.mu.Lock()
	ended := make(chan error, 1)
	go func() { ended <- s.Wait(context.Background()) }()
	for began := time.Now(); s.next.Load() == exact.Forever; time.Sleep(time.Millisecond) {
		if time.Since(began) > time.Minute {
			t.Error("the instant is not published before the ticker is told")
			break
		}
	}
	tk.mu.Unlock()
	s.closeLines()
	require.ErrorIs(t, realtime.Next(t, ended), ErrClosed)
	tk.waitForEnd()
}

// When the last line has emptied, a file is kept for a moment after that, for the next line.
func TestTheLingeringOfAFileBeginsWhenTheLastLineEmpties(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tk ticker
		a, b := onTicker(&tk, Limits{Rate: 1, Depth: 1}), onTicker(&tk, Limits{Rate: 0.5, Depth: 1})
		require.True(t, a.Allow())
		require.True(t, b.Allow())
		first, second := outcomeOf(context.Background(), a, time.Now()), outcomeOf(context.Background(), b, time.Now())
		<-first
		<-second
		synctest.Wait()
		tk.precise = true // In a bubble it has no file.
		require.Equal(t, int64(2*time.Second+lingering), tk.wakeAtLocked(exact.Forever))
	})
}

// An alarmClock notes for when it was set.
type alarmClock struct{ at int64 }

func (a *alarmClock) Set(at int64) { a.at = at }
func (a *alarmClock) Wait() error  { return nil }
func (a *alarmClock) Stop()        {}

// A head that is to leave sooner does not wake a coarse ticker within a millisecond of the time
// before.
func TestANewHeadDoesNotWakeACoarseTimerTooSoon(t *testing.T) {
	var tk ticker
	s := onTicker(&tk, Limits{Rate: 1, Depth: 1})
	for precise, want := range map[bool]int64{false: 1010, true: 1000 + int64(coarseness)} {
		var clock alarmClock
		tk.running, tk.precise, tk.coarse, tk.alarm = true, precise, true, &clock
		tk.woke, tk.armed = 1000, int64(time.Hour)
		tk.arm(&s.dispatcher, true, 1010)
		require.Equal(t, want, clock.at)
	}
}

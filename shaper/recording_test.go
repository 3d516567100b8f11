package shaper_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/model"
	"example.com/leakybucket/shaper"
)

// A Recording tells of each call what became of it: left at once or from the line, given up,
// refused, or still waiting.
func TestRecordingTellsWhatBecameOfEachCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustMake(t, shaper.Limits{Rate: 100, Depth: 2})
		require.True(t, s.Allow(), "before the Recording")
		t0 := time.Now()
		r := s.Record(100)
		require.Empty(t, r.Arrivals())
		impatient, cancel := context.WithDeadline(t.Context(), t0.Add(time.Second))
		enters(s.WaitN, 1)
		go func() { _ = s.WaitN(impatient, 2) }()
		synctest.Wait()
		require.False(t, s.AllowN(3))
		require.Error(t, s.Wait(t.Context()))
		require.NoError(t, s.WaitN(t.Context(), 0), "counts nothing")
		time.Sleep(4 * msec)
		cancel()
		synctest.Wait()
		enters(s.WaitN, 1)
		time.Sleep(10 * msec) // The first has left at 10 ms.
		got := r.Arrivals()
		full := got[3].Err
		require.ErrorIs(t, full, shaper.ErrQueueFull)
		want := []shaper.Arrival{
			{At: t0, Cost: 1, Waited: 10 * msec, Done: true},
			{At: t0, Cost: 2, Deadline: t0.Add(time.Second), Waited: 4 * msec, Err: context.Canceled, Done: true},
			{At: t0, Cost: 3, Allow: true, Err: shaper.ErrQueueFull, Done: true},
			{At: t0, Cost: 1, Err: full, Done: true},
			{At: t0.Add(4 * msec), Cost: 1},
		}
		require.Equal(t, want, got)
		r.Stop()
		r.Stop()
		time.Sleep(msec)
		require.False(t, s.Allow(), "after the Recording")
		time.Sleep(time.Second)
		want[4].Done, want[4].Waited = true, 16*msec
		require.Equal(t, want, r.Arrivals(), "what becomes of those that waited is told all the same")
	})
}

// On a 32-bit system an int counts the requests of two days at 10,000/s.
func TestARecordingOutlastsTheGreatestInt(t *testing.T) {
	s := mustMake(t, shaper.Limits{Rate: 1, Burst: 9})
	r := s.Record(4)
	for n := range 8 {
		if n == 4 {
			shaper.LetPass(r, 1<<63)
		}
		s.AllowN(1 + n)
	}
	for i, a := range r.Arrivals() {
		require.Equal(t, 5+i, a.Cost)
	}
	require.Len(t, r.Arrivals(), 4)
}

// The memory of a Recording is bounded, and so is the memory of several of one bucket.
func TestRecordingKeepsTheLatest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustMake(t, shaper.Limits{Rate: 1, Burst: 5000})
		few, many, one := s.Record(3), s.Record(1000), s.Record(-5)
		for n := range 2000 {
			s.AllowN(1 + n)
		}
		costs := func(r *shaper.Recording) (costs []int) {
			for _, a := range r.Arrivals() {
				costs = append(costs, a.Cost)
			}
			return costs
		}
		require.Equal(t, []int{1998, 1999, 2000}, costs(few))
		require.Equal(t, []int{2000}, costs(one))
		require.Len(t, costs(many), 1000)
		for i, n := range costs(many) {
			require.Equal(t, 1001+i, n)
		}
		few.Stop()
		s.AllowN(7)
		require.Equal(t, 2000, costs(few)[2])
		require.Equal(t, []int{7}, costs(one))
	})
}

// A Recording of a key goes on while the bucket of the key comes and goes, while the key
// shares one, and after Close; calls of other keys are not in it.
func TestRecordingOfAKeyOutlivesItsBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failure := errors.New("no limits")
		fails := false
		g, err := shaper.NewGroup(func(string) (shaper.Limits, error) {
			if fails {
				return shaper.Limits{}, failure
			}
			return shaper.Limits{Rate: 100, Depth: 3}, nil
		}, shaper.WithMaxKeys(1))
		require.NoError(t, err)
		t0 := time.Now()
		r := g.Record("a", 100)
		require.Zero(t, g.Stats().Keys)
		require.True(t, g.Allow("a"))
		time.Sleep(10 * time.Second)
		require.Zero(t, g.Stats().Keys)
		require.True(t, g.Allow("b"), "takes the only place")
		enters(g.Limiter("a").WaitN, 1, 1) // They share a bucket.
		enters(g.Limiter("c").WaitN, 1, 1)
		time.Sleep(10 * time.Second)
		fails = true
		require.False(t, g.Allow("a"))
		fails = false
		require.NoError(t, g.Close())
		require.Error(t, g.Wait(t.Context(), "a"))
		got := r.Arrivals()
		require.Len(t, got, 5)
		shared, last := t0.Add(10*time.Second), t0.Add(20*time.Second)
		require.Equal(t, []shaper.Arrival{
			{At: t0, Cost: 1, Allow: true, Done: true},
			{At: shared, Cost: 1, Done: true},
			{At: shared, Cost: 1, Waited: 10 * msec, Done: true},
		}, got[:3])
		require.ErrorIs(t, got[3].Err, failure)
		require.Equal(t, shaper.Arrival{At: last, Cost: 1, Allow: true, Err: got[3].Err, Done: true}, got[3])
		require.ErrorIs(t, got[4].Err, shaper.ErrClosed)
		r.Stop()
	})
}

// Whatever happens to a Shaper, all that tells of it agrees with its Stats: random scripts of
// calls, changes, holds and an end are played on a Shaper that is recorded.
func TestWhatIsToldAgreesWithTheCounts(t *testing.T) {
	t.Parallel()
	departed, refused, abandoned := uint64(0), uint64(0), uint64(0)
	for seed := range uint64(rounds(100, 450, 450)) {
		script, want := model.Random(rand.New(rand.NewPCG(seed, 3)))
		var s *shaper.Shaper
		var r *shaper.Recording
		open := func(l shaper.Limits, options ...shaper.Option) (model.Subject, error) {
			var err error
			if s, err = shaper.New(l, options...); err != nil {
				return nil, err
			}
			r = s.Record(1 << 20)
			return s, nil
		}
		got, problem := model.Play(t, script, open)
		require.Empty(t, problem, "%v", script)
		require.Empty(t, model.Difference(script, got, want), "a Recording changes nothing; seed %d\n%v", seed, script)
		if s == nil {
			continue
		}
		st, h := s.Stats(), s.Histograms()
		var told shaper.Stats
		for _, a := range r.Arrivals() {
			require.True(t, a.Done, "seed %d: all calls have returned", seed)
			switch {
			case a.Err == nil:
				told.Departed++
				told.TotalWait += a.Waited
			case errors.Is(a.Err, shaper.ErrQueueFull):
				told.QueueFull++
			case errors.Is(a.Err, shaper.ErrTooLate):
				told.TooLate++
			case errors.Is(a.Err, shaper.ErrTooCostly):
				told.TooCostly++
			case errors.Is(a.Err, shaper.ErrClosed):
				told.Closed++
			default:
				told.Abandoned++
			}
		}
		told.Refused = told.QueueFull + told.TooLate + told.TooCostly + told.Closed
		counted := shaper.Stats{
			Departed: st.Departed, Refused: st.Refused, Abandoned: st.Abandoned, TotalWait: st.TotalWait,
			QueueFull: st.QueueFull, TooLate: st.TooLate, TooCostly: st.TooCostly, Closed: st.Closed,
		}
		require.Equal(t, counted, told, "seed %d\n%v", seed, script)
		require.Len(t, s.Refusals(), int(min(st.Refused, 64)), "seed %d", seed)
		require.Equal(t, st.Departed, h.Wait.Count(), "seed %d", seed)
		require.InDelta(t, st.TotalWait.Seconds(), h.Wait.Sum(), 1e-6, "seed %d", seed)
		require.Empty(t, s.Line(100), "seed %d", seed)
		departed, refused, abandoned = departed+st.Departed, refused+st.Refused, abandoned+st.Abandoned
	}
	require.Greater(t, min(departed, refused, abandoned), uint64(100), "the scripts are varied")
}

package shaper_test

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
)

// Three answers that were late, because a machine was busy for a moment, are no reason to
// refuse newcomers. A bucket that is always farther than slots may be late is one.
func TestAFewSlowAnswersDoNotCountAsAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		s, err := shaper.New(shaper.Limits{Rate: 1000, Depth: 10, Slack: 25 * time.Millisecond}, shaper.WithBucket(m, "key"))
		require.NoError(t, err)
		defer s.Close()
		m.SetDelay(time.Millisecond, time.Millisecond)
		require.NoError(t, s.Wait(t.Context()))
		m.SetDelay(28*time.Millisecond, 2*time.Millisecond)
		for range 5 {
			require.NoError(t, s.Wait(t.Context()))
		}
		require.Zero(t, s.Stats().Bucket.Failures)
		require.Equal(t, shaper.BucketShared, s.Stats().Bucket.State)

		m.SetDelay(30*time.Millisecond, 30*time.Millisecond)
		for range 2 { // The first is in line when that is found, the second comes after that.
			err = s.Wait(t.Context())
			require.ErrorIs(t, err, shaper.ErrUnavailable)
			require.ErrorContains(t, err, "Limits.Slack is 25ms")
		}
	})
}

// The first calls of a process wait for connections, and each key of a Group has a first call.
func TestNewConnectionsDoNotCountAsAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		limits := func(string) (shaper.Limits, error) {
			return shaper.Limits{Rate: 1000, Depth: 10, Slack: 25 * time.Millisecond}, nil
		}
		g, err := shaper.NewGroup(limits, shaper.WithBuckets(m, func(key string) string { return key }))
		require.NoError(t, err)
		defer g.Close()
		for key := range 10 {
			m.SetDelay(58*time.Millisecond, 2*time.Millisecond)
			done := make(chan error, 1)
			go func() { done <- g.Wait(t.Context(), strconv.Itoa(key)) }()
			time.Sleep(30 * time.Millisecond)
			m.SetDelay(time.Millisecond, time.Millisecond)
			require.NoError(t, <-done)
			require.Zero(t, g.Stats().Bucket.Failures)
		}
		m.SetDelay(time.Millisecond, time.Millisecond)
		for key := range 10 {
			require.NoError(t, g.Wait(t.Context(), strconv.Itoa(key)))
		}
	})
}

// The lateness is promised, and it is two round trips if that is long. So one answer that takes
// a second must not make slots usable for much longer, but a way that has become longer must.
func TestOneSlowAnswerDoesNotLengthenTheLateness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		s, err := shaper.New(shaper.Limits{Rate: 1000, Depth: 10}, shaper.WithBucket(m, "key"))
		require.NoError(t, err)
		defer s.Close()
		wait := func(times int, delay time.Duration) {
			m.SetDelay(delay/2, delay/2)
			for range times {
				require.NoError(t, s.Wait(t.Context()))
			}
		}
		wait(3, time.Millisecond)
		require.Equal(t, shaper.DefaultSlack, s.Stats().Bucket.Lateness)
		m.SetDelay(239*time.Millisecond, time.Millisecond)
		require.NoError(t, s.Wait(t.Context()))
		require.Equal(t, time.Millisecond, s.Stats().Bucket.RTT)
		require.Equal(t, shaper.DefaultSlack, s.Stats().Bucket.Lateness)

		wait(64, 30*time.Millisecond)
		require.Equal(t, 30*time.Millisecond, s.Stats().Bucket.RTT)
		require.Equal(t, 61*time.Millisecond, s.Stats().Bucket.Lateness)
	})
}

// A server that is so far away that no call ends within 250 ms must be of use, too, if the program
// says that it is.
func TestAFarServerIsReachedWithALongerBucketTimeout(t *testing.T) {
	for d, state := range map[time.Duration]shaper.BucketState{
		time.Second:            shaper.BucketShared,
		401 * time.Millisecond: shaper.BucketShared,
		399 * time.Millisecond: shaper.BucketDown,
		0:                      shaper.BucketDown, // without the option
	} {
		for _, depth := range []int{0, 20} {
			synctest.Test(t, func(t *testing.T) {
				m := buckettest.NewMemory()
				m.SetDelay(200*time.Millisecond, 200*time.Millisecond)
				options := []shaper.Option{shaper.WithBucket(m, "key")}
				if d > 0 {
					options = append(options, shaper.WithBucketTimeout(d))
				}
				s, err := shaper.New(shaper.Limits{Rate: 10, Depth: depth}, options...)
				require.NoError(t, err)
				defer s.Close()
				failed := 0
				for range 5 {
					ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
					if s.Wait(ctx) != nil {
						failed++
					}
					cancel()
				}
				require.Equal(t, state, s.Stats().Bucket.State, "%v", d)
				if state == shaper.BucketShared {
					require.Zero(t, failed, "%v", d)
				} else {
					require.Equal(t, 5, failed, "%v", d)
				}
			})
		}
	}
}

// Three calls that hang are an outage: it is noticed after three times the timeout.
func TestAnOutageIsNoticedAfterThreeBucketTimeouts(t *testing.T) {
	for _, d := range []time.Duration{time.Millisecond, 80 * time.Millisecond, 250 * time.Millisecond, 2 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			m := buckettest.NewMemory()
			m.Fail(faultOf(buckettest.LoseRequest))
			s, err := shaper.New(shaper.Limits{Rate: 10, Depth: 20}, shaper.WithBucket(m, "key"), shaper.WithBucketTimeout(d), shaper.WithPatience(time.Second))
			require.NoError(t, err)
			defer s.Close()
			start := time.Now()
			require.ErrorIs(t, s.Wait(t.Context()), shaper.ErrUnavailable)
			require.Equal(t, 3*d+time.Second, time.Since(start))
		})
	}
}

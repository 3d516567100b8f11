package sharedfaults_test

import (
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
)

// A key that nobody uses goes by itself, and the first use after that is one round trip.
func TestAnIdleKeyIsForgottenAndCostsOneRoundTripAnew(t *testing.T) {
	server := miniredis.RunT(t)
	b := open(t, plan{Engine: redisEngine, Addrs: []string{server.Addr()}})
	s := newShared(t, b, shaper.Limits{Rate: 1000, Depth: 10, Slack: time.Minute}) // A slot is of use on a slow machine, too.
	for range 3 {
		before := answers(s)
		require.NoError(t, s.Wait(t.Context()))
		require.Equal(t, before+1, answers(s))
		require.Len(t, server.Keys(), 1)
		server.FastForward(59 * time.Second)
		require.Len(t, server.Keys(), 1)
		server.FastForward(2 * time.Second)
		require.Empty(t, server.Keys())
	}
}

// The same on a real server, whose time can't be moved: each key is small, and expires about a
// minute after its level has reached 0. A key that has expired is as one that is new.
func TestRealServersForgetIdleKeys(t *testing.T) {
	t.Parallel()
	r := startRedis(t)
	b := open(t, plan{Engine: redisEngine, Addrs: []string{r.Addr}})
	for i := range 20 {
		s, err := shaper.New(shaper.Limits{Rate: 1000, Depth: 10}, shaper.WithBucket(b, fmt.Sprint("client-", i)))
		require.NoError(t, err)
		require.NoError(t, s.Wait(t.Context()))
		s.Close()
	}
	keys := r.MustDo("KEYS", "*").([]any)
	require.Len(t, keys, 20)
	for _, key := range keys {
		left, err := strconv.Atoi(r.MustDo("PTTL", key.(string)).(string))
		require.NoError(t, err)
		require.Greater(t, left, 0)
		require.LessOrEqual(t, left, 61_000)
		size, err := strconv.Atoi(r.MustDo("STRLEN", key.(string)).(string))
		require.NoError(t, err)
		require.Less(t, size, 100, "bytes of state")
		r.MustDo("PEXPIRE", key.(string), "1")
	}
	realtime.Until(t, func() bool { return r.MustDo("DBSIZE") == "0" }, "the keys are gone")
	s := newShared(t, b, shaper.Limits{Rate: 1000, Depth: 10, Slack: time.Minute})
	require.NoError(t, s.Wait(t.Context()))
	require.EqualValues(t, 1, answers(s))
}

// answers returns how many calls of its bucket have had an answer in time. On a busy machine
// any call may be too slow, and is then made again.
func answers(s *shaper.Shaper) uint64 {
	b := s.Stats().Bucket
	return b.RoundTrips - b.Failures
}

// An hour of idleness earns nothing, and after it the first request waits for one round trip,
// and for the guard if there is one.
func TestTheFirstRequestAfterIdlenessWaitsForOneRoundTrip(t *testing.T) {
	for _, guard := range []time.Duration{0, 64 * time.Millisecond} {
		t.Run(guard.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := buckettest.NewMemory()
				m.SetDelay(time.Millisecond, 2*time.Millisecond)
				s := newShared(t, m, shaper.Limits{Rate: 100, Depth: 10}, shaper.WithColdGuard(guard))
				for range 3 {
					before := s.Stats().Bucket.RoundTrips
					start := time.Now()
					require.NoError(t, s.Wait(t.Context()))
					// The clock of the engine is read in microseconds, and its answer may be as
					// old as the round trip.
					require.GreaterOrEqual(t, time.Since(start), max(3*time.Millisecond, guard+time.Millisecond))
					require.LessOrEqual(t, time.Since(start), max(3*time.Millisecond, guard+3*time.Millisecond)+50*time.Microsecond)
					require.Equal(t, before+1, s.Stats().Bucket.RoundTrips)
					require.NoError(t, s.Wait(t.Context()))
					require.GreaterOrEqual(t, time.Since(start), 10*time.Millisecond, "idleness earns nothing")
					time.Sleep(time.Hour)
				}
			})
		})
	}
}

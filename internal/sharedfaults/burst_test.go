package sharedfaults_test

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/shaper"
)

// onEachEngine runs a test with a bucket on a server of each kind. No client has a connection to
// the server yet, and all that they send goes through the proxy.
func onEachEngine(t *testing.T, test func(t *testing.T, b shaper.Bucket, network *servers.Proxy)) {
	for name, start := range map[string]func(t *testing.T) (addr string, network *servers.Proxy){
		"Redis": func(t *testing.T) (string, *servers.Proxy) {
			network := servers.StartProxy(t, servers.StartRedis(t).Addr)
			return network.Addr, network
		},
		"PostgreSQL": func(t *testing.T) (string, *servers.Proxy) {
			db := startPostgres(t)
			network := servers.StartProxy(t, db.Addr)
			return strings.Replace(db.URL, db.Addr, network.Addr, 1), network
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr, network := start(t)
			b, closeBucket, err := openBucket(plan{Addr: addr})
			require.NoError(t, err)
			defer closeBucket()
			test(t, b, network)
		})
	}
}

// Burst must not be out of reach because few may wait, nor be leased in crumbs: each would cost a
// round trip. Nothing drains meanwhile, so how fast the machine is does not matter.
func TestABurstLeavesAnIdleBucketInThreeRoundTripsWhateverTheDepth(t *testing.T) {
	t.Parallel()
	onEachEngine(t, func(t *testing.T, b shaper.Bucket, network *servers.Proxy) {
		for key, depth := range map[string]int{"few may wait": 10, "all may wait": 200} {
			network.BlackHole(true) // until all are in line
			s, err := shaper.New(shaper.Limits{Rate: 1. / 3600, Burst: 100, Depth: depth}, shaper.WithBucket(b, key), shaper.WithBucketTimeout(10*time.Second))
			require.NoError(t, err)
			defer s.Close()
			left := make(chan error, 100)
			for range cap(left) {
				go func() { left <- s.Wait(t.Context()) }()
			}
			realtime.Until(t, func() bool { return s.Stats().Waiting == cap(left) }, "all are in line")
			network.BlackHole(false)
			for range cap(left) {
				require.NoError(t, realtime.Next(t, left), key)
			}
			st := s.Stats().Bucket
			require.LessOrEqual(t, st.RoundTrips, uint64(3), key)
			require.Zero(t, st.Failures, key)
		}
	})
}

// A spike of a meter must not wait for the connections of a small pool until its calls have failed,
// and take the server for unavailable.
func TestASpikeOfAMeterIsNoOutage(t *testing.T) {
	t.Parallel()
	onEachEngine(t, func(t *testing.T, b shaper.Bucket, _ *servers.Proxy) {
		s, err := shaper.New(shaper.Limits{Rate: 1. / 3600, Burst: 150}, shaper.WithBucket(b, "logins"), shaper.WithBucketTimeout(10*time.Second)) // The machine may be busy.
		require.NoError(t, err)
		defer s.Close()
		var left atomic.Uint64
		var calls sync.WaitGroup
		for range 1000 {
			calls.Go(func() {
				if s.Allow() {
					left.Add(1)
				}
			})
		}
		calls.Wait()
		st := s.Stats()
		require.EqualValues(t, 150, left.Load())
		require.EqualValues(t, 850, st.QueueFull)
		require.Zero(t, st.Unavailable)
		require.Equal(t, shaper.BucketShared, st.Bucket.State)
		require.EqualValues(t, 150, st.Bucket.Leased)
		require.Less(t, st.Bucket.RoundTrips, uint64(500), "calls share round trips")
	})
}

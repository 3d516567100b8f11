package sharedfaults_test

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/shaper"
)

// A call whose reply is lost has been carried out. If it were sent again, what it took would be
// taken twice; if it counted as refused, slots would be given twice.
func TestACallWithoutReplyIsNotRepeated(t *testing.T) {
	t.Parallel()
	r := startRedis(t)
	proxy := servers.StartProxy(t, r.Addr)
	f := startFleet(t, four(plan{Engine: redisEngine, Addrs: []string{proxy.Addr}, Key: "replies", Rate: 1000, Waiters: 16, Slack: d}))
	const cuts = 8
	for range cuts {
		f.runsFor(100 * time.Millisecond)
		proxy.CutReplies(1)
	}
	for range 3 {
		f.runsFor(300 * time.Millisecond)
		proxy.LoseReplies(1)
	}
	f.runsFor(600 * time.Millisecond)
	reports, l := f.ends()
	l.keepsPace(t, f.plan())
	f.accounts(reports)
	var trips, failures uint64
	cut := 0
	for _, report := range reports {
		trips, failures = trips+report.Stats.Bucket.RoundTrips, failures+report.Stats.Bucket.Failures
		for _, n := range report.unexpected() {
			cut += n
		}
	}
	require.NotZero(t, failures)
	require.LessOrEqual(t, cut, cuts)
	require.LessOrEqual(t, scriptsRun(t, r), trips, "the server carried out each call once")
}

// scriptsRun returns how many scripts a server has run to their end.
func scriptsRun(t *testing.T, r *servers.Redis) (n uint64) {
	t.Helper()
	counts := regexp.MustCompile(`cmdstat_evalsha?:calls=(\d+),.*failed_calls=(\d+)`)
	for _, m := range counts.FindAllStringSubmatch(r.MustDo("INFO", "commandstats").(string), -1) {
		calls, err := strconv.ParseUint(m[1], 10, 64)
		require.NoError(t, err)
		failed, err := strconv.ParseUint(m[2], 10, 64)
		require.NoError(t, err)
		n += calls - failed
	}
	require.NotZero(t, n)
	return n
}

// With a server that is far, slots are leased so long before that round trips do not cost
// any.
func TestAFarServerDoesNotCostTheRate(t *testing.T) {
	t.Parallel()
	for _, jitter := range []time.Duration{0, 10 * time.Millisecond} {
		t.Run(fmt.Sprintf("20ms±%v", jitter), func(t *testing.T) {
			t.Parallel()
			proxy := servers.StartProxy(t, startRedis(t).Addr)
			proxy.SetDelay(20*time.Millisecond, jitter)
			f := startFleet(t, four(plan{Engine: redisEngine, Addrs: []string{proxy.Addr}, Key: "far", Rate: 1000, Waiters: 64, Slack: 60 * time.Millisecond}))
			f.runsAtItsRate(8 * time.Second)
		})
	}
}

// If slots may not be used for as long as a round trip takes, each would be dropped when it
// arrives, and the process would ask for ever.
func TestASlackBelowTheRoundTripIsRefused(t *testing.T) {
	t.Parallel()
	proxy := servers.StartProxy(t, startRedis(t).Addr)
	proxy.SetDelay(20*time.Millisecond, 0)
	f := startFleet(t, four(plan{Engine: redisEngine, Addrs: []string{proxy.Addr}, Key: "strict", Rate: 1000, Arrivals: 200, Slack: 5 * time.Millisecond,
		Patience: 400 * time.Millisecond}))
	f.runsFor(time.Second)
	for _, r := range f.waitsFor("each is refused for its Slack", func(r report) bool {
		return r.Stats.Bucket.State == shaper.BucketDown && strings.Contains(r.Broken, "Limits.Slack is 5ms")
	}) {
		most := 30 + uint64(time.Since(f.began).Seconds()) // It asks about every two seconds, not every 20 ms.
		require.Less(t, r.Stats.Bucket.RoundTrips, most, "it does not go on asking")
	}
	realtime.Until(t, func() bool { return len(f.log().only(unavailable)) > 0 }, "newcomers are refused")
	f.ends()
}

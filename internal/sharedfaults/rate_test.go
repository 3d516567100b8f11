package sharedfaults_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A busy machine may stop all processes for more than half a second. Where a test has to say
// when something happens that takes no time on a quiet machine, it allows for noise, and it
// wants no more of the rate than the part busy. No bound of G1 needs either; gaps and the
// whole rate are asserted in the long form.
const (
	noise = 500 * time.Millisecond
	busy  = 0.02
)

// d is the lateness of most fleets: a little more than the default, so that the tests show that
// Limits.Slack counts.
const d = 25 * time.Millisecond

// The batch k can't be set: it follows from how many wait and from the rate. With one waiter
// in each process k is 1, and every slot is leased by itself.
func TestProcessesTogetherNeverExceedTheRate(t *testing.T) {
	t.Parallel()
	r, db := startRedis(t), startPostgres(t)
	for _, row := range []struct {
		engine
		addr    string
		rate    float64
		burst   int
		waiters int
		slack   time.Duration
	}{
		{redisEngine, r.Addr, 3, 1, 4, 0},
		{redisEngine, r.Addr, 100, 1, 8, d},
		{redisEngine, r.Addr, 100, 1, 1, d}, // k = 1
		{redisEngine, r.Addr, 1000, 1, 32, d},
		{redisEngine, r.Addr, 1000, 50, 32, d},
		{redisEngine, r.Addr, 10_000, 1, 200, d},
		{postgresEngine, db.URL, 100, 1, 8, d},
		{postgresEngine, db.URL, 1000, 1, 32, d},
		{postgresEngine, db.URL, 10_000, 1, 200, d},
	} {
		t.Run(fmt.Sprintf("%v of %d per s burst %d by %d in each", row.engine, int(row.rate), row.burst, row.waiters), func(t *testing.T) {
			t.Parallel()
			f := startFleet(t, four(plan{Engine: row.engine, Addrs: []string{row.addr}, Key: t.Name(),
				Rate: row.rate, Burst: row.burst, Waiters: row.waiters, Slack: row.slack}))
			reports, l := f.runsAtItsRate(10 * time.Second)
			if !unloaded {
				return
			}
			if row.rate >= 100 {
				for _, share := range l.shares(4) {
					require.InDelta(t, 0.25, share, 0.05*0.25)
				}
			}
			if row.rate >= 1000 {
				require.Less(t, tripsPerDeparture(reports), 0.15)
			}
		})
	}
}

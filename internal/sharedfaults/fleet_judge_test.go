package sharedfaults_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/shaper/buckettest"
)

// Four workers with a bucket each let four times the rate leave. If the fleet and its judge
// did not notice that, none of the other tests would mean anything.
func TestProcessesThatDoNotShareAreTold(t *testing.T) {
	t.Parallel()
	addr := startRemote(t, buckettest.NewMemory())
	plans := four(plan{Engine: remoteEngine, Addrs: []string{addr}, Rate: 200, Waiters: 4, Slack: 25 * time.Millisecond})
	for i := range plans {
		plans[i].Key = fmt.Sprint("own-", i)
	}
	f := startFleet(t, plans)
	p := f.plan()
	f.warmsUp(500 * time.Millisecond)
	realtime.Until(t, func() bool { return p.pace().Check(f.log().departures()) != nil }, "they are told")
	_, l := f.ends()
	require.ErrorContains(t, p.pace().Check(l.departures()), "the pace was exceeded")
	for i := range plans {
		l.of(i).keepsPace(t, p)
	}
}

package sharedfaults_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/servers"
)

// The key's slot moves to another server, as when a server is added. Those who ask the old
// one are told where it is (ASK, MOVED), and go there.
func TestReshardingDoesNotLoseTheLevel(t *testing.T) {
	atLength(t)
	t.Parallel()
	c := servers.StartRedisCluster(t)
	f := startFleet(t, four(plan{Engine: clusterEngine, Addrs: c.Addrs, Key: "moves", Rate: 1000, Waiters: 16, Slack: d}))
	f.warmsUp(500 * time.Millisecond)
	from, to, key := findKey(t, c)
	for range 3 {
		moveSlot(t, key, from, to)
		f.runsFor(300 * time.Millisecond)
		from, to = to, from
	}
	end := f.reaches(0, f.began.Add(noise), f.plan().Rate*busy)
	reports, l := f.ends()
	l.keepsPace(t, f.plan())
	f.accounts(reports)
	require.Greater(t, l.rate(f.began.Add(noise), end), f.plan().Rate*busy)
	for _, r := range reports {
		require.Empty(t, r.unexpected(), "a server that redirects is no failure")
	}
}

// findKey returns the server that has the only key, and another.
func findKey(t *testing.T, c *servers.RedisCluster) (has, other *servers.Redis, key string) {
	t.Helper()
	for i, node := range c.Nodes {
		if keys := node.MustDo("KEYS", "*").([]any); len(keys) == 1 {
			return node, c.Nodes[(i+1)%len(c.Nodes)], keys[0].(string)
		}
	}
	t.Fatal("no server has the key")
	return nil, nil, ""
}

// moveSlot moves the slot of a key from one server to another while it is in use.
func moveSlot(t *testing.T, key string, from, to *servers.Redis) {
	t.Helper()
	slot := from.MustDo("CLUSTER", "KEYSLOT", key).(string)
	source, target := from.MustDo("CLUSTER", "MYID").(string), to.MustDo("CLUSTER", "MYID").(string)
	to.MustDo("CLUSTER", "SETSLOT", slot, "IMPORTING", source)
	from.MustDo("CLUSTER", "SETSLOT", slot, "MIGRATING", target)
	time.Sleep(50 * time.Millisecond)
	host, port := hostPort(t, to.Addr)
	from.MustDo("MIGRATE", host, port, key, "0", "60000")
	time.Sleep(50 * time.Millisecond) // Now the old server answers ASK.
	to.MustDo("CLUSTER", "SETSLOT", slot, "NODE", target)
	from.MustDo("CLUSTER", "SETSLOT", slot, "NODE", target)
}

// The sentinels find another master when theirs is gone, which takes about a second. It has
// what the replica had.
func TestAFailOverOfSentinelsIsNoLicence(t *testing.T) {
	atLength(t)
	t.Parallel()
	s := servers.StartSentinel(t)
	f := startFleet(t, four(plan{Engine: sentinelEngine, Addrs: s.Addrs, Master: s.Master, Key: "failover", Rate: 1000, Waiters: 16, Slack: d}))
	f.warmsUp(500 * time.Millisecond)
	s.KillMaster()
	at := time.Now()
	f.until("requests leave again", func() bool {
		last := f.log().only(departed)
		return last[len(last)-1].at.After(at.Add(500 * time.Millisecond))
	})
	back := time.Now()
	to := f.reaches(2500*time.Millisecond, back.Add(2*time.Second), f.plan().Rate*busy) // The next probe may be 2 s away.
	_, l := f.ends()
	l.keepsPace(t, f.plan())
	require.Greater(t, l.rate(back.Add(2*time.Second), to), f.plan().Rate*busy)
}

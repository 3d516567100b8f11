package sharedfaults_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/shaper"
)

// The breaker opens after three calls have failed, each of which waits for a quarter of a
// second.
const breaks = 750 * time.Millisecond

// startOutage starts an engine behind a proxy, and returns functions that make it silent
// and let it speak again.
func startOutage(t *testing.T, e engine, way string) (addr string, begin, end func()) {
	switch {
	case e == redisEngine && way == "paused":
		r := startRedis(t)
		return r.Addr, r.Pause, r.Resume
	case e == redisEngine:
		p := servers.StartProxy(t, startRedis(t).Addr)
		return p.Addr, func() { p.BlackHole(true) }, func() { p.BlackHole(false) }
	default:
		url, p := proxyPostgres(t, startPostgres(t))
		return url, func() { p.BlackHole(true) }, func() { p.BlackHole(false) }
	}
}

// Those in line wait on, newcomers learn at once that they need not wait, and nobody leaves
// until the server answers again. Then all leave at the rate.
func TestWithoutItsServerAFleetLetsNobodyLeave(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		engine
		way string
	}{{redisEngine, "paused"}, {redisEngine, "in a black hole"}, {postgresEngine, "in a black hole"}} {
		t.Run(string(row.engine)+" "+row.way, func(t *testing.T) {
			t.Parallel()
			addr, begin, end := startOutage(t, row.engine, row.way)
			f := startFleet(t, four(plan{Engine: row.engine, Addrs: []string{addr}, Key: "down", Rate: 400, Arrivals: 60, Slack: d}))
			p := f.plan()
			f.runsFor(600 * time.Millisecond)
			// If a busy machine lets nobody come before the breaker opens, the server goes away again.
			inLine := log{}
			for outage := 0; len(inLine) == 0 && outage < 5; outage++ {
				before := f.waitsForState(shaper.BucketShared)
				begin()
				from := time.Now()
				f.runsFor(breaks)
				down := f.waitsForState(shaper.BucketDown)
				for _, r := range down {
					require.NotEmpty(t, r.Broken)
				}
				// The latest call before may have taken its whole time on a busy machine, and its
				// slots are then late by that.
				silent := from.Add(p.ahead(before, down) + d + breaks/3)
				f.runsFor(max(0, time.Until(silent)) + 1500*time.Millisecond)
				realtime.Until(t, func() bool { return len(f.log().only(unavailable).between(from, time.Now())) > 0 }, "newcomers are refused")
				to := time.Now()
				end()
				f.waitsForState(shaper.BucketShared)
				f.until("who comes then leaves, after all who waited", func() bool {
					came := f.log().only(departed).where(func(e entry) bool { return e.came().After(to) })
					for i := range f.workers {
						if len(came.of(i)) == 0 {
							return false
						}
					}
					return true
				})
				l := f.log()
				require.Empty(t, l.only(departed).between(silent, to), "nobody leaves")
				inLine = l.only(departed).where(func(e entry) bool { return e.came().After(from) && e.at.After(to) })
			}
			require.NotEmpty(t, inLine, "who came before the breaker opened waits, and leaves later")
			reports, l := f.ends()
			l.keepsPace(t, p)
			for _, e := range l.only(unavailable) {
				require.Zero(t, e.waited, "it is refused when it comes")
			}
			require.Empty(t, l.only(refused))
			for _, r := range reports {
				require.Zero(t, r.Stats.Waiting)
			}
		})
	}
}

// While no process can ask, each lets an equal part of the rate leave, from when its last slot
// can't be used any more.
func TestWithoutItsServerAFleetKeepsTheRateByParts(t *testing.T) {
	t.Parallel()
	addr, begin, end := startOutage(t, redisEngine, "paused")
	f := startFleet(t, four(plan{Engine: redisEngine, Addrs: []string{addr}, Key: "local", Rate: 400, Waiters: 16, Slack: d,
		Fallback: shaper.FallbackLocal(4)}))
	p := f.plan()
	f.warmsUp(500 * time.Millisecond)
	f.waitsForState(shaper.BucketShared)
	begin()
	from := time.Now()
	f.waitsForState(shaper.BucketLocal)
	to := f.reaches(breaks+1500*time.Millisecond, from.Add(breaks+noise), p.Rate*busy)
	end()
	back, till := f.sharesFor(500 * time.Millisecond)
	_, l := f.ends()

	parts := p
	parts.Burst = 4 // Each process has a burst of at least 1.
	l.between(from, to).keepsPace(t, parts)
	own := p
	own.Rate /= 4
	for i := range 4 {
		l.of(i).between(from.Add(breaks), to).keepsPace(t, own)
	}
	require.Greater(t, l.rate(from.Add(breaks+noise), to), p.Rate*busy, "the fallback lets requests leave")
	// Those who can ask again have the whole rate, while others still have their parts.
	both := parts
	both.Rate *= 1 + 3./4
	l.keepsPace(t, both)
	l.between(back, till).keepsPace(t, p)
}

func TestWithoutItsServerAFleetCanHaveTheWholeRateEach(t *testing.T) {
	atLength(t)
	t.Parallel()
	addr, begin, end := startOutage(t, redisEngine, "paused")
	f := startFleet(t, four(plan{Engine: redisEngine, Addrs: []string{addr}, Key: "open", Rate: 400, Waiters: 16, Slack: d,
		Fallback: shaper.FallbackOpen}))
	p := f.plan()
	f.warmsUp(500 * time.Millisecond)
	f.waitsForState(shaper.BucketShared)
	begin()
	f.runsFor(breaks)
	f.waitsForState(shaper.BucketOpen)
	realtime.Until(t, func() bool {
		from := time.Now()
		f.runsFor(noise)
		return f.log().rate(from, time.Now()) > 2*p.Rate
	}, "they leave at the rates of several")
	end()
	back, till := f.sharesFor(500 * time.Millisecond)
	_, l := f.ends()
	for i := range 4 {
		l.of(i).keepsPace(t, p)
	}
	l.between(back, till).keepsPace(t, p)
}

// One process is cut off. What it has sent into the black hole arrives when that ends.
func TestAProcessThatIsCutOffDoesNotExceedTheRateWhenItIsBack(t *testing.T) {
	t.Parallel()
	for name, fallback := range map[string]shaper.Fallback{"closed": shaper.FallbackClosed, "local": shaper.FallbackLocal(4)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startRedis(t)
			proxy := servers.StartProxy(t, r.Addr)
			plans := four(plan{Engine: redisEngine, Addrs: []string{r.Addr}, Key: "partition", Rate: 1000, Waiters: 16, Slack: d, Fallback: fallback})
			plans[0].Addrs = []string{proxy.Addr}
			f := startFleet(t, plans)
			p := f.plan()
			f.warmsUp(500 * time.Millisecond)
			f.waitsForState(shaper.BucketShared)
			proxy.BlackHole(true)
			from := time.Now()
			silent := from.Add(p.time(4*p.held()) + d)
			f.runsFor(breaks + time.Second)
			realtime.Until(t, func() bool {
				if fallback == shaper.FallbackClosed {
					return f.workers[0].does(order{Do: tell}).Stats.Bucket.State == shaper.BucketDown
				}
				return len(f.log().of(0).only(departed).between(silent, time.Now())) > 0
			}, "it finds out, and uses its part if it has one")
			to := f.reaches(0, from.Add(noise), p.Rate*busy, 1, 2, 3)
			proxy.BlackHole(false)
			f.leaves(to)
			back, till := f.sharesFor(500 * time.Millisecond)
			f.leaves(back)
			reports, l := f.ends()

			require.Greater(t, l.but(0).rate(from.Add(noise), to), p.Rate*busy, "the others take over")
			alone := l.of(0).only(departed).between(silent, to)
			if fallback == shaper.FallbackClosed {
				l.but(0).keepsPace(t, p)
				l.keepsPace(t, p)
				require.Empty(t, alone)
			} else {
				part, others, both := p, p, p
				part.Rate /= 4
				alone.keepsPace(t, part)
				both.Rate *= 1 + 1./4
				both.Burst = 2
				for _, r := range reports[1:] {
					if r.Stats.Bucket.Failures >= 3 { // The machine has kept the server from the others too.
						both.Rate, both.Burst = p.Rate*(1+3./4), 4
						others = both
					}
				}
				l.but(0).keepsPace(t, others)
				l.keepsPace(t, both)
				l.between(back, till).keepsPace(t, p)
			}
			require.NotEmpty(t, l.of(0).only(departed).between(back, time.Now()), "it takes part again")
		})
	}
}

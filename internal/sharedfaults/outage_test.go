package sharedfaults_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/realtime"
	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/shaper"
)

// slots is for how long requests may leave in slots that were leased before an outage: these lie
// [shaper.MaxAhead] ahead at most, and the latest call before may have taken 250 ms.
const slots = shaper.MaxAhead + d + 250*time.Millisecond

// Those in line wait on, newcomers learn at once that they need not wait, and nobody leaves
// until the server answers again. Then all leave at the rate.
func TestWithoutItsServerAFleetLetsNobodyLeave(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		long  bool
		start func(t *testing.T, p *plan) (begin, end func())
	}{
		"paused": {start: func(t *testing.T, p *plan) (begin, end func()) {
			r := servers.StartRedis(t)
			p.Addr = r.Addr
			return r.Pause, r.Resume
		}},
		"in a black hole": {long: true, start: func(t *testing.T, p *plan) (begin, end func()) {
			proxy := servers.StartProxy(t, servers.StartRedis(t).Addr)
			p.Addr = proxy.Addr
			return func() { proxy.BlackHole(true) }, func() { proxy.BlackHole(false) }
		}},
		"PostgreSQL in a black hole": {long: true, start: func(t *testing.T, p *plan) (begin, end func()) {
			db := startPostgres(t)
			proxy := servers.StartProxy(t, db.Addr)
			p.Addr = strings.Replace(db.URL, db.Addr, proxy.Addr, 1)
			return func() { proxy.BlackHole(true) }, func() { proxy.BlackHole(false) }
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if row.long {
				atLength(t)
			}
			t.Parallel()
			p := plan{Key: "down", Rate: 400, Waiters: 16, Arrivals: 60, Slack: d}
			begin, end := row.start(t, &p)
			f := startFleet(t, four(p))
			begin()
			from := time.Now()
			f.waitsFor("each finds its bucket down", func(r report) bool {
				return r.Stats.Bucket.State == shaper.BucketDown && r.Broken != ""
			})
			silent := from.Add(slots)
			time.Sleep(time.Until(silent) + 300*time.Millisecond)
			realtime.Until(t, func() bool { return len(f.log().only(unavailable).between(from, time.Now())) > 0 }, "newcomers are refused")
			to := time.Now()
			end()
			f.waitsForState(shaper.BucketShared)
			f.leaves(to)
			reports, l := f.ends()
			l.keepsPace(t, p)
			require.Empty(t, l.only(departed).between(silent, to), "nobody leaves")
			waited := l.only(departed).where(func(e entry) bool { return e.came().Before(silent) && e.at.After(to) })
			require.NotEmpty(t, waited, "who is in line waits, and leaves later")
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
	r := servers.StartRedis(t)
	p := plan{Addr: r.Addr, Key: "local", Rate: 400, Waiters: 16, Slack: d, Fallback: shaper.FallbackLocal(4)}
	f := startFleet(t, four(p))
	f.waitsForState(shaper.BucketShared)
	r.Pause()
	from := time.Now()
	f.waitsForState(shaper.BucketLocal)
	silent := from.Add(slots)
	f.leaves(silent)
	to := time.Now()
	r.Resume()
	back, till := f.sharesFor(500 * time.Millisecond)
	_, l := f.ends()

	parts := p
	parts.Burst = 4 // Each process has a burst of at least 1.
	l.between(from, to).keepsPace(t, parts)
	own := p
	own.Rate /= 4
	for i := range 4 {
		l.of(i).between(silent, to).keepsPace(t, own)
	}
	// Processes that can ask again have the whole rate, while others still have their parts.
	both := parts
	both.Rate *= 1 + 3./4
	l.keepsPace(t, both)
	l.between(back, till).keepsPace(t, p)
}

// One process is cut off. Its calls arrive when the black hole ends.
func TestAProcessThatIsCutOffDoesNotExceedTheRateWhenItIsBack(t *testing.T) {
	t.Parallel()
	for name, fallback := range map[string]shaper.Fallback{"closed": shaper.FallbackClosed, "local": shaper.FallbackLocal(4)} {
		t.Run(name, func(t *testing.T) {
			if fallback == shaper.FallbackClosed {
				atLength(t)
			}
			t.Parallel()
			r := servers.StartRedis(t)
			proxy := servers.StartProxy(t, r.Addr)
			p := plan{Addr: r.Addr, Key: "partition", Rate: 1000, Waiters: 16, Slack: d, Fallback: fallback}
			plans := four(p)
			plans[0].Addr = proxy.Addr
			f := startFleet(t, plans)
			f.waitsForState(shaper.BucketShared)
			proxy.BlackHole(true)
			silent := time.Now().Add(slots)
			isLocal := fallback != shaper.FallbackClosed
			f.until("it finds out", func() bool { return f.workers[0].does(order{Do: tell}).Stats.Bucket.State != shaper.BucketShared })
			time.Sleep(time.Until(silent))
			f.leaves(silent, 1, 2, 3)
			if isLocal {
				f.leaves(silent, 0)
			}
			to := time.Now()
			proxy.BlackHole(false)
			back, till := f.sharesFor(500 * time.Millisecond)
			f.leaves(back)
			reports, l := f.ends()

			alone := l.of(0).only(departed).between(silent, to)
			if !isLocal {
				l.keepsPace(t, p)
				require.Empty(t, alone)
				return
			}
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
		})
	}
}

package sharedfaults_test

import (
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/shaper"
)

// patience is how long a test waits for what must come. A busy machine may stop processes, each
// for itself, for some seconds; so what a test says of a time it says of instants that it has
// measured, and never that something has happened after so long. Nothing takes longer than a
// fail-over.
const patience = servers.Failover

// until waits until a condition holds, and says what the workers tell if it never does.
func (f *fleet) until(what string, is func() bool) {
	f.t.Helper()
	for end := time.Now().Add(patience); !is(); f.runsFor(10 * time.Millisecond) {
		if time.Now().After(end) {
			require.FailNow(f.t, "never: "+what, "%+v", f.each(order{Do: tell}))
		}
	}
}

// runsFor lets the fleet run.
func (f *fleet) runsFor(d time.Duration) { f.watch.Sleep(d) }

// warmsUp lets the fleet run for d, and until requests of each worker that lives have left.
func (f *fleet) warmsUp(d time.Duration) {
	f.t.Helper()
	f.runsFor(d)
	f.leaves(f.began)
}

// leaves waits until a request of each worker that lives has left, from an instant on.
func (f *fleet) leaves(from time.Time) {
	f.t.Helper()
	f.until("requests of each worker leave", func() bool {
		l := f.log().only(departed)
		for i, m := range f.workers {
			if !m.dead && len(l.of(i).where(func(e entry) bool { return !e.at.Before(from) })) == 0 {
				return false
			}
		}
		return true
	})
}

// reaches lets the fleet run for d, and then until since an instant more than so many requests
// have left per second, of the given workers or of all. It returns the instant at which that is
// so, and requires that it is so soon after both; a fleet that never comes so far is left to the
// test.
func (f *fleet) reaches(d time.Duration, from time.Time, least float64, of ...int) (to time.Time) {
	f.t.Helper()
	recovered := f.promptly(of...)
	f.runsFor(d)
	expected := time.Now()
	if from.After(expected) {
		expected = from
	}
	for end := time.Now().Add(patience); ; f.runsFor(20 * time.Millisecond) {
		to = time.Now()
		l := f.log()
		if len(of) > 0 {
			var some []log
			for _, i := range of {
				some = append(some, l.of(i))
			}
			l = merge(some...)
		}
		if (to.After(from) && l.rate(from, to) > least) || to.After(end) {
			recovered(expected)
			return to
		}
	}
}

// waitsFor waits until all workers that live tell what a test waits for, and returns that.
func (f *fleet) waitsFor(what string, is func(report) bool) (reports []report) {
	f.t.Helper()
	f.until(what, func() bool {
		reports = f.each(order{Do: tell})
		for _, r := range reports {
			if !is(r) {
				return false
			}
		}
		return true
	})
	return reports
}

// waitsForState waits until each worker that lives finds its bucket in a state, and returns
// what they tell: soon. In the state [shaper.BucketShared] the latest call of each has succeeded.
func (f *fleet) waitsForState(s shaper.BucketState) []report {
	f.t.Helper()
	recovered, from := f.promptly(), time.Now()
	reports := f.waitsFor("each finds its bucket "+string(s), func(r report) bool {
		return r.Stats.Bucket.State == s && (s != shaper.BucketShared || r.Broken == "")
	})
	recovered(from)
	return reports
}

// ahead returns how far ahead the slots may be, at most, that a fleet of workers with this plan has
// leased, by what each has told before its server went away and what it tells now. If round trips
// were long, batches were too, and what a call without an answer has taken is lost: then it is
// what the shaper promises.
func (p plan) ahead(before, now []report) time.Duration {
	for i := range now {
		if len(before[i].Errors) > 0 || now[i].Batch > p.held()/2 {
			return shaper.MaxAhead
		}
	}
	return p.time(int64(len(now)) * p.held())
}

// waitsForRate waits until each worker that lives has a rate in force.
func (f *fleet) waitsForRate(rate float64) []report {
	f.t.Helper()
	return f.waitsFor("each has the rate in force", func(r report) bool {
		d := float64(r.Stats.Limits.Rate) - rate
		return -1e-6 < d && d < 1e-6
	})
}

// sharesFor waits until all find their bucket shared, lets the fleet run for d, and returns the
// instants between which it has. It does so again if so many calls of a process have failed
// that it may have had to do without the bucket for a while: the machine was too busy.
func (f *fleet) sharesFor(d time.Duration) (from, to time.Time) {
	f.t.Helper()
	for range 30 {
		before := f.waitsForState(shaper.BucketShared)
		from = time.Now()
		f.runsFor(d)
		to = time.Now()
		failed := uint64(0)
		for i, r := range f.each(order{Do: tell}) {
			failed = max(failed, r.Stats.Bucket.Failures-before[i].Stats.Bucket.Failures)
		}
		if failed < 3 {
			return from, to
		}
	}
	require.FailNow(f.t, "calls fail again and again")
	return from, to
}

package shaper_test

import (
	"cmp"
	"context"
	"fmt"
	"golang.org/x/time/rate"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
	"example.com/leakybucket/shaper/shared"
)

// This file holds what a cap of all processes promises. Times are those of the bubble, from its start.

// A seatFleet is several processes that share a cap.
type seatFleet struct {
	*buckettest.Memory
	t     *testing.T
	start time.Time
	cap   int
	all   []*seatProcess
	lost  []time.Duration // when the bucket has lost its state
	wg    sync.WaitGroup  // of calls
}

// A seatProcess is one of them.
type seatProcess struct {
	*shaper.Shaper
	*seatLink
	fleet *seatFleet

	mu    sync.Mutex
	calls []*seatCall // in the order in which they came
}

// A seatCall is a call of a process. Times are -1 until they have come.
type seatCall struct {
	came, left, ended time.Duration
	err               error
}

// A seatLink is the way of one process to the bucket.
type seatLink struct {
	*buckettest.Memory
	start time.Time

	mu        sync.Mutex
	cut       bool          // no call reaches the bucket
	hangs     bool          // no call of Seats does
	stops     time.Duration // for so long the process does not see the answers to Seats, whatever its context
	questions []seatQuestion
}

// A seatQuestion is a call of Seats, with the times between which it was made.
type seatQuestion struct {
	sent, seen time.Duration // seen is -1 until it has come
	asked      shared.Seating
	got        shared.Seated
	err        error
}

// String returns when the question was asked, how many seats it keeps and wants, how many it has got and its target.
func (q seatQuestion) String() string {
	if q.err != nil {
		return fmt.Sprintf("%v: keeps %d, wants %d: lost", q.sent, q.asked.Held, q.asked.Want)
	}
	return fmt.Sprintf("%v: keeps %d, wants %d: has %d of %d", q.sent, q.asked.Held, q.asked.Want, q.got.Held, q.got.Target)
}

// way returns whether a call does not arrive, and for how long its answer is not seen.
func (l *seatLink) way(isSeats bool) (lost bool, stops time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cut || l.hangs && isSeats, l.stops
}

// set changes the way.
func (l *seatLink) set(change func(l *seatLink)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(l)
}

// Seats implements [shared.Seater].
func (l *seatLink) Seats(ctx context.Context, q shared.Seating) (got shared.Seated, err error) {
	l.mu.Lock()
	i := len(l.questions)
	l.questions = append(l.questions, seatQuestion{sent: time.Since(l.start), seen: -1, asked: q})
	l.mu.Unlock()
	lost, stops := l.way(true)
	if lost {
		<-ctx.Done()
		err = ctx.Err()
	} else {
		got, err = l.Memory.Seats(ctx, q)
		time.Sleep(stops)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.questions[i].seen, l.questions[i].got, l.questions[i].err = time.Since(l.start), got, err
	return got, err
}

// Take implements [shared.Bucket].
func (l *seatLink) Take(ctx context.Context, t shared.Take) (shared.Taken, error) {
	if lost, _ := l.way(false); lost {
		<-ctx.Done()
		return shared.Taken{}, ctx.Err()
	}
	return l.Memory.Take(ctx, t)
}

// GiveBack implements [shared.Bucket].
func (l *seatLink) GiveBack(ctx context.Context, t shared.Take, end shared.Instant) error {
	if lost, _ := l.way(false); lost {
		<-ctx.Done()
		return ctx.Err()
	}
	return l.Memory.GiveBack(ctx, t, end)
}

// seatings returns the questions that have been asked since a time.
func (l *seatLink) seatings(since time.Duration) (all []seatQuestion) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, q := range l.questions {
		if q.sent >= since {
			all = append(all, q)
		}
	}
	return all
}

// told returns those questions as text.
func (l *seatLink) told(since time.Duration) (all []string) {
	for _, q := range l.seatings(since) {
		all = append(all, q.String())
	}
	return all
}

// withSeats runs a timeline in a bubble with a fleet of so many processes, whose way to the bucket takes 2 ms. The key
// is not new.
func withSeats(t *testing.T, cap, n int, limits string, timeline func(f *seatFleet), opts ...any) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &seatFleet{Memory: buckettest.NewMemory(), t: t, start: time.Now(), cap: cap}
		f.SetDelay(ms, ms)
		f.ready()
		for range n {
			f.add(limits, opts...)
		}
		timeline(f)
		for _, p := range f.all {
			require.NoError(t, p.Close())
		}
		f.wg.Wait()
		time.Sleep(time.Second) // The last calls have given their seats back.
	})
}

// ready makes the bucket give seats from now on.
func (f *seatFleet) ready() { f.SetSeats("k", shared.SeatState{Ready: 1}) }

// add adds a process.
func (f *seatFleet) add(limits string, opts ...any) *seatProcess {
	f.t.Helper()
	o, others := apart[shaper.Option](opts)
	o.InFlight = f.cap
	p := &seatProcess{fleet: f, seatLink: &seatLink{Memory: f.Memory, start: f.start}}
	p.Shaper = must(shaper.New(must(shaper.ParseLimits(limits)), append([]shaper.Option{shaper.WithBucket(p.seatLink, "k", o)}, others...)...))
	f.all = append(f.all, p)
	return p
}

// call makes a call that takes so long once it has left.
func (p *seatProcess) call(ctx context.Context, takes time.Duration) error {
	c := &seatCall{came: time.Since(p.fleet.start), left: -1, ended: -1}
	p.mu.Lock()
	p.calls = append(p.calls, c)
	p.mu.Unlock()
	release, err := p.Acquire(ctx, 1)
	p.mu.Lock()
	if c.err = err; err == nil {
		c.left = time.Since(p.fleet.start)
	}
	p.mu.Unlock()
	if err != nil {
		return err
	}
	time.Sleep(takes)
	p.mu.Lock()
	c.ended = time.Since(p.fleet.start)
	p.mu.Unlock()
	release()
	return nil
}

// come makes so many calls come, one after the other.
func (p *seatProcess) come(n int, takes time.Duration) {
	for range n {
		p.fleet.wg.Go(func() { _ = p.call(context.Background(), takes) })
		synctest.Wait()
	}
}

// saturate keeps so many calls in line or in flight, until stop is called.
func (p *seatProcess) saturate(callers int, takes time.Duration) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := p.call(ctx, takes); err != nil && ctx.Err() == nil {
					time.Sleep(10 * ms)
				}
			}
		})
		synctest.Wait()
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

// history returns a copy of the calls.
func (p *seatProcess) history() (all []seatCall) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.calls {
		all = append(all, *c)
	}
	return all
}

// lefts returns when calls have left since a time.
func (p *seatProcess) lefts(since time.Duration) (all []time.Duration) {
	for _, c := range p.history() {
		if c.left >= since {
			all = append(all, c.left.Round(ms)) // A slot may be a few microseconds later than the millisecond, as clocks drift.
		}
	}
	slices.Sort(all)
	return all
}

// inFlight returns how many calls are in flight.
func (p *seatProcess) inFlight() int { return p.Stats().InFlight }

// at lets time pass until d.
func (f *seatFleet) at(d time.Duration) {
	time.Sleep(d - time.Since(f.start))
	synctest.Wait()
}

// quick are Limits by which the level keeps nobody.
const quick = "10000/s burst 10000 depth 999"

// A process asks at once, and after 3.3 s renews the seats of which it has made use since. If it has made none it gives them
// back, asks no more, and nothing runs (the bubble sees to that).
func TestSeatsAreRenewedWhileTheyAreUsed(t *testing.T) {
	withSeats(t, 4, 1, quick, func(f *seatFleet) {
		p := f.all[0]
		p.come(1, 5*time.Second)
		f.at(time.Second)
		p.come(2, 3*time.Second)
		f.at(time.Hour)
		require.Equal(t, []string{
			"0s: keeps 0, wants 1: has 1 of 4",
			"1s: keeps 1, wants 2: has 2 of 4",
			"1.002s: keeps 2, wants 3: has 3 of 4",
			"4.302s: keeps 3, wants 3: has 3 of 4",
			"7.602s: keeps 1, wants 1: has 1 of 4", // Some have been used since.
			"10.902s: keeps 0, wants 0: has 0 of 4",
		}, p.told(0))
		require.Equal(t, []time.Duration{4 * ms, 1004 * ms, 1006 * ms}, p.lefts(0), "a round trip for the seat, and one for the first slot")
		st := p.Stats().Bucket
		require.Zero(t, st.Seats)
		require.Equal(t, 4, st.SeatsTarget)

		p.come(1, ms) // It is as new.
		f.at(time.Hour + 10*time.Second)
		require.Equal(t, []string{
			"1h0m0s: keeps 0, wants 1: has 1 of 4",
			"1h0m3.3s: keeps 1, wants 1: has 1 of 4",
			"1h0m6.6s: keeps 0, wants 0: has 0 of 4",
		}, p.told(time.Hour))
	})
}

// A key that is new gives no seats for 3.6 s, and the first request leaves then.
func TestTheFirstSeatOfANewKeyComesAfterTheGuard(t *testing.T) {
	withSeats(t, 4, 1, quick, func(f *seatFleet) {
		f.Wipe()
		p := f.all[0]
		p.come(2, time.Second)
		f.at(4 * time.Second)
		require.Equal(t, []string{
			"0s: keeps 0, wants 1: has 0 of 4",
			"1s: keeps 0, wants 2: has 0 of 4",
			"2s: keeps 0, wants 2: has 0 of 4",
			"3s: keeps 0, wants 2: has 0 of 4",
			"3.602s: keeps 0, wants 2: has 2 of 4",
		}, p.told(0))
		require.Equal(t, []time.Duration{3606 * ms, 3606 * ms}, p.lefts(0))
	})
}

// The lease lasts 10 s from when it was asked for, however long the answer took, and a departure after its end is
// impossible, whichever way it would come: also while the process is waiting for an answer, so that nothing tells it of the
// end. Calls in flight go on, and are counted as held by the next question.
func TestNobodyLeavesAfterTheLeaseHasEnded(t *testing.T) {
	for _, answer := range []time.Duration{0, 2 * time.Second} {
		withSeats(t, 4, 1, "1/s depth 99", func(f *seatFleet) {
			p := f.all[0]
			p.set(func(l *seatLink) { l.stops = answer })
			p.come(12, 2*time.Second)
			p.come(1, time.Minute)
			p.come(40, 2*time.Second)
			f.at(17 * time.Second)
			p.set(func(l *seatLink) { l.hangs = true })
			f.at(33 * time.Second)
			p.set(func(l *seatLink) { l.hangs = false })
			var last, lost seatQuestion
			for _, q := range p.seatings(0) {
				if q.err != nil {
					lost = q
					break
				}
				last = q
			}
			ends := last.sent + 10*time.Second
			require.Less(t, lost.sent+6*time.Second, ends)
			require.Less(t, ends, lost.sent+10*time.Second)
			f.at(lost.sent + 10*time.Second - 1)
			require.NotEmpty(t, p.lefts(ends-2*time.Second))
			for _, left := range p.lefts(0) {
				require.Less(t, left, ends)
			}
			require.Equal(t, 1, p.inFlight())
			f.at(lost.sent + 10*time.Second + 10*ms + answer)
			next := p.seatings(lost.sent + 1)[0]
			require.Equal(t, 1, next.asked.Held, "the call in flight")
			require.Zero(t, next.asked.Answered)
			f.at(2 * time.Minute)
			require.Len(t, p.lefts(0), 53)
		}, shared.Options{Timeout: 10 * time.Second, Patience: -1})
	}
}

// A question tells the latest answer, also of a process that waits and has no seats, until its lease has ended or it has said
// that it needs none: so that an older state gives no seats before all have said what they hold.
func TestAQuestionTellsTheLatestAnswer(t *testing.T) {
	withSeats(t, 1, 2, quick, func(f *seatFleet) {
		a, b := f.all[0], f.all[1]
		a.come(1, 12*time.Second)
		f.at(time.Second)
		b.come(1, time.Second)
		f.at(time.Minute)
		b.come(1, time.Second)
		f.at(2 * time.Minute)
		for _, p := range f.all {
			latest := int64(0)
			for _, q := range p.seatings(0) {
				require.Equal(t, latest, q.asked.Answered, "%v", q)
				require.Greater(t, q.asked.Number, latest)
				if latest = q.asked.Number; q.asked.Held+q.asked.Want == 0 {
					latest = 0
				}
			}
		}
		require.Len(t, b.lefts(0), 2)
	})
}

// Whoever waits for a seat asks each second, and one that has some and uses them each 3.3 s.
func TestWhoWaitsAsksEachSecond(t *testing.T) {
	withSeats(t, 2, 2, quick, func(f *seatFleet) {
		a, b := f.all[0], f.all[1]
		a.come(2, 11*time.Second)
		f.at(5 * time.Second)
		b.come(1, time.Second)
		f.at(20 * time.Second)
		require.Equal(t, []string{
			"0s: keeps 0, wants 1: has 1 of 2",
			"2ms: keeps 1, wants 2: has 2 of 2",
			"3.302s: keeps 2, wants 2: has 2 of 2",
			"6.602s: keeps 2, wants 2: has 2 of 1",
			"9.902s: keeps 2, wants 2: has 2 of 1",
			"11.004s: keeps 1, wants 1: has 1 of 1", // Its turn is over, so the first call that ends gives up its seat,
			"14.304s: keeps 1, wants 1: has 1 of 2", // and the other one is idle.
			"17.604s: keeps 0, wants 0: has 0 of 2",
		}, a.told(0))
		require.Equal(t, []string{
			"5s: keeps 0, wants 1: has 0 of 2",
			"6s: keeps 0, wants 1: has 0 of 2",
		}, b.told(0)[:2])
		require.Equal(t, []time.Duration{11606 * ms}, b.lefts(0))
	})
}

// Fewer seats than processes are used in turns of 5 s, also by calls that are short.
func TestFewerSeatsThanProcessesTakeTurns(t *testing.T) {
	for _, takes := range []time.Duration{100 * ms, 700 * ms, 4 * time.Second} {
		withSeats(t, 2, 0, quick, func(f *seatFleet) {
			var stops []func()
			for i := range 4 {
				f.at(time.Duration(i) * 230 * ms)
				stops = append(stops, f.add(quick).saturate(5, takes))
			}
			f.at(3 * time.Minute)
			all := 0
			for _, p := range f.all {
				n := len(p.lefts(0))
				require.Greater(t, float64(n), 0.8*2*180/takes.Seconds()/4, "each gets its turn")
				all += n
			}
			require.Greater(t, float64(all), 0.9*2*180/(takes+2*ms).Seconds(), "%v; each asks for its slot", takes)
			for _, stop := range stops {
				stop()
			}
		})
	}
}

// While others wait a process keeps no seat that was idle in the mean since it asked last.
func TestSeatsThatAreIdleInTheMeanGoToWhoWaits(t *testing.T) {
	withSeats(t, 4, 2, quick, func(f *seatFleet) {
		a, b := f.all[0], f.all[1]
		a.come(4, 4*time.Second)
		f.at(5 * time.Second)
		stop := a.saturate(1, 500*ms) // One of its seats is in use from now on.
		f.at(6 * time.Second)
		b.come(3, time.Minute)
		f.at(20 * time.Second)
		stop()
		require.Equal(t, []string{
			"6.602s: keeps 4, wants 1: has 4 of 1", // It did not know of the others, and used all at a time.
		}, a.told(6 * time.Second)[:1])
		require.Equal(t, 1, a.Stats().Bucket.Seats)
		require.Len(t, b.lefts(0), 3)
		require.Less(t, b.lefts(0)[2], 11*time.Second, "free within a renewal, and polled within a second")
	})
}

// When its turn is over, a process that has more than its target lets nobody leave until it has come down to it: a call that
// ends gives its seat back. A seat is given back once, and is not used after it has been: also if nobody knows whether the
// question that gave it back has arrived.
func TestASeatThatIsGivenBackIsNotUsed(t *testing.T) {
	for _, fault := range []buckettest.Fault{buckettest.NoFault, buckettest.LoseRequest, buckettest.LoseReply, buckettest.FailBefore, buckettest.FailAfter} {
		withSeats(t, 4, 2, quick, func(f *seatFleet) {
			a, b := f.all[0], f.all[1]
			a.come(4, 8*time.Second)
			a.come(4, 20*time.Second)
			f.at(5 * time.Second)
			b.come(4, 20*time.Second)
			f.at(7900 * ms)
			var asked atomic.Bool
			f.Fail(func(_ int, op string) buckettest.Fault {
				if op != "Seats" || time.Since(f.start) < 8*time.Second || !asked.CompareAndSwap(false, true) {
					return buckettest.NoFault
				}
				return fault
			})
			f.at(25 * time.Second)
			require.True(t, asked.Load())
			require.Empty(t, f.complaint())
			require.Equal(t, 2, a.inFlight(), "its target")
			require.Equal(t, 2, b.inFlight())
			for _, left := range b.lefts(0) {
				require.Less(t, left, 9100*ms)
			}
			f.at(time.Minute)
			require.Equal(t, []int{8, 4}, []int{len(a.lefts(0)), len(b.lefts(0))})
		})
	}
}

// From when a question says how many seats are kept no more are used until its answer has come: others may have got the rest,
// also if the answer is lost.
func TestNoMoreSeatsAreUsedThanAQuestionKeeps(t *testing.T) {
	for _, loses := range []bool{false, true} {
		withSeats(t, 4, 2, quick, func(f *seatFleet) {
			a, b := f.all[0], f.all[1]
			a.come(3, time.Second)
			a.come(1, time.Minute)
			f.at(6590 * ms)
			a.set(func(l *seatLink) { l.stops = 200 * ms })
			if loses {
				f.Fail(faultOf(buckettest.LoseReply))
			}
			f.at(6605 * ms) // The question has arrived, and its answer has not.
			f.Fail(nil)
			require.Equal(t, 1, a.seatings(6590 * ms)[0].asked.Held, "no more have been in use since 3.3 s")
			b.come(3, time.Minute)
			a.come(5, time.Second)
			f.at(6700 * ms)
			require.Equal(t, []int{1, 3}, []int{a.inFlight(), b.inFlight()})
			f.at(7500 * ms)
			a.set(func(l *seatLink) { l.stops = 0 })
			f.at(20 * time.Second)
			require.Empty(t, f.complaint())
			require.Equal(t, 5, a.Stats().Waiting+len(a.lefts(2*time.Second)))
		})
	}
}

// A crash frees seats after 10 s.
func TestACrashFreesSeatsAfterTheirLease(t *testing.T) {
	withSeats(t, 2, 2, quick, func(f *seatFleet) {
		a, b := f.all[0], f.all[1]
		a.come(2, time.Hour)
		f.at(5 * time.Second)
		asked := a.seatings(0)
		a.set(func(l *seatLink) { l.cut = true })
		b.come(2, time.Second)
		f.at(30 * time.Second)
		ends := asked[len(asked)-1].sent + shared.SeatLease
		lefts := b.lefts(0)
		require.Len(t, lefts, 2)
		require.GreaterOrEqual(t, lefts[0], ends)
		require.Less(t, lefts[0], ends+1100*ms)
		require.Empty(t, f.complaint())
		a.set(func(l *seatLink) { l.cut = false })
		f.at(40 * time.Second)
		require.Equal(t, 2, a.Stats().Bucket.Seats, "what is in use counts again")
		b.come(1, time.Second)
		f.at(50 * time.Second)
		require.Len(t, b.lefts(0), 2)
		require.Equal(t, 1, b.Stats().Waiting)
	})
}

// While the store is away seats last until the lease ends, and then the fallback says how many requests may be in flight.
// When it is back, the next answer ends that, and what is in flight beyond the seats that it gave stays counted.
func TestAnOutageEndsTheSeatsAndBeginsTheFallback(t *testing.T) {
	for _, c := range []struct {
		fallback shared.Fallback
		cap      int
		inflight string
		most     int
	}{
		{shared.FallbackClosed, 8, "", 0},
		{shared.FallbackLocal(3), 8, "", 2},
		{shared.FallbackLocal(30), 8, "", 1},
		{shared.FallbackOpen, 8, "", 8},
		{shared.FallbackOpen, 8, " inflight 5", 5},
	} {
		withSeats(t, c.cap, 2, quick+c.inflight, func(f *seatFleet) {
			a, b := f.all[0], f.all[1]
			b.come(3, 100*time.Second)
			stop := a.saturate(20, time.Second)
			defer stop()
			f.at(20 * time.Second)
			before := a.inFlight()
			require.Equal(t, 5, before)
			a.set(func(l *seatLink) { l.cut = true })
			var last seatQuestion
			for _, q := range a.seatings(0) {
				if q.err == nil {
					last = q
				}
			}
			f.at(last.sent + shared.SeatLease - 10*ms)
			if c.fallback != shared.FallbackClosed { // Else there are no slots.
				require.Equal(t, before, a.inFlight(), "%+v", c)
			}
			f.at(last.sent + shared.SeatLease + 260*ms)
			if c.most > before {
				require.Equal(t, c.most, a.inFlight(), "at once, or when a call that is under way has failed")
			}
			f.at(last.sent + shared.SeatLease + 1100*ms)
			require.Equal(t, c.most, a.inFlight(), "%+v", c)
			f.at(40 * time.Second)
			require.Equal(t, c.most, a.inFlight(), "%+v", c)
			a.set(func(l *seatLink) { l.cut = false })
			f.at(43 * time.Second)
			for _, q := range a.seatings(40 * time.Second) {
				if q.err == nil {
					require.Equal(t, c.most, q.asked.Held, "those that are in flight")
					break
				}
			}
			f.at(46 * time.Second)
			require.Equal(t, 5, a.Stats().Bucket.Seats, "%+v", c)
		}, shared.Options{Fallback: c.fallback, Patience: -1})
	}
}

// A key at rate.Inf is limited by the cap alone, and an outage is one for it, too.
func TestAnOutageIsOneForAKeyThatHasTheCapAlone(t *testing.T) {
	for _, c := range []struct {
		fallback shared.Fallback
		most     int // in flight during the outage
	}{
		{shared.FallbackClosed, 0},
		{shared.FallbackLocal(3), 3},
		{shared.FallbackOpen, 9},
	} {
		synctest.Test(t, func(t *testing.T) {
			link := &seatLink{Memory: buckettest.NewMemory(), start: time.Now(), cut: true}
			link.SetSeats("k", shared.SeatState{Ready: 1})
			g := sharedGroupOf(t, link, func(string) (shaper.Limits, error) { return shaper.Limits{Rate: rate.Inf, Depth: 20}, nil },
				shared.Options{InFlight: 9, Fallback: c.fallback, Patience: 2 * time.Second})
			k := g.Limiter("k")
			call := func() error {
				return k.Do(context.Background(), 1, func(context.Context) error { time.Sleep(20 * time.Second); return nil })
			}
			ended := make(chan error, 50)
			come := func(n int) {
				for range n {
					go func() { ended <- call() }()
				}
			}
			come(20)
			time.Sleep(5 * time.Second)
			st := k.Stats()
			require.Equal(t, []int{c.most, c.most}, []int{st.InFlight, st.Bucket.Seats}, "%+v", c)
			if c.fallback == shared.FallbackClosed {
				require.Len(t, ended, 20, "their patience has ended")
				come(20) // One may try, and the others are refused as they come.
				synctest.Wait()
				require.Len(t, ended, 39)
				time.Sleep(3 * time.Second)
				for range 40 {
					require.Equal(t, shaper.ErrUnavailable, refusal(t, <-ended).Reason)
				}
			}
			link.set(func(l *seatLink) { l.cut = false })
			time.Sleep(3 * time.Second)
			if c.fallback == shared.FallbackClosed {
				come(1)
				time.Sleep(10 * ms)
				come(19)
			}
			time.Sleep(2 * time.Second)
			st = k.Stats()
			require.Equal(t, []int{9, 9}, []int{st.InFlight, st.Bucket.Seats}, "%+v", c)
			require.Equal(t, shared.StateShared, st.Bucket.State)
			time.Sleep(time.Minute)
			require.Zero(t, k.Stats().InFlight)
		})
	}
}

// Calls of Seats and of Take have one circuit breaker: three that fail in a row begin an outage, and an answer ends it.
func TestFailuresOfSeatsBeginAnOutage(t *testing.T) {
	withSeats(t, 1, 2, quick, func(f *seatFleet) {
		a, b := f.all[0], f.all[1]
		a.come(1, 30*time.Second)
		b.set(func(l *seatLink) { l.hangs = true })
		b.come(1, time.Second)
		f.at(751 * ms)
		st := b.Stats().Bucket
		require.Equal(t, shared.StateDown, st.State)
		require.ErrorIs(t, st.Err, context.DeadlineExceeded)
		require.EqualValues(t, 3, st.Failures)
		require.Equal(t, shaper.ErrUnavailable, refusal(t, b.call(context.Background(), 0)).Reason)
		f.at(6 * time.Second)
		require.Equal(t, shaper.ErrUnavailable, refusal(t, b.history()[0].err).Reason, "its patience has ended")
		b.set(func(l *seatLink) { l.hangs = false })
		b.come(1, time.Second)
		f.at(9 * time.Second)
		b.come(1, time.Second)
		f.at(10 * time.Second)
		require.Equal(t, shared.StateShared, b.Stats().Bucket.State)
	}, shared.Options{Patience: time.Second})
}

// Close gives back what is not in use at once, and the rest as the calls end. Shutdown lets the line leave first.
func TestCloseGivesSeatsBack(t *testing.T) {
	withSeats(t, 4, 2, quick, func(f *seatFleet) {
		a, b := f.all[0], f.all[1]
		a.come(2, 100*ms)
		a.come(2, 5*time.Second)
		f.at(time.Second)
		require.NoError(t, a.Close())
		require.Equal(t, "1s: keeps 2, wants 2: has 2 of 4", a.told(time.Second)[0])
		b.come(4, time.Minute)
		f.at(4 * time.Second)
		require.Equal(t, 2, b.inFlight())
		f.at(8 * time.Second)
		require.Equal(t, 4, b.inFlight())
		require.Empty(t, f.complaint())
	})
	withSeats(t, 2, 2, quick, func(f *seatFleet) {
		a, b := f.all[0], f.all[1]
		a.come(6, time.Second)
		f.at(500 * ms)
		require.NoError(t, a.Shutdown(context.Background()))
		require.Equal(t, 2*time.Second, time.Since(f.start).Round(100*ms))
		f.at(4 * time.Second)
		require.Len(t, a.lefts(0), 6)
		b.come(2, time.Second)
		f.at(4*time.Second + 10*ms)
		require.Equal(t, 2, b.inFlight())
	})
}

// A Group that has been closed gives back seats as its calls end, too, each once, and then nothing of it stays.
func TestAClosedGroupGivesSeatsBackAsCallsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		link := &seatLink{Memory: buckettest.NewMemory(), start: time.Now()}
		link.SetSeats("k", shared.SeatState{Ready: 1})
		g := sharedGroupOf(t, link, func(string) (shaper.Limits, error) { return shaper.ParseLimits(quick) }, shared.Options{InFlight: 2})
		one, other := must(g.Acquire(context.Background(), "k", 1)), must(g.Acquire(context.Background(), "k", 1))
		require.NoError(t, g.Close())
		for _, end := range []func(){one, one, other, one, other} {
			time.Sleep(time.Second)
			end()
			synctest.Wait()
		}
		require.Equal(t, []string{"1s: keeps 1, wants 1: has 1 of 2", "3s: keeps 0, wants 0: has 0 of 2"}, link.told(ms))
	})
}

// With a Depth of 0 a call asks for a seat in one round trip, as it asks the level, and is refused if there is none.
func TestACallThatMustNotWaitAsksForASeat(t *testing.T) {
	withSeats(t, 2, 2, "10000/s burst 10000", func(f *seatFleet) {
		a, b := f.all[0], f.all[1]
		require.Equal(t, 10000, a.Stats().Free)
		for range 2 {
			f.wg.Go(func() { _ = a.call(context.Background(), 4*time.Second) })
		}
		f.at(100 * ms)
		require.Equal(t, 2, a.inFlight())
		for range 3 {
			f.wg.Go(func() { _ = b.call(context.Background(), time.Second) })
		}
		f.at(200 * ms)
		require.LessOrEqual(t, len(b.seatings(0)), 2, "those that come meanwhile are asked for together")
		for _, c := range b.history() {
			why := refusal(t, c.err)
			require.Equal(t, shaper.ErrQueueFull, why.Reason)
			require.GreaterOrEqual(t, why.RetryAfter, time.Second)
		}
		require.Equal(t, shaper.ErrQueueFull, refusal(t, a.call(context.Background(), 0)).Reason)
		require.EqualValues(t, 1, a.Stats().QueueFull)

		ctx, cancel := context.WithCancel(context.Background())
		b.set(func(l *seatLink) { l.stops = time.Second })
		f.wg.Go(func() { _ = b.call(ctx, time.Second) })
		f.at(300 * ms)
		cancel()
		f.at(301 * ms)
		require.ErrorIs(t, b.history()[3].err, context.Canceled, "it need not wait for the answer")
		require.EqualValues(t, 1, b.Stats().Abandoned)
		f.at(2 * time.Second)
		b.set(func(l *seatLink) { l.stops = 0 })

		f.at(5 * time.Second)
		require.NoError(t, a.call(context.Background(), ms), "its seats are still its own")
		f.at(20 * time.Second)
		for range 3 {
			f.wg.Go(func() { _ = b.call(context.Background(), time.Second) })
		}
		f.at(20100 * ms)
		require.Equal(t, 2, b.inFlight())
		require.EqualValues(t, 4, b.Stats().QueueFull)
		f.at(30 * time.Second)
		b.set(func(l *seatLink) { l.cut = true })
		f.at(50 * time.Second)
		require.Equal(t, shaper.ErrUnavailable, refusal(t, b.call(context.Background(), 0)).Reason)
		require.Zero(t, b.inFlight())
	})
}

// How many seats a process wants: those in use, the free ones that the line takes, and one for each in line that its seats
// will not reach within a second.
func TestWantCountsThoseWhomSeatsWillNotReach(t *testing.T) {
	for _, c := range []struct {
		takes  time.Duration // the calls until now, in the mean
		limits string
		line   int // of the process, which has one seat of all, and that is in use
		wants  int
	}{
		{10 * time.Second, quick, 5, 6},
		{100 * ms, quick, 5, 1},
		{100 * ms, quick, 15, 1 + 5},
		{500 * ms, quick, 15, 1 + 13},
		{100 * ms, quick, 90, 20},                     // No more than there are.
		{100 * ms, quick + " inflight 4", 90, 4},      // Nor than it may use.
		{10 * time.Second, "2/s depth 99", 15, 1 + 3}, // No more can leave in this time.
	} {
		withSeats(t, 20, 1, quick, func(f *seatFleet) {
			f.all[0].come(19, time.Hour)
			f.at(time.Second)
			p := f.add(c.limits)
			stop := p.saturate(1+c.line, c.takes)
			f.at(30 * time.Second)
			stop()
			asked := p.seatings(0)
			require.Equal(t, c.wants, asked[len(asked)-1].asked.Want, "%+v: %v", c, p.told(0))
		})
	}
}

// Each key of a Group has the cap, also one that shares a bucket or has no rate; and a key with seats keeps its bucket.
func TestEachKeyOfAGroupHasTheCap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		m.SetDelay(ms, ms)
		limits := func(key string) (shaper.Limits, error) {
			l := must(shaper.ParseLimits(quick))
			if key == "inf" || key == "inf, no line" {
				l.Rate, l.Burst = rate.Inf, 0
			}
			if key == "inf, no line" {
				l.Depth = 0
			}
			return l, nil
		}
		o := shared.Options{InFlight: 2}
		one, other := sharedGroupOf(t, m, limits, o, shaper.WithMaxKeys(3)), sharedGroupOf(t, m, limits, o, shaper.WithMaxKeys(3))
		call := func(g *shaper.Group[string], key string, takes time.Duration) error {
			return g.Do(context.Background(), key, 1, func(context.Context) error { time.Sleep(takes); return nil })
		}
		keys := []string{"a", "inf", "b", "overflow"}
		for _, key := range keys { // Before the guard has ended nobody leaves.
			for _, g := range []*shaper.Group[string]{one, other} {
				for range 2 {
					go func() { _ = call(g, key, 30*time.Second) }()
				}
				time.Sleep(10 * ms)
			}
		}
		time.Sleep(12 * time.Second)
		for _, key := range keys[:3] {
			require.Equal(t, 2, one.Limiter(key).Stats().InFlight+other.Limiter(key).Stats().InFlight, key)
			require.Equal(t, 2, one.Limiter(key).Stats().Waiting+other.Limiter(key).Stats().Waiting, key)
		}
		for range 2 {
			go func() { _ = call(one, "overflow", 10*time.Second) }()
		}
		time.Sleep(time.Second)
		require.Equal(t, []int{2, 2}, []int{one.Limiter("overflow").Stats().InFlight, one.Limiter("overflow").Stats().Waiting}, "a bucket that keys share")
		ids := map[string]bool{}
		for _, e := range m.Log() {
			if e.Op == "Seats" {
				ids[e.Seating.ID] = true
				require.GreaterOrEqual(t, len(e.Seating.ID), 22, "128 random bits")
			}
		}
		require.GreaterOrEqual(t, len(ids), 2)
		time.Sleep(25 * time.Second)
		for _, key := range keys[:3] {
			require.Equal(t, 2, one.Limiter(key).Stats().InFlight+other.Limiter(key).Stats().InFlight, key)
			require.Equal(t, 0, one.Limiter(key).Stats().Waiting+other.Limiter(key).Stats().Waiting, key)
		}
		time.Sleep(time.Minute)
		require.NoError(t, call(one, "a", ms))
		time.Sleep(3 * time.Second) // The bucket of a key without seats would be gone.
		m.ClearLog()
		require.NoError(t, call(one, "a", ms), "its seat is still there")
		for _, e := range m.Log() {
			require.NotEqual(t, "Seats", e.Op)
		}
		time.Sleep(time.Minute)
		require.Zero(t, one.Stats().Keys, "and is given back")

		require.ErrorIs(t, call(one, "inf, no line", ms), shaper.ErrQueueFull, "the guard")
		time.Sleep(4 * time.Second)
		for range 2 {
			go func() { _ = call(one, "inf, no line", 20*time.Second) }()
		}
		time.Sleep(time.Second)
		require.Equal(t, 2, one.Limiter("inf, no line").Stats().InFlight)
		require.ErrorIs(t, call(other, "inf, no line", ms), shaper.ErrQueueFull)
		require.ErrorIs(t, call(one, "inf, no line", ms), shaper.ErrQueueFull)
		time.Sleep(time.Minute)
		require.NoError(t, call(other, "inf, no line", ms))
	})
}

// A cap of all needs a Bucket that can count, and is a number of which a Bucket keeps the sum in 32 bits.
func TestAMistakenCapIsNamed(t *testing.T) {
	limits := shaper.Limits{Rate: 1}
	for _, c := range []struct {
		bucket   shared.Bucket
		inFlight int
		want     string
	}{
		{buckettest.NewMemory(), -1, "Options.InFlight is -1, must be from 1 to 2147483647, or 0 for no cap of all processes"},
		{buckettest.NewMemory(), math.MinInt, "must be from 1 to 2147483647"},
		{buckettest.NewMemory(), math.MaxInt, "must be from 1 to 2147483647"},
		{holdless{buckettest.NewMemory()}, 7, "Options.InFlight is 7, but a shaper_test.holdless is no shared.Seater, and can't count the requests in flight"},
	} {
		if c.inFlight == math.MaxInt && strconv.IntSize == 32 {
			continue // That is the greatest.
		}
		_, err := shaper.New(limits, shaper.WithBucket(c.bucket, "k", shared.Options{InFlight: c.inFlight}))
		require.ErrorContains(t, err, "shaper: New: ")
		require.ErrorContains(t, err, c.want)
		_, err = shaper.NewGroup(func(string) (shaper.Limits, error) { return limits, nil }, shaper.WithBuckets(c.bucket, ownKey, shared.Options{InFlight: c.inFlight}))
		require.ErrorContains(t, err, c.want)
	}
	s, err := shaper.New(limits, shaper.WithBucket(holdless{buckettest.NewMemory()}, "k", shared.Options{}))
	require.NoError(t, err, "without a cap no Bucket need count")
	require.NoError(t, s.Wait(t.Context()))
	require.NoError(t, s.Close())
}

// With a cap of all a request has to say when it ends, as with Limits.InFlight, and whoever runs it for its caller does so.
func TestWhatRunsARequestGivesItsSeatBack(t *testing.T) {
	withSeats(t, 2, 1, quick, func(f *seatFleet) {
		p := f.all[0]
		require.ErrorContains(t, p.Wait(context.Background()), "use Acquire or Do")
		require.False(t, p.Allow())
		require.Zero(t, p.Stats().Refused)
		type embeds struct{ *shaper.Shaper }
		for name, l := range map[string]shaper.Limiter{"a Shaper": p.Shaper, "a type that embeds one": embeds{p.Shaper}, "a Chain": shaper.Chain(p.Shaper)} {
			ran := 0
			h := shaper.Middleware(l)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { ran = p.inFlight() }))
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequestWithContext(context.Background(), http.MethodGet, "/", nil))
			require.Equal(t, http.StatusOK, w.Code, name)
			require.Equal(t, 1, ran, name)
			require.Zero(t, p.inFlight(), name)

			transport := shaper.Transport{Limiter: l, Base: roundTripFunc(func(*http.Request) (*http.Response, error) {
				ran = p.inFlight()
				return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("body"))}, nil
			})}
			r := httptest.NewRequestWithContext(context.Background(), http.MethodGet, "http://upstream.invalid/", nil)
			r.RequestURI, ran = "", 0
			res, err := transport.RoundTrip(r)
			require.NoError(t, err)
			require.Equal(t, []int{1, 1}, []int{ran, p.inFlight()}, name)
			require.NoError(t, res.Body.Close())
			require.Zero(t, p.inFlight(), name)
		}
		require.Panics(t, func() { _ = p.Do(context.Background(), 1, func(context.Context) error { panic("the function") }) })
		require.Zero(t, p.inFlight())
		ctx, cancel := context.WithCancel(context.Background())
		p.come(2, time.Minute)
		f.at(time.Second)
		go func() { _, _ = p.Acquire(ctx, 1) }()
		synctest.Wait()
		require.Equal(t, 1, p.Stats().Waiting)
		cancel()
		synctest.Wait()
		require.Equal(t, []int{2, 0}, []int{p.inFlight(), p.Stats().Waiting})
	})
}

// The lesser of both caps holds, and Limits.InFlight may change, also from and to 0.
func TestLimitsInFlightStaysEachProcesssOwn(t *testing.T) {
	withSeats(t, 6, 2, quick, func(f *seatFleet) {
		a, b := f.all[0], f.all[1]
		stop := a.saturate(20, time.Second)
		defer stop()
		set := func(n int) {
			l := a.Limits()
			l.InFlight = n
			require.NoError(t, a.SetLimits(l))
		}
		for i, n := range []int{0, 2, 0, 5, 9} {
			set(n)
			f.at(time.Duration(10*i+9) * time.Second)
			want := 6
			if n > 0 {
				want = min(n, 6)
			}
			require.Equal(t, want, a.inFlight(), "InFlight %d", n)
			require.Equal(t, want, a.Stats().Bucket.Seats)
			require.Equal(t, n, a.Limits().InFlight)
		}
		set(2)
		b.come(4, time.Second)
		f.at(51 * time.Second)
		require.Len(t, b.lefts(0), 4, "what it can't use any more is given back at once")
	})
}

// Estimates of waits count the seats that this process has, and for whom a seat may be asked takes no place in line.
func TestPredictionsUseTheSeatsThatThereAre(t *testing.T) {
	withSeats(t, 4, 2, "10000/s burst 10000 depth 1", func(f *seatFleet) {
		a, b := f.all[0], f.all[1]
		for range 4 { // A place in line is for those whom the cap keeps waiting, not for those who wait for an answer.
			f.wg.Go(func() { _ = a.call(context.Background(), 10*time.Second) })
		}
		f.at(10 * ms)
		require.Equal(t, 4, a.inFlight())
		f.at(11 * time.Second)
		f.wg.Go(func() { _ = b.call(context.Background(), 10*time.Second) }) // It waits for a seat from now on.
		for range 4 {
			f.wg.Go(func() { _ = a.call(context.Background(), 10*time.Second) })
		}
		f.at(12 * time.Second)
		require.Equal(t, 4, a.inFlight())
		require.Equal(t, 1, b.Stats().Waiting)
		require.Zero(t, b.Stats().Free)
		wait, err := a.Forecast(1)
		require.NoError(t, err)
		require.Equal(t, 2500*ms, wait.Round(10*ms), "one of four calls of 10 s ends")
		err = b.call(context.Background(), ms)
		require.Equal(t, shaper.ErrQueueFull, refusal(t, err).Reason, "the line has one place")
		require.Positive(t, refusal(t, err).RetryAfter)
	})
}

// gaps returns the times in which a process had no seats whose lease lasted: from the end of each lease to the answer after
// it.
func (l *seatLink) gaps() (all [][2]time.Duration) {
	ends := time.Duration(0)
	for _, q := range l.seatings(0) {
		if q.err != nil || q.seen < 0 || q.got.Held == 0 {
			continue
		}
		if q.seen >= ends {
			all = append(all, [2]time.Duration{ends, q.seen})
		}
		ends = q.sent + shared.SeatLease
	}
	return append(all, [2]time.Duration{ends, 1 << 62})
}

// cutOff reports whether no question of a process was answered that it asked from a time to another: if the state is lost then,
// nobody knows of its seats.
func (l *seatLink) cutOff(from, to time.Duration) bool {
	return !slices.ContainsFunc(l.seatings(from), func(q seatQuestion) bool { return q.err == nil && q.sent < to })
}

// counted returns the calls that were in flight by seats whose lease lasted, each until it ended or its lease did; and what
// is wrong with the calls of the process, "" if nothing is.
func (p *seatProcess) counted() (all []seatCall, problem string) {
	gaps := p.gaps()
	history := p.history()
	for i, c := range history {
		if c.left < 0 {
			continue
		}
		if c.ended < 0 {
			c.ended = 1 << 61
		}
		for _, gap := range gaps {
			switch {
			case gap[0] <= c.left && c.left < gap[1]:
				return nil, fmt.Sprintf("a call left at %v, and from %v until %v no lease lasted", c.left, gap[0], gap[1])
			case c.left < gap[0]:
				c.ended = min(c.ended, gap[0])
			}
		}
		for _, lost := range p.fleet.lost {
			if from := lost + shared.SeatGuard; p.cutOff(lost, from) && c.left < from+shared.SeatLease {
				c.ended = min(c.ended, max(from, c.left))
			}
		}
		for _, before := range history[:i] {
			if before.came < c.came && before.left > c.left {
				return nil, fmt.Sprintf("a call that came at %v left at %v, before one that came at %v and left at %v", c.came, c.left, before.came, before.left)
			}
		}
		all = append(all, c)
	}
	return all, ""
}

// complaint returns what is wrong with the calls of all processes; "" if nothing is.
func (f *seatFleet) complaint() string {
	type change struct {
		at time.Duration
		by int
	}
	var changes []change
	for i, p := range f.all {
		calls, problem := p.counted()
		if problem != "" {
			return fmt.Sprintf("process %d: %s", i, problem)
		}
		for _, c := range calls {
			changes = append(changes, change{c.left, 1}, change{c.ended, -1})
		}
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.by, b.by)) })
	n := 0
	for _, c := range changes {
		if n += c.by; n > f.cap {
			return fmt.Sprintf("%d calls are in flight at %v by seats whose lease lasts, and the cap is %d", n, c.at, f.cap)
		}
	}
	return ""
}

// A seatFault is something that goes wrong, at a time of a test, with one process of several.
var seatFaults = map[string]func(f *seatFleet, p *seatProcess, chance *rand.Rand){
	"a partition": func(_ *seatFleet, p *seatProcess, chance *rand.Rand) {
		p.set(func(l *seatLink) { l.cut = true })
		time.AfterFunc(time.Duration(chance.Int64N(int64(25*time.Second))), func() { p.set(func(l *seatLink) { l.cut = false }) })
	},
	"Seats hangs": func(_ *seatFleet, p *seatProcess, chance *rand.Rand) {
		p.set(func(l *seatLink) { l.hangs = true })
		time.AfterFunc(time.Duration(chance.Int64N(int64(15*time.Second))), func() { p.set(func(l *seatLink) { l.hangs = false }) })
	},
	"a stop": func(_ *seatFleet, p *seatProcess, chance *rand.Rand) {
		p.set(func(l *seatLink) { l.stops = time.Duration(chance.Int64N(int64(14 * time.Second))) })
		time.AfterFunc(4*time.Second, func() { p.set(func(l *seatLink) { l.stops = 0 }) })
	},
	"a death": func(f *seatFleet, p *seatProcess, _ *rand.Rand) { p.set(func(l *seatLink) { l.cut = true }) },
	"a flush": func(f *seatFleet, _ *seatProcess, _ *rand.Rand) {
		f.Wipe()
		f.lost = append(f.lost, time.Since(f.start))
	},
	"a restart": func(f *seatFleet, p *seatProcess, _ *rand.Rand) { _ = p.Close() },
	"lost calls": func(f *seatFleet, _ *seatProcess, chance *rand.Rand) {
		fault := []buckettest.Fault{buckettest.LoseRequest, buckettest.LoseReply, buckettest.FailBefore, buckettest.FailAfter}[chance.IntN(4)]
		every := 2 + chance.IntN(10)
		f.Fail(func(call int, _ string) buckettest.Fault {
			if call%every == 0 {
				return fault
			}
			return buckettest.NoFault
		})
		time.AfterFunc(10*time.Second, func() { f.Fail(nil) })
	},
	"slow ways": func(f *seatFleet, _ *seatProcess, chance *rand.Rand) {
		way := time.Duration(chance.Int64N(int64(300 * ms)))
		f.SetDelay(way, time.Duration(chance.Int64N(int64(100*ms))))
		time.AfterFunc(5*time.Second, func() { f.SetDelay(ms, ms) })
	},
}

// Whatever goes wrong, at random: no more calls than the cap are in flight by seats whose lease lasts, nobody leaves
// without one, each process keeps its order, and each call has one outcome.
func TestNoFaultGivesASeatTwice(t *testing.T) {
	t.Parallel()
	names := slices.Sorted(maps.Keys(seatFaults))
	for seed := range uint64(rounds(10, 60, 2000)) {
		chance := rand.New(rand.NewPCG(seed, 43))
		cap, n := 1+chance.IntN(8), 2+chance.IntN(4)
		limits := []string{quick, "20/s depth 99", "5/s burst 20 depth 9"}[chance.IntN(3)]
		withSeats(t, cap, n, limits, func(f *seatFleet) {
			stops := map[*seatProcess]func(){}
			begin := func(p *seatProcess) {
				takes := time.Duration(chance.Int64N(int64([]time.Duration{200 * ms, 2 * time.Second, 20 * time.Second}[chance.IntN(3)])))
				stops[p] = p.saturate(1+chance.IntN(2*cap), takes)
			}
			for _, p := range f.all {
				begin(p)
			}
			for range 6 {
				f.at(time.Since(f.start) + time.Duration(chance.Int64N(int64(12*time.Second))))
				name, p := names[chance.IntN(len(names))], f.all[chance.IntN(len(f.all))]
				seatFaults[name](f, p, chance)
				if name == "a restart" {
					begin(f.add(limits, shared.Options{Patience: -1}))
				}
			}
			f.at(time.Since(f.start) + 30*time.Second)
			require.Empty(t, f.complaint(), "seed %d", seed)
			for p, stop := range stops {
				p.set(func(l *seatLink) { l.cut = false })
				stop()
			}
			for _, p := range f.all {
				st, ended := p.Stats(), uint64(0)
				for _, c := range p.history() {
					if ended++; c.err == nil {
						require.GreaterOrEqual(t, c.ended, c.left)
					}
				}
				require.Equal(t, ended, st.Departed+st.Refused+st.Abandoned)
				require.Zero(t, st.InFlight)
			}
		}, shared.Options{Patience: -1})
	}
}

// An endedSince is a context that has ended since an instant, and tells nobody but who asks.
type endedSince struct {
	context.Context
	at time.Time
}

func (e endedSince) Err() error {
	if time.Now().Before(e.at) {
		return nil
	}
	return context.Canceled
}

// Whoever has gone by the time the Bucket answers for him leaves the seat to others, and nothing of his call stays.
func TestASeatForACallerWhoHasGoneIsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		link := &seatLink{Memory: buckettest.NewMemory(), start: time.Now()}
		link.SetDelay(ms, ms)
		link.SetSeats("k", shared.SeatState{Ready: 1})
		g := sharedGroupOf(t, link, func(string) (shaper.Limits, error) { return shaper.ParseLimits("10000/s burst 10000") }, shared.Options{InFlight: 1})
		_, err := g.Acquire(endedSince{context.Background(), time.Now().Add(ms)}, "k", 1)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, []string{"0s: keeps 0, wants 1: has 1 of 1"}, link.told(0))
		require.Zero(t, g.Limiter("k").Stats().InFlight)
		release, err := g.Acquire(context.Background(), "k", 1)
		require.NoError(t, err, "the seat that it got")
		release()
		time.Sleep(time.Minute)
		require.Zero(t, g.Stats().Keys, "its bucket is not in use any more")
	})
}

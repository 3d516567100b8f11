package shaper_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
	"example.com/leakybucket/shaper/shared"
)

// This file holds what a hold promises that all processes share.

// A holdless Bucket is of a version that knows of no holds.
type holdless struct{ shared.Bucket }

func (b holdless) Take(ctx context.Context, t shared.Take) (shared.Taken, error) {
	t.Hold = 0
	taken, err := b.Bucket.Take(ctx, t)
	taken.Hold = 0
	return taken, err
}

// A mortal Bucket is what one process has of it until that is killed: nothing comes from it any more.
type mortal struct {
	shared.Bucket
	dead atomic.Bool
}

func (b *mortal) Take(ctx context.Context, t shared.Take) (shared.Taken, error) {
	if b.dead.Load() {
		<-ctx.Done()
		return shared.Taken{}, ctx.Err()
	}
	return b.Bucket.Take(ctx, t)
}

func (b *mortal) GiveBack(ctx context.Context, t shared.Take, end shared.Instant) error {
	if b.dead.Load() {
		return nil
	}
	return b.Bucket.GiveBack(ctx, t, end)
}

// A heldFleet is four processes with lines that never end, of which the first holds all at 3 s, for 20 s.
type heldFleet struct {
	*processes
	rate   rate.Limit // that is in force at the end
	setter *mortal
	stop   []func()
}

const heldFrom, heldFor = 3 * time.Second, 20 * time.Second

// heldMost returns how many cost units all processes but one may have leased, and how long they take.
func (f *heldFleet) heldMost() (units int64, lasts time.Duration) {
	units = heldByOthers(f.processes)
	return units, min(2*time.Second, time.Duration(float64(units)/float64(f.limits.Rate)*float64(time.Second)))
}

// complaint returns what is wrong with the departures of a fleet; "" if nothing is. lossAt is when the state was lost;
// 0: it was not. most and lasts are the bound of those who have not heard of the hold yet.
func (f *heldFleet) complaint(lossAt time.Duration, most int64, lasts time.Duration) string {
	end := heldFrom + heldFor
	d := f.lateness
	if _, early := f.between(heldFrom+ms, end); int64(early) > most && lossAt == 0 {
		return fmt.Sprintf("%d requests leave during the hold, and at most %d were leased", early, most)
	}
	heard := heldFrom + lasts + d
	if each, n := f.between(heard, end); n > 0 && lossAt == 0 {
		return fmt.Sprintf("%v of each process leave between %v and %v", each, heard, end)
	}
	if lossAt > 0 { // Who has not heard may send for a second more, and what it has leased by then.
		if each, n := f.between(lossAt+time.Second+lasts+d+10*ms, end); n > 0 {
			return fmt.Sprintf("%v of each process leave later than a second after the loss", each)
		}
	}
	interval := time.Duration(float64(time.Second) / float64(f.rate))
	if _, n := f.between(end, end+interval+20*ms); n < 1 {
		return "nobody leaves when the hold ends"
	}
	_, n := f.between(end, end+5*time.Second)
	if want := 5 * float64(f.rate); float64(n) < 0.95*want-2 || float64(n) > want+float64(max(1, f.limits.Burst))+2 {
		return fmt.Sprintf("%d requests leave in the 5 s after the hold, must be %v", n, want)
	}
	return ""
}

// playHold plays a hold of a fleet whose first process reaches the bucket by way of setter.
func playHold(t *testing.T, limits string, wrap func(p *processes) shared.Bucket, then func(f *heldFleet)) (complaint string) {
	share(t, 0, limits, 2*ms, func(p *processes) {
		f := &heldFleet{processes: p, rate: p.limits.Rate}
		var b shared.Bucket = p.Memory
		if wrap != nil {
			b = wrap(p)
		}
		f.setter = &mortal{Bucket: b}
		p.add(f.setter)
		for range 3 {
			p.add(b)
		}
		f.stop = append(f.stop, p.saturate(40))
		defer func() {
			for _, stop := range f.stop {
				stop()
			}
		}()
		p.at(heldFrom)
		most, lasts := f.heldMost()
		p.ClearLog()
		p.all[0].Hold(heldFor)
		lossAt := time.Duration(0)
		if then != nil {
			then(f)
			for _, e := range p.Log() {
				if e.Done && e.Before == (shared.BucketLevel{}) {
					lossAt = time.Duration(e.Arrived-p.start.UnixMicro()) * us
					break
				}
			}
		}
		p.at(heldFrom + heldFor + 6*time.Second)
		complaint = f.complaint(lossAt, most, lasts)
	})
	return complaint
}

// changes changes the rate of all by a factor.
func (f *heldFleet) changes(i int, factor rate.Limit) {
	l := f.limits
	l.Rate *= factor
	f.rate = l.Rate
	require.NoError(f.t, f.all[i].SetLimits(l))
}

// newcomer adds a process that has heard of nothing.
func (f *heldFleet) newcomer() {
	f.add(f.setter.Bucket)
	f.stop = append(f.stop, f.saturate(40, len(f.all)-1))
}

// What becomes of a hold: the name of it, and the timeline from 3 s on.
var fatesOfAHold = []struct {
	name string
	then func(f *heldFleet)
}{
	{"nothing happens", nil},
	{"the rate is ten times as great", func(f *heldFleet) { f.at(8 * time.Second); f.changes(1, 10) }},
	{"the rate is halved", func(f *heldFleet) { f.at(8 * time.Second); f.changes(1, 0.5) }},
	{"the setter changes the rate", func(f *heldFleet) { f.changes(0, 10); f.at(8 * time.Second); f.changes(0, 0.1) }},
	{"the setter is killed", func(f *heldFleet) { f.at(3010 * ms); f.setter.dead.Store(true); f.at(8 * time.Second); f.newcomer() }},
	{"the setter is killed, and the rate is ten times as great", func(f *heldFleet) {
		f.at(3010 * ms)
		f.setter.dead.Store(true)
		f.at(8 * time.Second)
		f.newcomer()
		f.at(9 * time.Second)
		f.changes(1, 10)
	}},
	{"a shorter hold comes at once", func(f *heldFleet) {
		time.Sleep(1500 * us)
		f.all[1].Hold(6 * time.Second)
		f.at(3010 * ms)
		f.setter.dead.Store(true)
		f.changes(2, 10) // A level alone would end too soon.
	}},
	{"the state is lost", func(f *heldFleet) { f.at(8 * time.Second); f.Wipe(); f.newcomer(); f.at(heldFrom + heldFor) }},
}

// Nobody leaves during a hold but by what it had leased before it has heard, and at the end the rate goes on.
func TestAHoldOfOneProcessHoldsAll(t *testing.T) {
	for i, limits := range []string{"10/s depth 999", "100/s burst 50 depth 999", "100/s depth 999", "1000/s depth 999"} {
		for _, fate := range fatesOfAHold[:len(fatesOfAHold)/max(1, 8*(i/2))] { // Of the last two only the first.
			t.Run(limits+", "+fate.name, func(t *testing.T) {
				require.Empty(t, playHold(t, limits, nil, fate.then))
			})
		}
	}
}

// A mistaken Bucket holds as somebody may write it.
type mistaken struct {
	*buckettest.Memory
	mistake string
	told    atomic.Int64
}

func (b *mistaken) Take(ctx context.Context, t shared.Take) (shared.Taken, error) {
	set := func(hold int64) {
		l := b.Level(t.Key)
		l.Hold = hold
		b.Set(t.Key, l)
	}
	tells := t.Hold > 0 && t.First > t.Rate.Burst
	switch {
	case b.mistake == "nothing is repeated" && tells && b.told.Add(1) > 1:
		l := b.Level(t.Key)
		return shared.Taken{Now: b.Now(), Empty: l.Empty.Later(shared.Instant{Micros: b.Now()}), Hold: t.Hold}, nil
	case b.mistake == "the shorter hold wins" && tells:
		set(t.Hold)
	}
	taken, err := b.Memory.Take(ctx, t)
	if b.mistake == "a hold is a level alone" {
		set(0)
	}
	return taken, err
}

// The test above tells each of these mistakes, by the fate of a hold that it is for.
func TestMistakesInHoldsAreTold(t *testing.T) {
	for mistake, fate := range map[string]string{
		"a hold is a level alone": "the setter is killed, and the rate is ten times as great",
		"the shorter hold wins":   "a shorter hold comes at once",
		"nothing is repeated":     "the state is lost",
	} {
		t.Run(mistake, func(t *testing.T) {
			said := ""
			for _, f := range fatesOfAHold {
				if f.name == fate {
					said = playHold(t, "10/s depth 999", func(p *processes) shared.Bucket {
						return &mistaken{Memory: p.Memory, mistake: mistake}
					}, f.then)
				}
			}
			require.NotEmpty(t, said)
			t.Log(said)
		})
	}
}

// The first request leaves when the hold ends, one of cost n ≤ Burst (n − 1)/Rate later, one above Burst (Burst − 1)/Rate
// later; then they leave at the rate, without a burst.
func TestDeparturesBehindAHoldOfAll(t *testing.T) {
	for _, c := range []struct {
		limits string
		costs  []int
		want   []time.Duration // after the end
	}{
		{"10/s depth 99", []int{1, 1, 1}, []time.Duration{0, 100 * ms, 200 * ms}},
		{"10/s burst 5 depth 99", []int{1, 1, 2, 1}, []time.Duration{0, 100 * ms, 300 * ms, 400 * ms}},
		{"10/s burst 5 depth 99", []int{5, 1}, []time.Duration{400 * ms, 500 * ms}},
		{"10/s burst 5 depth 99", []int{9, 1}, []time.Duration{400 * ms, 900 * ms}},
	} {
		for i := range 2 { // of the process that holds, and of the other
			share(t, 2, c.limits, 0, func(p *processes) {
				require.NoError(t, p.wait(p.t.Context(), 0, 1))
				require.NoError(t, p.wait(p.t.Context(), 1, 1))
				p.at(5 * time.Second)
				from := len(p.instants())
				p.all[0].Hold(10 * time.Second)
				p.at(6 * time.Second)
				p.arrive(i, c.costs...)
				p.at(30 * time.Second)
				at := p.instants()[from:]
				require.Len(t, at, len(c.want))
				for k, want := range c.want {
					want += 15 * time.Second
					require.GreaterOrEqual(t, at[k], want, "%s, process %d, request %d", c.limits, i, k)
					require.LessOrEqual(t, at[k], want+2*ms, "%s, process %d, request %d", c.limits, i, k)
				}
				p.check()
			})
		}
	}
}

// The lease of whoever sets a hold or learns of one is not used up at once when it ends, with a Burst neither.
func TestWhatIsLeasedBeforeAHoldIsNoBurstBehindIt(t *testing.T) {
	for _, limits := range []string{"20/s depth 99", "20/s burst 40 depth 99", "1000/s burst 2000 depth 999"} {
		share(t, 3, limits, 20*ms, func(p *processes) {
			stop := p.saturate(300)
			defer stop()
			p.at(4 * time.Second)
			p.all[0].Hold(700 * ms) // Leased units are due behind the end of it.
			p.at(5 * time.Second)
			_, n := p.between(4690*ms, 4800*ms)
			require.LessOrEqual(t, n, int(0.1*float64(p.limits.Rate))+4, "%s", limits)
			p.check()
		})
	}
}

// Nobody else has had the time of a hold, so what is predicted does not take it for their share.
func TestAHoldIsNoShareOfOthers(t *testing.T) {
	share(t, 2, "10/s depth 99", 2*ms, func(p *processes) {
		stop := p.saturate(20)
		defer stop()
		p.at(8 * time.Second)
		p.all[0].Hold(20 * time.Second)
		p.at(29 * time.Second)
		for _, s := range p.all {
			require.InDelta(t, 0.5, s.Stats().Bucket.Share, 0.1)
		}
	})
}

// Each meter refuses, and whoever comes after RetryAfter is let through, not a microsecond earlier.
func TestMetersTellTheEndOfAHoldOfAll(t *testing.T) {
	for _, limits := range []string{"10/s", "3/s burst 4"} {
		share(t, 2, limits, 0, func(p *processes) {
			require.NoError(t, p.wait(p.t.Context(), 0, 1))
			p.at(10 * time.Second)
			p.all[0].Hold(10 * time.Second)
			synctest.Wait()
			left := time.Duration(p.Level("k").Hold-p.Now()) * us
			require.InDelta(t, 10*time.Second, left, float64(3*ms))
			for i := range p.all {
				for _, n := range []int{1, max(1, p.limits.Burst)} {
					after := time.Duration(float64(n-1) / float64(p.limits.Rate) * float64(time.Second))
					got := refusal(t, p.wait(p.t.Context(), i, n)).RetryAfter
					require.InDelta(t, left+after, got, float64(us), "%s: process %d, cost %d", limits, i, n)
				}
			}
			after := refusal(t, p.wait(p.t.Context(), 1, 1)).RetryAfter
			time.Sleep(after - us)
			require.Equal(t, us, refusal(t, p.wait(p.t.Context(), 1, 1)).RetryAfter)
			require.Equal(t, us, refusal(t, p.wait(p.t.Context(), 0, 1)).RetryAfter)
			time.Sleep(us)
			require.NoError(t, p.wait(p.t.Context(), 1, 1))
		})
	}
}

// The calls by which a hold is told: at once, each second while more than 2 s are left, and no more.
func TestAHoldIsToldAtOnceAndAgain(t *testing.T) {
	share(t, 2, "10/s burst 5 depth 99", 10*ms, func(p *processes) {
		require.NoError(t, p.wait(p.t.Context(), 0, 1))
		p.at(time.Second)
		p.ClearLog()
		p.all[0].Hold(5 * time.Second)
		p.all[0].Hold(2 * time.Second) // is none
		p.at(10 * time.Second)
		takes, givenBack := p.takes()
		require.Empty(t, givenBack)
		require.Len(t, takes, 3)
		for i, e := range takes {
			require.Equal(t, time.Duration(1+i)*time.Second, e.Sent.Sub(p.start))
			require.Equal(t, [2]int64{1, 6}, [2]int64{e.Take.Cost, e.Take.First})
			require.False(t, e.Taken.OK)
			require.Equal(t, e.Take.Hold, e.Taken.Hold)
			late := e.Take.Hold - p.start.Add(6*time.Second).UnixMicro()
			require.True(t, 0 <= late && late <= 10_300, "a hold is never too short, and too long by the width of the estimate at most: %d µs", late)
		}

		// Beside a call that is under way; and one that has had no answer yet asks first.
		p.ClearLog()
		p.SetDelay(100*ms, 100*ms)
		go func() { _ = p.wait(context.Background(), 0, 1) }()
		time.Sleep(50 * ms)
		p.all[0].Hold(5 * time.Second)
		p.all[1].Hold(7 * time.Second)
		p.at(30 * time.Second)
		takes, givenBack = p.takes()
		require.Equal(t, 10050*ms, takes[1].Sent.Sub(p.start))
		require.Positive(t, takes[1].Take.Hold+takes[2].Take.Hold)
		require.LessOrEqual(t, len(givenBack), 1)
	})
	share(t, 1, "10/s depth 99", 10*ms, func(p *processes) {
		p.all[0].Hold(5 * time.Second)
		p.at(8 * time.Second)
		takes, givenBack := p.takes()
		require.Zero(t, takes[0].Take.Hold)
		require.Len(t, givenBack, 1, "it has taken a unit, as no hold was told")
		require.Equal(t, 20*ms, takes[1].Sent.Sub(p.start))
		require.InDelta(t, p.start.Add(5*time.Second).UnixMicro(), takes[1].Take.Hold, 10_300)
		b := p.all[0].Stats().Bucket
		require.Equal(t, [2]uint64{b.Leased, 0}, [2]uint64{b.GivenBack, b.Dropped})
	})
}

// All tell of the hold that they know in whatever they ask, while it lasts.
func TestEveryTakeTellsTheLatestHold(t *testing.T) {
	share(t, 2, "10/s", 0, func(p *processes) {
		require.NoError(t, p.wait(p.t.Context(), 0, 1))
		p.at(time.Second)
		p.all[0].Hold(2 * time.Second)
		synctest.Wait()
		hold := p.Level("k").Hold
		require.Error(t, p.wait(p.t.Context(), 1, 1)) // learns
		p.Wipe()
		p.ClearLog()
		require.Error(t, p.wait(p.t.Context(), 1, 1)) // tells
		takes, _ := p.takes()
		require.Equal(t, [2]int64{hold, hold}, [2]int64{takes[0].Take.Hold, takes[0].After.Hold})
		p.at(4 * time.Second)
		p.ClearLog()
		require.NoError(t, p.wait(p.t.Context(), 1, 1))
		takes, _ = p.takes()
		require.Zero(t, takes[0].Take.Hold)
		require.Zero(t, takes[0].After.Hold)
	})
}

// A hold in an outage is of this process, and its first call afterwards tells the others.
func TestAHoldInAFallbackIsToldWhenItEnds(t *testing.T) {
	for _, fallback := range []shared.Fallback{shared.FallbackClosed, shared.FallbackLocal(2), shared.FallbackOpen} {
		share(t, 2, "10/s depth 99", 2*ms, func(p *processes) {
			stop := p.saturate(20)
			defer stop()
			p.at(time.Second)
			p.Fail(faultOf(buckettest.FailBefore))
			p.at(4 * time.Second)
			from := len(p.instants())
			p.all[0].Hold(20 * time.Second)
			p.at(8 * time.Second)
			for _, d := range p.departures()[from:] {
				require.NotZero(t, d.Process, "the hold is this process's at once")
			}
			p.Fail(nil)
			p.at(12 * time.Second)
			p.at(24*time.Second - ms)
			_, n := p.between(12*time.Second, 24*time.Second)
			require.Zero(t, n, "the other has heard")
			p.at(30 * time.Second)
			_, n = p.between(24*time.Second, 30*time.Second)
			require.InDelta(t, 60, n, 3)
		}, shared.Options{Fallback: fallback, Patience: -1})
	}
}

// With a Bucket that knows of no holds they are each process's own, as they always were.
func TestABucketWithoutHoldsKeepsThemLocal(t *testing.T) {
	share(t, 0, "10/s depth 99", 2*ms, func(p *processes) {
		for range 2 {
			p.add(holdless{p.Memory})
		}
		stop := p.saturate(20)
		defer stop()
		p.at(3 * time.Second)
		require.False(t, p.all[0].Stats().Bucket.HoldsAlone)
		p.all[0].Hold(5 * time.Second)
		p.at(8 * time.Second)
		require.True(t, p.all[0].Stats().Bucket.HoldsAlone)
		require.False(t, p.all[1].Stats().Bucket.HoldsAlone)
		each, _ := p.between(3010*ms, 8*time.Second)
		require.Zero(t, each[0])
		require.InDelta(t, 50, each[1], 3)
		p.all[0].Hold(time.Minute)
		p.at(9 * time.Second)
		p.all[0].Hold(0)
		p.at(14 * time.Second)
		each, _ = p.between(9*time.Second, 14*time.Second)
		require.InDelta(t, 25, each[0], 4, "Hold(0) ends it")
		p.check()
	})
}

// Hold(0) ends what this process holds, and not what the others know; a hold of all is a day at most.
func TestTheEndsOfAHoldOfAll(t *testing.T) {
	share(t, 2, "10/s depth 99", 2*ms, func(p *processes) {
		for i := range p.all {
			require.NoError(t, p.wait(p.t.Context(), i, 1))
		}
		p.at(time.Second)
		p.all[0].Hold(8 * time.Second)
		p.at(2 * time.Second)
		p.all[0].Hold(0)
		require.Zero(t, p.all[0].Stats().HeldUntil)
		p.ClearLog()
		p.arrive(0, 1)
		p.at(5 * time.Second)
		takes, _ := p.takes()
		require.Zero(t, takes[0].Take.Hold, "it has forgotten")
		require.WithinDuration(t, p.start.Add(9*time.Second), p.all[0].Stats().HeldUntil, 10*ms, "it has heard of it again")
		require.Len(t, takes, 1, "it does not repeat what it does not hold")
		p.at(10 * time.Second)
		require.Len(t, p.instants(), 3)

		p.all[0].Hold(365 * 24 * time.Hour)
		p.at(11 * time.Second)
		require.WithinDuration(t, p.start.Add(10*time.Second+24*time.Hour), p.all[0].Stats().HeldUntil, 20*time.Second) // 200 ppm of a day
		require.WithinDuration(t, p.start.Add(10*time.Second+24*time.Hour), time.UnixMicro(p.Level("k").Hold), 10*ms)
	})
}

// A hold stays where it was, for those who know of it, if the Bucket's clock is set. If that is set back, the time
// since the level was written last comes on top, as it does for the level: here 2 s, and one until the next call.
func TestAHoldOutlivesAClockThatIsSet(t *testing.T) {
	for _, step := range []time.Duration{-time.Hour, -3 * time.Second, 3 * time.Second, time.Hour} {
		share(t, 2, "10/s depth 99", 2*ms, func(p *processes) {
			stop := p.saturate(20)
			defer stop()
			p.at(3 * time.Second)
			p.all[0].Hold(10 * time.Second)
			p.at(5 * time.Second)
			p.Step(step)
			p.at(20 * time.Second)
			_, early := p.between(8*time.Second, 13*time.Second)
			require.Zero(t, early, "%v", step)
			end := 13 * time.Second
			if step < 0 {
				end += 3 * time.Second
			}
			_, n := p.between(end, 20*time.Second)
			require.InDelta(t, 10*(20*time.Second-end).Seconds(), n, 6, "%v", step)
		})
	}
}

// A request that can't leave in time any more is refused at once, also by a hold of another process.
func TestAHoldOfAllDoomsThoseWhoCantLeaveInTime(t *testing.T) {
	share(t, 2, "1/s depth 99", 2*ms, func(p *processes) {
		stop := p.saturate(3, 0, 1)
		defer stop()
		p.at(2 * time.Second)
		p.all[0].Hold(10 * time.Second)
		p.at(2500 * ms)
		require.Positive(t, p.all[0].Stats().TooLate, "those of the process that holds")
		require.Zero(t, p.all[0].Stats().Waiting)
		p.at(4100 * ms)
		require.Positive(t, p.all[1].Stats().TooLate)
	}, shaper.WithLineTimeout(5*time.Second))
}

// The keys of Groups are held likewise, each for itself, also by a Transport.
func TestAKeyOfAGroupIsHeldForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := buckettest.NewMemory()
		m.SetDelay(ms, ms)
		var groups []*shaper.Group[string]
		for range 3 {
			groups = append(groups, sharedGroup(t, m, shaper.Limits{Rate: 100, Depth: 99}))
		}
		start := time.Now()
		for _, g := range groups {
			require.NoError(t, g.Wait(t.Context(), "a"))
		}
		transport := shaper.Transport{Limiter: groups[0].Limiter("a"), Base: roundTripFunc(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"5"}}}, nil
		})}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://upstream.invalid/", nil)
		r.RequestURI = ""
		_, err := transport.RoundTrip(r)
		require.NoError(t, err)
		time.Sleep(5 * ms)
		groups[2].Limiter("b").Hold(time.Second)
		time.Sleep(5 * ms) // It asks for the clock, and tells.
		require.NoError(t, groups[0].Wait(t.Context(), "c"), "another key")
		require.Less(t, time.Since(start), time.Second)
		require.NoError(t, groups[0].Wait(t.Context(), "b"))
		require.WithinDuration(t, start.Add(1050*ms), time.Now(), 50*ms)
		require.NoError(t, groups[1].Wait(t.Context(), "a"))
		require.WithinDuration(t, start.Add(5050*ms), time.Now(), 50*ms)
		for _, g := range groups {
			require.NoError(t, g.Close())
		}
	})
}

// A hold that comes just before Close is told.
func TestAHoldBeforeCloseIsTold(t *testing.T) {
	share(t, 2, "10/s depth 99", 2*ms, func(p *processes) {
		for i := range p.all {
			require.NoError(t, p.wait(p.t.Context(), i, 1))
		}
		p.all[0].Hold(5 * time.Second)
		require.NoError(t, p.all[0].Close())
		require.NotZero(t, p.Level("k").Hold)
	})
}

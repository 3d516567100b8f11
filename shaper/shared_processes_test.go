package shaper_test

import (
	"cmp"
	"context"
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"example.com/leakybucket/internal/model"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
	"example.com/leakybucket/shaper/shared"
)

// processes are Shapers that share a bucket in memory, as if each was in a process of its own,
// and the merged log of their departures.
type processes struct {
	*buckettest.Memory
	t      *testing.T
	start  time.Time
	limits shaper.Limits
	all    []*shaper.Shaper

	mu       sync.Mutex
	log      []model.Departure // whose Number is the instant of admission
	lateness time.Duration     // the greatest that a process has had
}

// share runs a timeline in a bubble, with n processes whose way to the bucket takes half of rtt.
func share(t *testing.T, n int, limits string, rtt time.Duration, timeline func(p *processes), opts ...any) {
	t.Helper()
	l := must(shaper.ParseLimits(limits))
	synctest.Test(t, func(t *testing.T) {
		p := &processes{Memory: buckettest.NewMemory(), t: t, start: time.Now(), limits: l}
		p.SetDelay(rtt/2, rtt-rtt/2)
		defer func() {
			for _, s := range p.all {
				require.NoError(t, s.Close())
			}
		}()
		for range n {
			p.add(p.Memory, opts...)
		}
		timeline(p)
	})
}

// add adds a process, and returns it.
func (p *processes) add(b shared.Bucket, opts ...any) *shaper.Shaper {
	i := len(p.all)
	trace := &shaper.Trace{Departed: func(_ context.Context, e shaper.Event) {
		p.mu.Lock()
		defer p.mu.Unlock()
		at := e.At.Sub(p.start)
		p.log = append(p.log, model.Departure{At: at, Process: i, Number: int64(at - e.Waited), Cost: int64(e.Cost)})
	}}
	o, others := apart[shaper.Option](opts)
	s := must(shaper.New(p.limits, append([]shaper.Option{shaper.WithBucket(b, "k", o), shaper.WithTrace(trace)}, others...)...))
	p.all = append(p.all, s)
	return s
}

// wait is WaitN on one of the processes.
func (p *processes) wait(ctx context.Context, i, n int) error { return p.all[i].WaitN(ctx, n) }

// arrive makes requests of these costs enter the line of a process, one after the other.
func (p *processes) arrive(i int, costs ...int) {
	for _, n := range costs {
		go func() { _ = p.wait(context.Background(), i, n) }()
		synctest.Wait()
	}
}

// saturate keeps so many requests of cost 1 in the line of each process, or only of these, until
// stop is called.
func (p *processes) saturate(callers int, only ...int) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for i, s := range p.all {
		if len(only) > 0 && !slices.Contains(only, i) {
			continue
		}
		for range callers {
			wg.Go(func() {
				for ctx.Err() == nil {
					// Those that are refused, as the bucket can't be asked, come again.
					if err := s.Wait(ctx); err != nil && ctx.Err() == nil {
						time.Sleep(ms)
					}
				}
			})
		}
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

// at lets time pass until d after the start, and notes the lateness that processes have.
func (p *processes) at(d time.Duration) {
	step := max(50*ms, (d-time.Since(p.start))/100)
	for left := d - time.Since(p.start); left > 0; left = d - time.Since(p.start) {
		time.Sleep(min(left, step))
		for _, s := range p.all {
			p.lateness = max(p.lateness, s.Stats().Bucket.Lateness)
		}
	}
	synctest.Wait()
}

// departures returns the merged log of the processes so far.
func (p *processes) departures() []model.Departure {
	p.mu.Lock()
	defer p.mu.Unlock()
	log := slices.Clone(p.log)
	slices.SortStableFunc(log, func(a, b model.Departure) int { return cmp.Compare(a.At, b.At) })
	return log
}

// instants returns when requests have left.
func (p *processes) instants() (all []time.Duration) {
	for _, d := range p.departures() {
		all = append(all, d.At)
	}
	return all
}

// between returns how many have left each process from one instant until before another.
func (p *processes) between(from, to time.Duration) (each []int, all int) {
	each = make([]int, len(p.all))
	for _, d := range p.departures() {
		if from <= d.At && d.At < to {
			each[d.Process]++
			all++
		}
	}
	return each, all
}

// pace is the promise of the processes together.
func (p *processes) pace() model.SharedPace {
	return model.SharedPace{Interval: intervalOf(p.limits.Rate), Burst: max(1, int64(p.limits.Burst)), Lateness: p.lateness}
}

// check checks the merged log: the pace, and the order within each process.
func (p *processes) check(extras ...model.Extra) {
	p.t.Helper()
	for _, s := range p.all {
		p.lateness = max(p.lateness, s.Stats().Bucket.Lateness)
	}
	require.NoError(p.t, p.pace().Check(numbered(p.departures()), extras...))
}

// numbered returns the log with each request's number in the order in which its process took it
// into the line. Those that came at one instant may have left in any order.
func numbered(log []model.Departure) []model.Departure {
	slices.SortStableFunc(log, func(a, b model.Departure) int { return cmp.Compare(a.Number, b.Number) })
	for i := range log {
		log[i].Number = int64(i)
	}
	return log
}

// takes returns the calls of Take that were made, and the calls of GiveBack.
func (p *processes) takes() (takes, givenBack []buckettest.Entry) {
	for _, e := range p.Log() {
		if e.Op == "Take" {
			takes = append(takes, e)
		} else {
			givenBack = append(givenBack, e)
		}
	}
	return takes, givenBack
}

// intervalOf returns the time of one cost unit at a rate, in nanoseconds.
func intervalOf(r rate.Limit) *big.Rat {
	per := new(big.Rat).SetFloat64(float64(r))
	return per.Quo(big.NewRat(int64(time.Second), 1), per)
}

// apart tells the shared.Options among options, the zero ones if there are none, from the others.
func apart[O any](opts []any) (o shared.Options, others []O) {
	for _, opt := range opts {
		if of, ok := opt.(shared.Options); ok {
			o = of
		} else {
			others = append(others, opt.(O))
		}
	}
	return o, others
}

// sharedShaper returns a Shaper whose level is in a Bucket. It is closed when the test ends.
func sharedShaper(t *testing.T, b shared.Bucket, l shaper.Limits, opts ...any) *shaper.Shaper {
	t.Helper()
	o, others := apart[shaper.Option](opts)
	s := must(shaper.New(l, append(others, shaper.WithBucket(b, "key", o))...))
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// sharedGroup returns a Group whose keys have their levels in a Bucket. It is closed when the test
// ends.
func sharedGroup(t *testing.T, b shared.Bucket, l shaper.Limits, opts ...any) *shaper.Group[string] {
	t.Helper()
	return sharedGroupOf(t, b, func(string) (shaper.Limits, error) { return l, nil }, opts...)
}

// sharedGroupOf is sharedGroup for a limits function.
func sharedGroupOf(t *testing.T, b shared.Bucket, limits func(string) (shaper.Limits, error), opts ...any) *shaper.Group[string] {
	t.Helper()
	o, others := apart[shaper.GroupOption](opts)
	g := must(shaper.NewGroup(limits, append(others, shaper.WithBuckets(b, ownKey, o))...))
	t.Cleanup(func() { _ = g.Close() })
	return g
}

// farAway is a Bucket whose way takes longer by a random time, up to jitter in each direction.
// It counts the calls that are under way at once.
type farAway struct {
	*buckettest.Memory
	base, jitter time.Duration

	mu             sync.Mutex
	random         *rand.Rand
	underway, most int
}

func newFarAway(m *buckettest.Memory, seed uint64, base, jitter time.Duration) *farAway {
	return &farAway{Memory: m, base: base, jitter: jitter, random: rand.New(rand.NewPCG(seed, 0))}
}

// way returns how long one way takes: half of base, up or down by half of jitter.
func (b *farAway) way() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	d := b.base / 2
	if b.jitter > 0 {
		d += time.Duration(b.random.Int64N(int64(b.jitter))) - b.jitter/2
	}
	return d
}

func (b *farAway) add(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.underway += n
	b.most = max(b.most, b.underway)
}

// mostAtOnce returns how many calls there were at a time, at most.
func (b *farAway) mostAtOnce() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.most
}

func (b *farAway) Take(ctx context.Context, t shared.Take) (shared.Taken, error) {
	b.add(1)
	defer b.add(-1)
	time.Sleep(b.way())
	taken, err := b.Memory.Take(ctx, t)
	time.Sleep(b.way())
	return taken, err
}

// Four processes reach the rate together, in equal shares, with few round trips, whatever the
// way to the Bucket takes.
func TestProcessesReachTheRateInEqualShares(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rate         rate.Limit
		burst        int
		base, jitter time.Duration
		callers      int
	}{
		{3, 0, 200 * us, 0, 100},
		{100, 0, 200 * us, 0, 100}, {100, 0, 20 * ms, 10 * ms, 100}, {100, 10, 2 * ms, 0, 20}, {100, 0, 2 * ms, 0, 2},
		{1000, 0, 200 * us, 0, 100}, {1000, 0, 2 * ms, 0, 100}, {1000, 0, 20 * ms, 0, 100}, {1000, 0, 20 * ms, 10 * ms, 100}, {1000, 50, 20 * ms, 10 * ms, 100},
		{10000, 0, 200 * us, 0, 800}, {10000, 0, 2 * ms, 0, 800}, {10000, 0, 20 * ms, 0, 800}, {10000, 0, 20 * ms, 10 * ms, 800},
	} {
		if c.rate == 10000 && c.jitter == 0 && !long {
			continue // They take most of the processor time of all.
		}
		t.Run(fmt.Sprintf("%v per s, burst %d, %v ± %v, %d callers", c.rate, c.burst, c.base, c.jitter, c.callers), func(t *testing.T) {
			t.Parallel()
			share(t, 0, fmt.Sprintf("%v/s burst %d depth 9999", float64(c.rate), max(c.burst, 1)), 0, func(p *processes) {
				var ways []*farAway
				for i := range 4 {
					ways = append(ways, newFarAway(p.Memory, uint64(i), c.base, c.jitter))
					p.add(ways[i])
				}
				stop := p.saturate(c.callers)
				defer stop()
				p.at(time.Second)
				p.ClearLog()
				span := max(time.Duration(rounds(2, 4, 4))*time.Second, time.Duration(float64(rounds(3_000, 10_000, 10_000))*float64(time.Second)/float64(c.rate)))
				p.at(time.Second + span)
				takes, _ := p.takes()
				each, all := p.between(time.Second, time.Second+span)
				dropped := uint64(0)
				for i, s := range p.all {
					dropped += s.Stats().Bucket.Dropped
					require.Equal(t, 1, ways[i].mostAtOnce(), "one call at a time")
				}
				whole := float64(c.rate) * span.Seconds()
				t.Logf("%.2f %% of the rate, %v, %.3f round trips per departure, dropped %d", 100*float64(all)/whole, each, float64(len(takes))/float64(all), dropped)
				require.InDelta(t, whole, all, max(2, 0.01*whole))
				batch := takes[len(takes)/2].Take.Cost
				for _, n := range each {
					require.InDelta(t, float64(all)/4, n, max(0.02*float64(all)/4, 1.2*float64(batch)), "%v", each)
				}
				if c.rate == 1000 {
					require.LessOrEqual(t, float64(len(takes)), 0.15*float64(all))
				}
				stop()
				p.check()
			})
		})
	}
}

// A process alone reaches the rate too, even where a round trip takes longer than a batch may be
// otherwise; and at most two batches are held.
func TestLoneProcessReachesTheRate(t *testing.T) {
	for _, rtt := range []time.Duration{200 * us, 20 * ms, 60 * ms, 200 * ms} {
		share(t, 1, "1000/s depth 9999", rtt, func(p *processes) {
			stop := p.saturate(1000)
			defer stop()
			p.at(2 * time.Second)
			most := int64(0)
			for i := range 2000 {
				p.at(2*time.Second + time.Duration(i)*ms)
				most = max(most, p.all[0].Stats().Bucket.Held)
			}
			p.at(4 * time.Second)
			_, all := p.between(2*time.Second, 4*time.Second)
			require.InDelta(t, 2000, all, 5, rtt)
			batch := int64(0)
			for _, e := range p.Log() {
				batch = max(batch, e.Take.Cost)
			}
			require.LessOrEqual(t, most, 2*batch)
			require.LessOrEqual(t, time.Duration(batch)*ms, max(50*ms, 4*rtt))
			stop()
			p.check()
		})
	}
}

// At slow rates only one slot at a time can be leased. A process whose way to the Bucket is longer
// must get its turn all the same.
func TestFarProcessGetsItsTurnAtSlowRates(t *testing.T) {
	for _, limits := range []string{"1/s depth 99", "6/min depth 99"} {
		share(t, 0, limits, 0, func(p *processes) {
			for i, way := range []time.Duration{200 * us, 2 * ms, 10 * ms, 30 * ms} {
				p.add(newFarAway(p.Memory, uint64(i), way, 0))
			}
			stop := p.saturate(5)
			defer stop()
			span := time.Duration(200 / float64(p.limits.Rate) * float64(time.Second))
			p.at(span)
			each, all := p.between(0, span)
			t.Logf("%s: %v", limits, each)
			require.InDelta(t, 200, all, 2)
			for _, n := range each {
				require.InDelta(t, 50, n, 5, "%s: %v", limits, each)
			}
			stop()
			p.check()
		})
	}
}

// Skewed arrivals: a light process waits for its turn, not for the lines of the others.
func TestLightProcessIsNotStarved(t *testing.T) {
	share(t, 4, "1000/s depth 9999", 2*ms, func(p *processes) {
		stop := p.saturate(500, 0, 1, 2)
		defer stop()
		p.at(time.Second)
		for range 50 {
			began := time.Now()
			require.NoError(t, p.wait(p.t.Context(), 3, 1))
			require.Less(t, time.Since(began), 250*ms)
			time.Sleep(13 * ms)
		}
		stop()
		synctest.Wait()
		p.check()
	})
}

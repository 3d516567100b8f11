package shaper_test

import (
	"cmp"
	"context"
	"math/big"
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
)

// processes are Shapers that share a bucket in memory, as if each was in a process of its own,
// and the merged log of what has left them.
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
func share(t *testing.T, n int, limits string, rtt time.Duration, timeline func(p *processes), opts ...shaper.Option) {
	t.Helper()
	l, err := shaper.ParseLimits(limits)
	require.NoError(t, err)
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
func (p *processes) add(b shaper.Bucket, opts ...shaper.Option) *shaper.Shaper {
	i := len(p.all)
	trace := &shaper.Trace{Departed: func(_ context.Context, e shaper.Event) {
		p.mu.Lock()
		defer p.mu.Unlock()
		at := e.At.Sub(p.start)
		p.log = append(p.log, model.Departure{At: at, Process: i, Number: int(at - e.Waited), Cost: int64(e.Cost)})
	}}
	opts = append([]shaper.Option{shaper.WithBucket(b, "k"), shaper.WithTrace(trace)}, opts...)
	s, err := shaper.New(p.limits, opts...)
	require.NoError(p.t, err)
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

// pace is what the processes promise together.
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
		log[i].Number = i
	}
	return log
}

// takes returns the calls of Take that were made, and those of GiveBack.
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

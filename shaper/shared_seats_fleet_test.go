package shaper_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/internal/model"
	"example.com/leakybucket/shaper"
	"example.com/leakybucket/shaper/buckettest"
	"example.com/leakybucket/shaper/shared"
)

// A sharedCap is Shapers that share a cap by a Bucket in memory, as if each was in a process of its own, and the log of
// their calls, which package model judges.
type sharedCap struct {
	*buckettest.Memory
	model.SharedCap
	t     *testing.T
	start time.Time
	load  capLoad
	ctx   context.Context // of all calls; its end ends the load
	loads sync.WaitGroup

	mu    sync.Mutex
	log   []model.SeatEvent
	wrong []string
	all   []*capProcess
	asks  int // calls of Seats, but for those that are lost
	moved int // seats that were given back
}

// A capProcess is one of the processes. It is the Bucket of its Shaper: its own way to the one that all share.
type capProcess struct {
	*sharedCap
	i      int
	role   int // which part of the load it has
	shaper *shaper.Shaper
	random *rand.Rand
	ctx    context.Context // of its calls; ended when it is killed
	kill   context.CancelFunc

	way     way
	running chan struct{} // closed while it is not stopped
	inUse   int           // calls that are under way
	allowed int           // of its seats, as it has said and was told last
	faulted int           // the most seats that it had when something happened to it
}

// A way is how far what a process sends to the Bucket and back comes.
type way int

const (
	isOpen way = iota
	isCut
	losesReplies
)

// A capLoad is what callers do.
type capLoad struct {
	name string
	of   func(p *capProcess) // begins what comes to a process
}

// A callLength is for how long calls are under way: anything between, each as likely as another.
type callLength struct{ least, most time.Duration }

func (c callLength) mean() time.Duration { return (c.least + c.most) / 2 }

func (c callLength) next(random *rand.Rand) time.Duration {
	return c.least + time.Duration(random.Int64N(int64(c.most-c.least)+1))
}

func (c callLength) String() string { return fmt.Sprintf("%v-%v", c.least, c.most) }

// shareCap runs a timeline in a bubble, with four processes, and returns when all has ended.
func shareCap(t *testing.T, seats int, load capLoad, seed uint64, timeline func(c *sharedCap)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		c := &sharedCap{
			Memory: buckettest.NewMemory(), SharedCap: model.SharedCap{Cap: seats, Lease: shared.SeatLease},
			t: t, start: time.Now(), load: load, ctx: ctx,
		}
		c.SetDelay(100*us, 100*us)
		random := rand.New(rand.NewPCG(seed, 4))
		for role := range 4 {
			c.add(role, seed)
			time.Sleep(time.Duration(random.Int64N(int64(time.Second)))) // They are not in step.
		}
		defer func() {
			end()
			for _, p := range c.all {
				p.goesOn()
			}
			c.loads.Wait()
			for _, p := range c.all {
				require.NoError(t, p.shaper.Close())
			}
			require.Empty(t, c.wrong)
		}()
		timeline(c)
	})
}

// add adds a process, which takes over a part of the load.
func (c *sharedCap) add(role int, seed uint64) *capProcess {
	i := len(c.all)
	p := &capProcess{sharedCap: c, i: i, role: role, random: rand.New(rand.NewPCG(seed, uint64(i))), running: make(chan struct{})}
	close(p.running)
	p.ctx, p.kill = context.WithCancel(c.ctx)
	p.shaper = must(shaper.New(must(shaper.ParseLimits("10000/s burst 10000 depth 100000")),
		shaper.WithBucket(p, "k", shared.Options{InFlight: c.Cap})))
	c.mu.Lock()
	c.all = append(c.all, p)
	c.mu.Unlock()
	c.loads.Go(func() { c.load.of(p) })
	return p
}

func (p *capProcess) Take(ctx context.Context, t shared.Take) (taken shared.Taken, err error) {
	err = p.reaches(ctx, func() error {
		taken, err = p.Memory.Take(ctx, t)
		return err
	})
	return taken, err
}

func (p *capProcess) GiveBack(ctx context.Context, t shared.Take, end shared.Instant) error {
	return p.reaches(ctx, func() error { return p.Memory.GiveBack(ctx, t, end) })
}

// Seats notes what the process says that it keeps and what it is told. It keeps those in use at least, and may use no
// seat that it has given back, nor one that it was not told of.
func (p *capProcess) Seats(ctx context.Context, q shared.Seating) (told shared.Seated, err error) {
	asked := time.Since(p.start)
	p.mu.Lock()
	if p.way == isOpen {
		p.asks++
	}
	if q.Held < p.inUse || q.Held > max(p.allowed, p.inUse) || q.Cap != p.Cap || q.Key != "k" {
		p.wrongLocked("asks %+v with %d calls under way and %d seats", q, p.inUse, p.allowed)
	}
	p.moved += max(0, p.allowed-q.Held)
	p.allowed = min(p.allowed, q.Held)
	p.mu.Unlock()
	err = p.reaches(ctx, func() error {
		told, err = p.Memory.Seats(ctx, q)
		return err
	})
	if err == nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.noteLocked(model.Leased, asked)
		p.allowed = told.Held
		if told.Held < q.Held || told.Held > max(q.Held, q.Want) {
			p.wrongLocked("asks %+v and is told %+v", q, told)
		}
	}
	return told, err
}

// reaches makes a call of the Bucket as far as the way goes.
func (p *capProcess) reaches(ctx context.Context, call func() error) error {
	is := func(w way) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.way == w
	}
	if is(isCut) {
		<-ctx.Done()
		return ctx.Err()
	}
	err := call()
	if !is(isOpen) {
		<-ctx.Done()
		return ctx.Err()
	}
	return err
}

func (p *capProcess) note(what model.SeatWhat) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.noteLocked(what, 0)
}

func (p *capProcess) noteLocked(what model.SeatWhat, since time.Duration) {
	p.log = append(p.log, model.SeatEvent{At: time.Since(p.start), Process: p.i, What: what, Since: since})
}

func (p *capProcess) wrongLocked(format string, args ...any) {
	p.wrong = append(p.wrong, fmt.Sprintf("%v: process %d ", time.Since(p.start), p.i)+fmt.Sprintf(format, args...))
}

// calls makes one call through the Shaper, which is under way for a time, and reports whether it has left.
func (p *capProcess) calls(ctx context.Context, length time.Duration) bool {
	p.note(model.Waits)
	release, err := p.shaper.Acquire(ctx, 1)
	if err != nil {
		if ctx.Err() == nil && !errors.Is(err, shaper.ErrUnavailable) {
			p.mu.Lock()
			p.wrongLocked("%v", err)
			p.mu.Unlock()
		}
		p.note(model.GivesUp)
		return false
	}
	began := time.Since(p.start)
	p.mu.Lock()
	p.noteLocked(model.Begins, 0)
	if p.inUse++; p.inUse > p.allowed {
		p.wrongLocked("has %d calls under way and %d seats", p.inUse, p.allowed)
	}
	p.mu.Unlock()
	time.Sleep(length)
	p.runs()
	p.mu.Lock()
	p.noteLocked(model.Ends, began)
	p.inUse--
	p.mu.Unlock()
	release()
	return true
}

// runs waits until the process is not stopped.
func (p *capProcess) runs() {
	p.mu.Lock()
	running := p.running
	p.mu.Unlock()
	<-running
}

// stops stops the process: no call of it ends, none comes, and nothing arrives.
func (p *capProcess) stops() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running, p.way = make(chan struct{}), isCut
	p.faulted = max(p.faulted, p.allowed)
	p.noteLocked(model.Stops, 0)
}

func (p *capProcess) goesOn() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.way == isCut {
		p.noteLocked(model.GoesOn, 0)
	}
	p.way = isOpen
	select {
	case <-p.running:
	default:
		close(p.running)
	}
}

// dies ends the process as kill -9 does: what it sends does not arrive any more, and its line has gone. Its calls stay under
// way at the upstream.
func (p *capProcess) dies() {
	p.mu.Lock()
	p.way = isCut
	p.faulted = max(p.faulted, p.allowed)
	p.noteLocked(model.Stops, 0)
	p.mu.Unlock()
	p.kill()
}

// isCutOff makes the network between the process and the Bucket lose everything, or all replies, for a time.
func (p *capProcess) isCutOff(w way, d time.Duration) {
	p.mu.Lock()
	p.way = w
	p.faulted = max(p.faulted, p.allowed)
	p.noteLocked(model.IsCutOff, 0)
	p.mu.Unlock()
	time.Sleep(d)
	p.mu.Lock()
	p.way = isOpen
	p.noteLocked(model.IsReached, 0)
	p.mu.Unlock()
}

// saturates keeps more callers in the process than all seats could serve within a second, until ctx ends.
func (p *capProcess) saturates(ctx context.Context, length callLength) {
	var callers sync.WaitGroup
	for range 2 * (p.Cap + int(time.Duration(p.Cap)*time.Second/length.mean())) {
		random := rand.New(rand.NewPCG(p.random.Uint64(), 0))
		callers.Go(func() {
			for p.runs(); ctx.Err() == nil; p.runs() {
				if !p.calls(ctx, length.next(random)) {
					time.Sleep(100 * ms) // The Bucket can't be asked.
				}
			}
		})
	}
	callers.Wait()
}

// comesBy lets calls come at random, so that on average they take a part of all seats.
func (p *capProcess) comesBy(part float64, length callLength) {
	var callers sync.WaitGroup
	for p.ctx.Err() == nil {
		gap := p.random.ExpFloat64() * float64(length.mean()) / (part * float64(p.Cap))
		select {
		case <-time.After(time.Duration(gap)):
		case <-p.ctx.Done():
		}
		p.runs()
		span := length.next(p.random)
		callers.Go(func() { p.calls(p.ctx, span) })
	}
	callers.Wait()
}

// even: each process has a line. uneven: one has, and calls for a tenth of the seats come to each of the others.
// comesAndGoes: each has a line for a minute or three, and none for 20 s to a minute.
func even(length callLength) capLoad {
	return capLoad{"even", func(p *capProcess) { p.saturates(p.ctx, length) }}
}

func uneven(length callLength) capLoad {
	return capLoad{"uneven", func(p *capProcess) {
		if p.role == 0 {
			p.saturates(p.ctx, length)
			return
		}
		p.comesBy(0.1, length)
	}}
}

func comesAndGoes(length callLength) capLoad {
	return capLoad{"coming and going", func(p *capProcess) {
		for p.ctx.Err() == nil {
			ctx, cancel := context.WithTimeout(p.ctx, time.Minute+time.Duration(p.random.Int64N(int64(2*time.Minute))))
			p.saturates(ctx, length)
			cancel()
			select {
			case <-time.After(20*time.Second + time.Duration(p.random.Int64N(int64(40*time.Second)))):
			case <-p.ctx.Done():
			}
		}
	}}
}

// breaks lets something go wrong each 30 s, in turn a kill, a stop, a partition and a loss of the state, until a time.
func (c *sharedCap) breaks(seed uint64, until time.Duration) {
	random := rand.New(rand.NewPCG(seed, 1<<63))
	span := func(least, most time.Duration) time.Duration {
		return least + time.Duration(random.Int64N(int64(most-least)))
	}
	for round := 1; ; round++ {
		at := time.Duration(round)*30*time.Second + span(0, 10*time.Second)
		if at+20*time.Second > until {
			return
		}
		time.Sleep(at - time.Since(c.start))
		role := (round/4 + round + int(seed)) % 4 // Each kind comes to each in turn.
		i := slices.IndexFunc(c.all, func(p *capProcess) bool { return p.role == role && p.ctx.Err() == nil })
		p := c.all[i]
		switch (round + int(seed)) % 4 {
		case 0:
			p.dies()
			time.Sleep(span(time.Second, 5*time.Second))
			c.add(p.role, random.Uint64())
		case 1:
			p.stops()
			time.Sleep(span(2*time.Second, 12*time.Second))
			p.goesOn()
		case 2:
			p.isCutOff(isCut+way(random.IntN(2)), span(2*time.Second, 12*time.Second))
		case 3:
			c.Wipe()
		}
	}
}

// A capRow is a run with its figures: use at least, and how long the run is, in the short form and in the long one.
type capRow struct {
	load   func(callLength) capLoad
	length callLength
	seats  int
	faults bool
	use    float64
	span   [2]time.Duration
}

func (r capRow) name(seed uint64) string {
	name := fmt.Sprintf("%s, cap %d, calls of %v, seed %d", r.load(r.length).name, r.seats, r.length, seed)
	if r.faults {
		name += ", a fault each 30 s"
	}
	return name
}

func capRows() (rows []capRow) {
	const minute = time.Minute
	for _, calls := range []struct {
		callLength
		uneven float64
		span   [2]time.Duration
	}{
		{callLength{100 * ms, 100 * ms}, 0.90, [2]time.Duration{4 * minute, 9 * minute}},
		{callLength{time.Second, 10 * time.Second}, 0.90, [2]time.Duration{15 * minute, 30 * minute}},
		{callLength{time.Second, 300 * time.Second}, 0.95, [2]time.Duration{60 * minute, 120 * minute}},
	} {
		for _, load := range []struct {
			of  func(callLength) capLoad
			use float64
		}{{even, 0.99}, {uneven, calls.uneven}, {comesAndGoes, calls.uneven}} {
			rows = append(rows,
				capRow{load.of, calls.callLength, 20, false, load.use, calls.span},
				capRow{load.of, calls.callLength, 20, true, 0.85, calls.span})
		}
		rows = append(rows, capRow{even, calls.callLength, 2, false, 0.90, calls.span})
	}
	return rows
}

// Four processes share a cap, whatever the calls, the load and the faults: never more seats than there are, and those that
// there are are used.
func TestFourProcessesShareACap(t *testing.T) {
	t.Parallel()
	for _, row := range capRows() {
		for seed := range uint64(rounds(1, 5, 5)) {
			t.Run(row.name(seed), func(t *testing.T) {
				t.Parallel()
				span := row.span[rounds(0, 1, 1)]
				shareCap(t, row.seats, row.load(row.length), seed, func(c *sharedCap) {
					if row.faults {
						c.breaks(seed, span)
					}
					time.Sleep(span - time.Since(c.start))
					row.judges(c, seed, span)
				})
			})
		}
	}
}

// judges requires the figures of a run.
func (r capRow) judges(c *sharedCap, seed uint64, span time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.t
	const begin = 10 * time.Second // The state is new, which takes SeatGuard.
	u := c.Judge(c.log, begin, span)
	var lines, leases time.Duration
	for i := range u.Lines {
		lines, leases = lines+u.Lines[i], leases+u.Leases[i]
	}
	seconds := span.Seconds()
	t.Logf("%-80s %v; %.2f round trips per second and process, %.3f per call, %d seats moved", r.name(seed), u,
		float64(c.asks)/seconds/4, float64(c.asks)/float64(u.Calls), c.moved)
	require.NoError(t, c.Check(u))
	for i, n := range u.Overstay {
		require.LessOrEqual(t, n, c.all[i].faulted, "process %d", i)
	}
	require.GreaterOrEqual(t, u.Use, r.use)
	require.LessOrEqual(t, float64(c.asks), lines.Seconds()/shared.SeatPoll.Seconds()+leases.Seconds()/shared.SeatRenew.Seconds()+
		2*float64(c.moved)+20*float64(len(c.all)))
	require.LessOrEqual(t, u.Starved, shared.SeatLease+2*shared.SeatRenew+shared.SeatPoll+r.length.most)
	if r.load(r.length).name == "even" && !r.faults && r.seats >= 4 {
		for _, n := range u.Each {
			require.InDelta(t, float64(r.seats)/4, n, 0.05*float64(r.seats)/4, "%.2f", u.Each)
		}
	}
}

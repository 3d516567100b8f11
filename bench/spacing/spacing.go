// Package spacing measures how evenly callers leave, in which order, whether the rate is
// reached, and at which cost: in a process that does nothing else, and in one whose other
// goroutines keep all its Ps busy.
package spacing

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/leakybucket/bench/internal/measure"
	"example.com/leakybucket/bench/internal/report"
	"example.com/leakybucket/bench/internal/rivals"
	"example.com/leakybucket/bench/internal/run"
	"example.com/leakybucket/internal/realtime"
)

// Idle is the experiment "spacing".
var Idle = run.Experiment{
	Name: "spacing",
	What: "how evenly callers leave at 10 to 100,000/s, in which order, and what it costs",
	Note: "Closed loop: each caller waits again as soon as it has left. Instants are those at which callers ran again. " +
		"err: |spacing - interval|. bunched: spacings below half an interval. " +
		"overtaken: departures after one that had begun to wait later; the order is taken just before the call, " +
		"so that two callers within some nanoseconds may be mistaken for each other. " +
		"CPU and allocations are those of the whole process.",
	Goals:  idleGoals,
	Groups: idleGroups,
	Conclude: func(r *report.Report, o run.Options) error {
		var failed []error
		for _, rate := range []float64{1_000, 10_000} {
			failed = append(failed, r.DrawSpacings(report.Spacings{
				Name: fmt.Sprintf("spacing-%.0f", rate), Title: fmt.Sprintf("How even are the departures? Spacing at %s", report.PerSecond(rate)),
				Rate: rate, Caption: fmt.Sprintf("%d requests wait at any time. %s.", goalWaiters, o.Machine),
				Limiters: idleLimiters, Line: func(limiter string) string { return nameOf("Spacing", limiter, rate, goalWaiters, idle) },
			}, rivals.Ours))
		}
		idleLines = r.Lines
		return errors.Join(failed...)
	},
}

// Busy is the experiment "busy".
var Busy = run.Experiment{
	Name: "busy",
	What: "the same while other goroutines of the process keep all its Ps busy: is the rate held?",
	Note: "loops: one for each P that never waits; allocators: one for each P that allocates without end; pieces: eight for each P that work for 1 ms " +
		"and nap for 4 ms, exponentially distributed. Everything else is as for spacing. " +
		"burst: the largest excess over the rate within any window, as the time in which so many leave at the rate, as the receivers saw it: " +
		"a goroutine that has been released still has to wait for a P, whatever released it.",
	Goals:    busyGoals,
	Groups:   busyGroups,
	Conclude: drawRates,
}

// FairBusy is the experiment "fair-busy".
var FairBusy = run.Experiment{
	Name: "fair-busy",
	What: "which part of the rate fair queueing keeps in a busy process",
	Note: "As the experiment busy, beside loops; the calls are of ten keys in turn. " +
		"fair-outside: fair queueing on top of a plain Shaper, into whose line one caller at a time is let.",
	Groups: fairBusyGroups,
}

// idleLines are the lines of "spacing". The picture of "busy" shows them, too.
var idleLines []report.Line

// The limiters that differ when the process does nothing else; in a busy one, those that the
// goals are about, and the others, which are measured once.
var (
	idleLimiters = []string{rivals.Ours, "shaper-coarse", "x-time", "uber", "uber-noslack", "failsafe", "naive"}
	busyCompared = []string{rivals.Ours, "shaper-slack100", "x-time"}
	busyOnce     = []string{"shaper-coarse", "uber", "uber-noslack", "failsafe", "naive"}
)

// goalWaiters is how many wait where the goals are judged.
const goalWaiters = 100

// idleWindows are how long a measurement lasts. All of it counts, and it is seconds at high
// rates, too: in pieces of a tenth of a second, limiters have looked better than they are.
var idleWindows = []struct {
	rate   float64
	window time.Duration
	quick  time.Duration // 0: left out
}{
	{10, 2500 * time.Millisecond, 0},
	{100, 3 * time.Second, 1100 * time.Millisecond},
	{1_000, 3 * time.Second, 400 * time.Millisecond},
	{10_000, 3 * time.Second, 300 * time.Millisecond},
	{100_000, time.Second, 200 * time.Millisecond},
}

// An atRate is a rate, and how many wait there.
type atRate struct {
	rate    float64
	waiters int
}

// busyRates are where the goals are judged. At 10,000/s there must be enough callers for all
// late departures to leave at once.
var busyRates = []atRate{{100, goalWaiters}, {1_000, goalWaiters}, {10_000, 1_000}}

// busyWarm is longer than idleWarm: the load has to get going, and limiters that adapt to it
// have to notice.
const idleWarm, busyWarm = 150 * time.Millisecond, 200 * time.Millisecond

// idleGroups are the measurements: goalWaiters first, and most often.
func idleGroups(o run.Options) (groups []run.Group) {
	for _, waiters := range []int{goalWaiters, 1, 10_000} {
		for _, at := range idleWindows {
			window, rounds := at.window, 1
			switch {
			case waiters == goalWaiters && at.rate > 10:
				rounds = o.Times(3, 1)
			case waiters != goalWaiters && at.rate == 10:
				continue // A round takes long, and one tells that all do alike.
			}
			if o.Quick {
				if window = at.quick; window == 0 || waiters != goalWaiters {
					continue
				}
			}
			groups = append(groups, run.Group{Cases: cases("Spacing", rounds, idleLimiters, input{"", at.rate, waiters, load{name: idle}, idleWarm, window})})
		}
	}
	return groups
}

func busyGroups(o run.Options) (groups []run.Group) {
	for _, l := range loads() {
		for _, at := range busyRates {
			once, window := busyOnce, 2*time.Second
			if o.Quick {
				if at.rate != 1_000 {
					continue
				}
				once, window = nil, 600*time.Millisecond
			}
			in := input{"", at.rate, at.waiters, l, busyWarm, window}
			groups = append(groups, run.Group{Cases: append(cases("Busy", o.Times(3, 1), busyCompared, in), cases("Busy", 1, once, in)...)})
		}
	}
	return groups
}

// fairBusyGroups are beside loops that never wait: there the effect of a load on a line is seen.
func fairBusyGroups(o run.Options) (groups []run.Group) {
	for _, at := range busyRates {
		in := input{"", at.rate, at.waiters, loops(), busyWarm, 2 * time.Second}
		groups = append(groups, run.Group{Cases: cases("FairBusy", o.Times(3, 1), []string{rivals.Ours, rivals.Fair, rivals.FairOutside}, in)})
	}
	return groups
}

// cases returns a case for each limiter.
func cases(what string, rounds int, limiters []string, in input) (all []run.Case) {
	for _, in.limiter = range limiters {
		one := in
		name := nameOf(what, one.limiter, one.rate, one.waiters, one.load.name)
		all = append(all, run.One(name, rounds, func(t *testing.T) result { return measureSpacing(t, one) }))
	}
	return all
}

func nameOf(what, limiter string, rate float64, waiters int, load string) string {
	return fmt.Sprintf("%s/limiter=%s/rate=%.0f/waiters=%d/load=%s", what, limiter, rate, waiters, load)
}

// idleGoals compare with the three waiting libraries, each in both of its forms.
var idleGoals = []report.Goal{
	spacingGoal("100", "err-p50-ns", 1./8), spacingGoal("1000", "err-p50-ns", 1./7), spacingGoal("10000", "err-p50-ns", 1./6),
	spacingGoal("1000", "bunched-%", 1./10), spacingGoal("10000", "bunched-%", 1./10),
	{What: "share of the rate that is reached at $1/s", Ours: ours + "(10|100|1000|10000)" + hundred + "of-rate", Least: 0.997, Most: 1.003},
	{What: "share of the rate that is reached at 100000/s", Ours: ours + "100000" + hundred + "of-rate", Least: 0.99, Most: 1.01},
	// At lower rates the few allocations that the runtime makes by itself would count.
	{What: "allocations per wait at $1/s (0, but the process has others, a few)", Ours: ours + "(1000.*)" + hundred + "allocs/departure", Most: 0.05},
	cpuGoal(rivals.Ours, "100", 1.5), cpuGoal(rivals.Ours, "1000", 2), cpuGoal(rivals.Ours, "10000", 4), cpuGoal("shaper-coarse", "100|1000|10000", 1.3),
	// CPU time must not be saved at the cost of the spacing.
	{What: "spacing error p50 at 10000/s, at that CPU time, in ns", Ours: ours + "10000" + hundred + "err-p50-ns", Most: 5_000},
}

const (
	ours    = "Spacing/limiter=shaper/rate="
	hundred = "/waiters=100/load=idle "
)

// spacingGoal bounds a figure of ours by a part of the best library's.
func spacingGoal(rate, unit string, part float64) report.Goal {
	g := report.Goal{What: "spacing at " + rate + "/s, " + unit + ", against the best library", Ours: ours + rate + hundred + unit, Most: part}
	for _, library := range []string{"x-time", "uber", "uber-noslack", "failsafe"} {
		g.Theirs = append(g.Theirs, "Spacing/limiter="+library+"/rate="+rate+hundred+unit)
	}
	return g
}

func cpuGoal(limiter, rates string, most float64) report.Goal {
	return report.Goal{
		What: "CPU per departure of " + limiter + " at $1/s against x-time", Most: most,
		Ours: "Spacing/limiter=" + limiter + "/rate=(" + rates + ")" + hundred + "cpu-ns/departure", Theirs: []string{"Spacing/limiter=x-time/rate=$1" + hundred + "cpu-ns/departure"},
	}
}

// busyGoals want for each load and each slack that the rate is held.
var busyGoals = []report.Goal{busyGoal(rivals.Ours, "20 ms", 0.95), busyGoal("shaper-slack100", "100 ms", 0.98)}

func busyGoal(limiter, slack string, share float64) report.Goal {
	return report.Goal{
		What: "rate in a busy process ($3) at $1/s, " + slack + " of slack, against x-time", Least: share,
		Ours: "Busy/limiter=" + limiter + "/rate=(.*)/waiters=(.*)/load=(.*) of-rate", Theirs: []string{"Busy/limiter=x-time/rate=$1/waiters=$2/load=$3 of-rate"},
	}
}

// drawRates draws which share of the rate each limiter reaches, by load and rate: with
// goalWaiters in an idle process, and with as many as were measured in a busy one.
func drawRates(r *report.Report, o run.Options) error {
	lines := append(idleLines, r.Lines...)
	panel := func(title, what string, limiters []string, load string, rates []atRate) report.Panel {
		p := report.Panel{Title: title, Axis: "% of the rate", Limiters: limiters, Figure: func(limiter string, i int) float64 {
			return 100 * report.Median(lines, nameOf(what, limiter, rates[i].rate, rates[i].waiters, load), "of-rate")
		}}
		for _, at := range rates {
			p.Settings = append(p.Settings, report.PerSecond(at.rate))
		}
		return p
	}
	var idleRates []atRate
	for _, at := range idleWindows {
		idleRates = append(idleRates, atRate{at.rate, goalWaiters})
	}
	panels := []report.Panel{panel("in a process that does nothing else", "Spacing", idleLimiters, idle, idleRates)}
	for _, l := range loads() {
		panels = append(panels, panel("busy: "+l.what, "Busy", append(busyCompared, busyOnce...), l.name, busyRates))
	}
	return r.DrawBars(report.Bars{
		Name: "rate", Title: "Is the rate reached?", Panels: panels,
		Caption: fmt.Sprintf("%d requests wait at any time, in a busy process 1,000 at 10,000/s. %s.", goalWaiters, o.Machine),
	}, rivals.Ours)
}

// An input is one limiter in a closed loop: so many goroutines wait, and wait again as soon as they have left.
type input struct {
	limiter string
	rate    float64 // per second
	waiters int
	load    load
	warm    time.Duration // until the window begins
	window  time.Duration
}

// A result has the figures of one limiter at one rate, with one number of waiters, under one load.
type result struct {
	measure.Spacing
	Burst  float64 `unit:"burst-ns"`         // as the receivers saw it
	CPU    float64 `unit:"cpu-ns/departure"` // of the whole process, with the load
	Allocs float64 `unit:"allocs/departure"` // of the whole process, with the load
}

// measureSpacing leaves goroutines behind, and some of them sleep for long. They end with the
// process.
func measureSpacing(t *testing.T, in input) result {
	// x/time lets several times the rate leave where thousands contend for it, as it sets its clock back
	// when a caller has lost the processor between reading the time and locking.
	loop := measure.NewLoop(time.Now(), 40*int(in.rate*(in.warm+in.window).Seconds())+4096)
	line := rivals.Openers[in.limiter](in.rate, in.waiters)
	defer line.Stop()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	for i := range in.waiters {
		go loop.Run(ctx, line.Wait)
		// They begin one after another. If thousands began at once, many would lose
		// the processor between taking their number and entering the line.
		for loop.Entries() <= i {
			runtime.Gosched()
		}
	}
	done, stop := in.load.start()
	defer stop()

	time.Sleep(in.warm)
	if in.load.goroutines > 0 {
		// On a busy machine that may take longer than a window.
		realtime.Until(t, func() bool { return done.Load() > 0 }, "the load has done something")
	}
	before := readMeter(loop.Began)
	time.Sleep(in.window)
	after := readMeter(loop.Began)
	all, err := loop.Departures()
	require.NoError(t, err)
	d := measure.DeparturesWithin(before.at, after.at, measure.Interval(in.rate), all)
	each := float64(max(1, d.Count()))
	return result{
		Spacing: d.Spacing(), Burst: d.Burst(),
		CPU: (after.cpu - before.cpu) / each, Allocs: float64(after.mallocs-before.mallocs) / each,
	}
}

// A meter is the usage of the process up to an instant.
type meter struct {
	at      time.Duration
	cpu     float64
	mallocs uint64
}

func readMeter(began time.Time) meter {
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	cpu := measure.CPUTime()
	return meter{at: time.Since(began), cpu: cpu, mallocs: memory.Mallocs}
}

// idle is the name of no load.
const idle = "idle"

// A load is other work of the process, which keeps all its Ps busy.
type load struct {
	name       string
	what       string
	goroutines int
	// piece does some work, and has to return within some milliseconds. Each
	// goroutine calls it again and again, with a source of its own.
	piece func(random *rand.Rand)
}

// loads returns the loads of the busy experiment: one loop and one allocator for each P, and eight
// goroutines for each P that together ask for 1.6 times the processors there are. The last one is made before anything
// else runs, as it measures how much work fills a millisecond.
func loads() []load {
	ps := runtime.GOMAXPROCS(0)
	return []load{
		loops(),
		{"allocators", fmt.Sprintf("%d goroutines that allocate without end", ps), ps, allocate},
		{"pieces", fmt.Sprintf("%d goroutines that work for 1 ms and nap for 4 ms, exponentially distributed", 8*ps), 8 * ps, workAndNap()},
	}
}

func loops() load {
	ps := runtime.GOMAXPROCS(0)
	return load{"loops", fmt.Sprintf("%d loops that never wait", ps), ps, func(*rand.Rand) { spin(100_000) }}
}

// start lets the goroutines work. done counts their pieces. stop returns when the goroutines have gone.
func (l load) start() (done *atomic.Int64, stop func()) {
	done = new(atomic.Int64)
	var quit atomic.Bool
	var all sync.WaitGroup
	for i := range l.goroutines {
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 1)) // the same in each child process
			for !quit.Load() {
				l.piece(random)
				done.Add(1)
			}
		})
	}
	return done, func() {
		quit.Store(true)
		all.Wait()
	}
}

// spin is work that nothing but the processor does: rounds of an xorshift.
func spin(rounds int) {
	x := uint64(rounds) | 1
	for range rounds {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	if x == 0 { // It never is, but the compiler does not know and keeps the work.
		panic("xorshift reached 0")
	}
}

// allocate leaves garbage of 1 to 16 KiB, and keeps a little of it for a while.
func allocate(random *rand.Rand) {
	var kept [64][]byte
	for i := range 16 * len(kept) {
		kept[i%len(kept)] = make([]byte, 1<<10*(1+random.IntN(16)))
	}
	runtime.KeepAlive(&kept)
}

// workAndNap makes pieces of a millisecond of work, on average, and naps of
// four. Work is counted in rounds, as an instant on the clock would count the
// time without a processor too.
func workAndNap() func(*rand.Rand) {
	const probe = 200_000
	fastest := time.Duration(1 << 62)
	for range 5 {
		began := time.Now()
		spin(probe)
		fastest = min(fastest, time.Since(began))
	}
	perMillisecond := probe * float64(time.Millisecond) / float64(max(1, fastest))
	return func(random *rand.Rand) {
		spin(int(random.ExpFloat64() * perMillisecond))
		time.Sleep(time.Duration(random.ExpFloat64() * 4 * float64(time.Millisecond)))
	}
}
